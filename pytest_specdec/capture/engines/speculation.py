"""The speculative setting in vLLM's words: what a config says about drafting before anything boots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["FLAGS", "draft", "setting"]

_HEADS = ("eagle", "medusa", "mtp", "mlp_speculator", "dflash", "dspark")
_SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
FLAGS = ("speculative-config", "sc", *_SHORT)
"""Everything that :func:`setting` reads."""


def setting(args: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the speculative setting in ``args``, ``--speculative-config`` and its short flags together; empty without one."""
    named = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    whole = named.get("speculative-config", named.get("sc"))
    if isinstance(whole, str):
        whole = _opened(whole)
    found = dict(whole) if isinstance(whole, Mapping) else {}
    found.update({key: named[flag] for flag, key in _SHORT.items() if flag in named})
    return {name.replace("-", "_"): value for name, value in found.items()}


def _opened(text: str) -> JSON:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        what = "the speculative setting cannot be read"
        raise EngineError(
            what, where="speculative-config", found=f"{text[:60]!r}: {error}", expected="a mapping, or JSON that holds one"
        ) from None


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return what the setting says about drafting; None without one."""
    found = setting(args)
    if not found:
        return None
    kind = _kind(str(found.get("method") or ""), str(found.get("model") or ""))
    longest = _integer(found.get("prompt_lookup_max"))
    return Draft(
        kind=kind,
        tokens=_integer(found.get("num_speculative_tokens")),
        sampling=DraftSampling.PROBABILISTIC if found.get("draft_sample_method") == "probabilistic" else DraftSampling.GREEDY,
        model=str(found["model"]) if kind is DraftKind.MODEL else None,
        ngram_min=_integer(found.get("prompt_lookup_min")) or longest,
        ngram_max=longest,
    )


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
