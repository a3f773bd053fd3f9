"""The speculative setting of vLLM's command line: ``--speculative-config`` and its short flags, read as a draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON

__all__ = ["draft", "speculative_setting", "with_resolved_model"]

_HEADS = ("eagle", "medusa", "mtp", "mlp_speculator", "dflash", "dspark")
_SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_FLAGS = frozenset({"speculative-config", "sc", *_SHORT})


def speculative_setting(args: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the speculative setting in ``args``, long and short flags together; empty without one. Raises EngineError for broken JSON."""
    by_flag = {plain(name): value for name, value in args.items()}
    whole = by_flag.get("speculative-config", by_flag.get("sc"))
    if isinstance(whole, str):
        whole = _parsed(whole)
    setting = dict(whole) if isinstance(whole, Mapping) else {}
    setting.update({key: by_flag[flag] for flag, key in _SHORT.items() if flag in by_flag})
    return {name.replace("-", "_"): value for name, value in setting.items()}


def with_resolved_model(args: Mapping[str, JSON], resolve: Callable[[str], str]) -> dict[str, JSON]:
    """Return ``args`` with the setting in one flag and its model as ``resolve`` gives it: a path that holds wherever a server starts."""
    setting = speculative_setting(args)
    if not setting:
        return dict(args)
    model = setting.get("model")
    resolved = {"model": resolve(model)} if isinstance(model, str) else {}
    rest = {name: value for name, value in args.items() if plain(name) not in _FLAGS}
    return {**rest, "speculative-config": {**setting, **resolved}}


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return what the setting says about drafting; None without one. Raises EngineError for broken JSON."""
    setting = speculative_setting(args)
    if not setting:
        return None
    kind = _kind(str(setting.get("method") or ""), str(setting.get("model") or ""))
    longest = _integer(setting.get("prompt_lookup_max"))
    return Draft(
        kind=kind,
        tokens=_integer(setting.get("num_speculative_tokens")),
        sampling=DraftSampling.PROBABILISTIC if setting.get("draft_sample_method") == "probabilistic" else DraftSampling.GREEDY,
        model=str(setting["model"]) if kind is DraftKind.MODEL else None,
        ngram_min=_integer(setting.get("prompt_lookup_min")) or longest,
        ngram_max=longest,
    )


def _parsed(text: str) -> JSON:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        what = "the speculative setting cannot be read"
        raise EngineError(
            what,
            where="speculative-config",
            found=f"{text[:60]!r}: {error}",
            expected="a mapping, or JSON that holds one",
            remedy="write it as a YAML mapping",
        ) from None


def _kind(method: str, model: str) -> DraftKind:
    """Read the method, or, where it is left out, guess it from the model's name as vLLM does."""
    if "ngram" in (method or model):
        return DraftKind.NGRAM
    if any(head in (method or model).lower() for head in _HEADS):
        return DraftKind.HEAD
    if method in {"", "draft_model"} and model:
        return DraftKind.MODEL
    return DraftKind.UNKNOWN


def _integer(value: JSON) -> int:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else 0
