"""A parting: the first wrong token in the words of a failed test, what was shared and what each server chose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_specdec.judge.quotation import quoted

if TYPE_CHECKING:
    from pytest_specdec.judge.greedy_gap import Forced
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.score import Position

__all__ = ["parting", "probability"]

_CONTEXT_TOKENS = 8
_CONTEXT_CHARACTERS = 40


def parting(mine: Forced, index: int, theirs: Answer | None, allowed: Tolerance) -> tuple[str, ...]:
    """Return three lines on token ``index`` of ``mine``: shared, baseline, speculative.

    Ids always; text where the two answers agree up to this token, so that their texts part here too.
    """
    position = mine.positions[index]
    shared, base, spec = _texts(mine.answer, theirs, index)
    before = mine.answer.choice.token_ids[max(0, index - _CONTEXT_TOKENS) : index]
    best = position.atom_ids[0] if position.atom_ids else position.token_id
    best_logprob = max(position.atom_logprobs, default=position.logprob)
    real = f"real: gap {mine.gaps[index]:.3g} > tolerance {allowed.gap:.3g} nats ({allowed.reason})"
    next_best = (
        f"   (next best id {position.atom_ids[1]} p={math.exp(position.atom_logprobs[1]):.3g})" if len(position.atom_ids) > 1 else ""
    )
    return (
        f"shared       {shared or 'its own tokens'} ids … {' '.join(map(str, before)) or '(none)'}",
        f"baseline     {base}id {best} p={math.exp(best_logprob):.3g}{next_best}",
        f"speculative  {spec}id {position.token_id} {probability(position)}   {real}",
    )


def probability(position: Position) -> str:
    """Tell the probability, or what it lies below where only the listed tokens' are known."""
    if math.isnan(position.logprob):
        return f"p<{math.exp(min(position.atom_logprobs)):.3g}"
    return f"p={math.exp(position.logprob):.3g}"


def _texts(mine: Answer, theirs: Answer | None, index: int) -> tuple[str, str, str]:
    """Return what both texts begin with and how each goes on, quoted; empty where the ids part before ``index``."""
    if theirs is None or theirs.choice.token_ids[:index] != mine.choice.token_ids[:index]:
        return "", "", ""
    ours, others = mine.choice.text, theirs.choice.text
    common = _common(ours, others)
    start = common.rfind(" ") if " " in common and len(common) < min(len(ours), len(others)) else len(common)
    if ours[start:] == others[start:]:
        return "", "", ""
    shown = f"… {quoted(common[max(0, start - _CONTEXT_CHARACTERS) : start], _CONTEXT_CHARACTERS)}"
    return shown, f"{quoted(others[start:], 16)} ", f"{quoted(ours[start:], 16)} "


def _common(one: str, other: str) -> str:
    alike = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:alike]
