"""The backend of vLLM's structured outputs, read off its arguments (``StructuredOutputsConfig``, before 0.11 ``DecodingConfig``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines.llguidance import GrammarBackend, mapping, stop_ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_specdec.model.workload import JSON

_WHOLE = "structured-outputs-config"
_FORMERLY = "guided-decoding-"
_NAME = "guidance"


def grammar_backend(args: Mapping[str, JSON], checkpoint: Path, release: str) -> GrammarBackend | None:
    """Return the use of llguidance by a server with ``args``.

    None for another backend, including ``auto``, which chooses by request.
    """
    by_flag = {plain(name): value for name, value in args.items()}
    options = _old_options(by_flag) | dict(mapping(by_flag.get(_WHOLE)))
    options |= {name.removeprefix(f"{_WHOLE}."): value for name, value in by_flag.items() if name.startswith(f"{_WHOLE}.")}
    name, _, switches = str(options.get("backend", "")).partition(":")
    if name != _NAME:
        return None
    forbids_properties = options.get("disable-additional-properties") or "no-additional-properties" in switches
    return GrammarBackend(
        checkpoint=checkpoint,
        eos_ids=stop_ids(checkpoint),
        json_options={"whitespace_flexible": not (options.get("disable-any-whitespace") or "disable-any-whitespace" in switches)},
        release=release,
        unknown="disable_additional_properties" if forbids_properties else "",
    )


def _old_options(by_flag: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name.removeprefix(_FORMERLY): value for name, value in by_flag.items() if name.startswith(_FORMERLY)}
