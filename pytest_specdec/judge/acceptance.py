"""Acceptance: how many tokens a verify step brings over many prompts, held against the gates on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance_length import acceptance_length
from pytest_specdec.judge.gating import PROVEN_ERROR, Ruling, ruled, stated
from pytest_specdec.judge.saying import say
from pytest_specdec.judge.speculating import speculating
from pytest_specdec.model.gate import ACCEPTANCE_LENGTH
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.acceptance_length import AcceptanceLength
    from pytest_specdec.judge.gating import Ruled
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.gate import Gate
    from pytest_specdec.model.transcript import SpecCounters
    from pytest_specdec.model.verdict import Verdict

__all__ = ["LEAST_PROMPTS", "judged", "shown"]

LEAST_PROMPTS = 20
"""Prompts below which nothing is gated: the length of one prompt says little of the next one's."""


def judged(captured: Captured) -> Verdict:
    """Return whether as many tokens are accepted as the gates ask, by a workload that is not timed."""
    if captured.is_control:
        return say(captured, Outcome.PASS, "the baseline drafts nothing")
    return speculating(captured, rejecting=False) or _gated(captured, acceptance_length(captured.speculative))


def _gated(captured: Captured, length: AcceptanceLength | None) -> Verdict:
    gates = stated(captured.gates, ACCEPTANCE_LENGTH)
    rulings = ruled(gates, length if length and length.prompts >= LEAST_PROMPTS else None, captured.alpha)
    return _said(captured, length, rulings, *_ruling(length, rulings))


def _ruling(length: AcceptanceLength | None, rulings: Sequence[Ruled]) -> tuple[Outcome, str]:
    """Return the outcome and the reason for it."""
    gates = [one.gate for one in rulings]
    missed = [one.gate for one in rulings if one.ruling is Ruling.MISSED]
    if missed:
        return Outcome.FAIL, f"below {missed[0]}"
    if any(one.ruling is Ruling.OPEN for one in rulings):
        open_ = next(one.gate for one in rulings if one.ruling is Ruling.OPEN)
        return Outcome.NOT_DECIDED, f"{_why_open(length, open_)} {open_}"
    return Outcome.PASS, f"above {' and '.join(map(str, gates))}" if gates else "no gate asks for more"


def _why_open(length: AcceptanceLength | None, gate: Gate) -> str:
    if length is None or not length.prompts:
        return "no answer shows what each of its steps brought, and a gate asks for it:"
    if length.prompts < LEAST_PROMPTS:
        return f"{length.prompts} prompts are too few to decide on"
    if length.at_most(PROVEN_ERROR) < (gate.at_least or 0.0):
        return "a fail has to be surer, but the limits over prompts lie below"
    return "the limits over prompts hold"


def _settle(length: AcceptanceLength | None) -> str:
    if length is None or not length.prompts:
        return "a server that reports the verify steps of each answer"
    if length.prompts < LEAST_PROMPTS:
        return f"{LEAST_PROMPTS} prompts or more, as standard depth sends"
    return f"more prompts, or a threshold of at most {length.at_least(PROVEN_ERROR):.2f}"


def shown(length: AcceptanceLength | None) -> str:
    """Return the length with its limits, as in ``3.08 [2.91, 3.26] tokens a step``."""
    if length is None:
        return "unknown tokens a step"
    known = length.standard_error is not None
    limits = f" [{length.at_least(PROVEN_ERROR):.2f}, {length.at_most(PROVEN_ERROR):.2f}]" if known else ""
    return f"{length.tokens:.2f}{limits} tokens a step"


def _said(captured: Captured, length: AcceptanceLength | None, rulings: Sequence[Ruled], outcome: Outcome, why: str) -> Verdict:
    over = 0 if length is None else length.prompts
    drafted = captured.pair.variant.draft.tokens
    limits = f"limits: 95 %, Student's t over {over} prompts; {drafted} draft tokens a step"
    lines = [*map(str, rulings), limits, *_counted(captured.speculative.counters)]
    proven = [one.low for one in rulings if one.ruling is Ruling.PROVEN]
    return say(
        captured,
        outcome,
        f"{shown(length)}: {why}",
        short=lines,
        evidence=lines,
        rules_out=f"fewer than {min(proven):.2f} tokens a step would have shown with probability 0.975" if proven else "",
        settle=_settle(length) if outcome is Outcome.NOT_DECIDED else "",
        cell=shown(length),
        figures=_figures(length),
    )


def _counted(counters: SpecCounters | None) -> list[str]:
    """Say what servers call the mean acceptance length: a drafter that often finds nothing has fewer tokens a step."""
    if counters is None or not counters.drafts:
        return []
    return [f"counted by the server: {counters.mean_acceptance_length:.2f} tokens a step that something was drafted for"]


def _figures(length: AcceptanceLength | None) -> dict[str, float]:
    if length is None:
        return {}
    found = {"acceptance_length": length.tokens, "prompts": float(length.prompts)}
    if length.standard_error is None:
        return found
    return {**found, "acceptance_length_low": length.at_least(PROVEN_ERROR), "acceptance_length_high": length.at_most(PROVEN_ERROR)}
