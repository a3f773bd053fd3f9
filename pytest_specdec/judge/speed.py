"""Speed: how much sooner the same tokens come, as a ratio whose interval includes what another boot would have changed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.liveness import casualty
from pytest_specdec.judge.measured import SPEEDUP, Change, measured
from pytest_specdec.judge.refusal import refusal
from pytest_specdec.judge.saying import say
from pytest_specdec.judge.speculating import speculating
from pytest_specdec.judge.speed_table import doubts, figures, further, method, table
from pytest_specdec.model.gate import Gate
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.measured import Measured
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.interval import Interval

__all__ = ["judge"]

ACCEPTANCE_LENGTH = "acceptance_length"


class Ruling(StrEnum):
    """What an interval says about a threshold."""

    PROVEN = "proven"
    MISSED = "missed"
    OPEN = "not decided"


def judge(captured: Captured) -> Verdict:
    """Return whether the pair is as fast as its gates ask.

    A gate fails only when the interval lies below it, is proven only when it lies above, each at the captured share of alpha (one-sided),
    and is not decided otherwise. Without a between-boot spread from this machine nothing is decided: one boot does not speak for the next.
    """
    return casualty(captured) or refusal(captured) or _measured(captured)


def _measured(captured: Captured) -> Verdict:
    found = measured(captured)
    if found is None:
        return say(captured, Outcome.INVALID, "no request has a streamed answer of two chunks or more from every arm, so nothing is timed")
    if captured.is_control:
        return _repeated(captured, found)
    return speculating(captured, rejecting=False) or _gated(captured, found)


def _repeated(captured: Captured, found: Measured) -> Verdict:
    """Judge the control: two boots of the baseline must not differ by more than boots do."""
    moved = found.change in {Change.FASTER, Change.SLOWER}
    headline = f"the baseline booted again is {found.change} than itself" if moved else "the baseline booted again is as fast as before"
    return _spoken(captured, found, Outcome.FAIL if moved else Outcome.PASS, headline)


def _gated(captured: Captured, found: Measured) -> Verdict:
    standing = _gates(captured)
    rulings = [(gate, _ruling(gate, found)) for gate in standing]
    said = {ruling for _, ruling in rulings}
    lines = [f"gate: {_threshold(gate)}: {ruling.value}" for gate, ruling in rulings]
    missed = [gate for gate, ruling in rulings if ruling is Ruling.MISSED]
    if missed:
        return _spoken(captured, found, Outcome.FAIL, f"{_opening(found)}: below {_threshold(missed[0])}", lines)
    if said == {Ruling.PROVEN}:
        return _spoken(captured, found, Outcome.PASS, f"{_opening(found)}: above {' and '.join(map(_threshold, standing))}", lines)
    return _spoken(captured, found, Outcome.NOT_DECIDED, f"{_opening(found)}: {_why_open(captured, found, standing)}", lines)


def _gates(captured: Captured) -> tuple[Gate, ...]:
    """Return the thresholds that stand; without any for the speedup, no slowdown at one client."""
    stated = tuple(gate for gate in captured.gates if gate.at_least is not None and gate.figure in {SPEEDUP, ACCEPTANCE_LENGTH})
    if captured.workload.concurrency > 1 or any(gate.figure == SPEEDUP for gate in stated):
        return stated
    return (Gate(figure=SPEEDUP, at_least=1.0, source="the floor at one client"), *stated)


def _ruling(gate: Gate, found: Measured) -> Ruling:
    interval = _interval(gate, found)
    if interval is None or gate.at_least is None:
        return Ruling.OPEN
    if interval.high < gate.at_least:
        return Ruling.MISSED
    return Ruling.PROVEN if interval.low >= gate.at_least else Ruling.OPEN


def _interval(gate: Gate, found: Measured) -> Interval | None:
    """Return the interval that may decide on ``gate``; None where there is none."""
    if gate.figure == ACCEPTANCE_LENGTH:
        return found.length.interval if found.length else None
    return found.estimate.interval if found.estimate and found.spread else None


def _threshold(gate: Gate) -> str:
    return f"{gate.figure.replace('_', ' ')} {gate.at_least:g} ({gate.source or 'no source given'})"


def _why_open(captured: Captured, found: Measured, standing: Sequence[Gate]) -> str:
    if not standing:
        return f"no threshold is given at {captured.workload.concurrency} clients"
    if found.estimate is None:
        return "one pass has no interval"
    if found.spread is None:
        return "the interval is of this run alone, the spread between boots is not known on this machine"
    return "the interval holds the threshold"


def _opening(found: Measured) -> str:
    return f"{found.shown}, {found.change.value}"


def _spoken(captured: Captured, found: Measured, outcome: Outcome, headline: str, lines: Sequence[str] = ()) -> Verdict:
    decided = outcome is Outcome.PASS and found.spread is not None and found.estimate is not None
    return say(
        captured,
        outcome,
        headline,
        short=(*lines[:2], method(found), *doubts(found)),
        evidence=(*table(found), *lines, method(found), *doubts(found), *further(captured, found)),
        rules_out=f"the speedup is {found.shown}: values outside would have shown at the judgement's share of alpha" if decided else "",
        settle=_settle(found) if outcome is Outcome.NOT_DECIDED else "",
        cell=found.shown,
        figures=figures(found),
    )


def _settle(found: Measured) -> str:
    if found.spread is None:
        return "a baseline file of this machine that has seen at least four boots of each arm"
    if found.estimate is None:
        return "at least two passes"
    return "more passes, or a threshold that stands further from what is measured"
