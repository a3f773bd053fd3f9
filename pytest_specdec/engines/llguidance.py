"""llguidance as servers use it: whether a config chooses it, and the options that decide what its grammars allow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pytest_specdec.config.rules import plain
from pytest_specdec.engines import locate

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import JSON

_PACKAGE = "llguidance"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarBackend:
    """How a server uses llguidance: all that is needed to compute its masks here."""

    checkpoint: Path
    """The folder with the model's ``tokenizer.json``."""
    eos_ids: tuple[int, ...]
    """Tokens that end a document."""
    json_options: Mapping[str, JSON] = field(default_factory=dict)
    """Defaults of ``LLMatcher.grammar_from_json_schema``."""
    release: str = ""
    """Of the server's llguidance; empty if unknown."""
    unknown: str = ""
    """A setting that changes grammars in a way that is not reproduced here; empty without one."""


@runtime_checkable
class ServesLlguidance(Protocol):
    """An engine that may enforce grammars through llguidance; it may leave this out."""

    def grammar_backend(self, config: Config) -> GrammarBackend | None:
        """Return the use of llguidance by every arm's server.

        None if another backend is chosen, or if the choice is unknown.
        """


def installed_release(program_path: str) -> str:
    """Return the release of llguidance in a program's environment.

    Empty if unknown. The program's link is followed last: the python of a venv is a link out of it.
    """
    site = Path(program_path).absolute().parent.parent / "lib"
    folders = sorted(site.glob(f"python*/site-packages/{_PACKAGE}-*.dist-info"))
    venv_release = folders[0].name.removeprefix(f"{_PACKAGE}-").removesuffix(".dist-info") if folders else ""
    return venv_release or locate.release(program_path, _PACKAGE)


def mapping(value: JSON) -> Mapping[str, JSON]:
    """Return an argument's mapping, by names with dashes.

    It may be a mapping in YAML or JSON text. Empty for any other argument.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return {plain(name): item for name, item in value.items()} if isinstance(value, Mapping) else {}


def stop_ids(checkpoint: Path) -> tuple[int, ...]:
    """Return the id of the tokenizer's own end of sequence.

    Empty if it has none that can be read.
    """
    try:
        settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
        added_tokens = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        eos_token = settings["eos_token"]
        content = eos_token["content"] if isinstance(eos_token, dict) else eos_token
        return tuple(token["id"] for token in added_tokens if token["content"] == content)
    except (OSError, ValueError, KeyError, TypeError):
        return ()
