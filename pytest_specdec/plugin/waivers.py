"""Waivers: what a known failure makes of a test's outcome, and why a waiver does not hold.

A waiver is a config's statement: one judgement (family, workload, variant) fails by a certain bug, with certain words, until some day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date

    from pytest_specdec.config.config import Waiver
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Family
    from pytest_specdec.report.run import JudgementResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Waived:
    """A test's outcome, in view of the waivers."""

    result: PytestOutcome
    waiver: str = ""
    """The bug, owner and last day of the waiver that speaks of the judgement; empty without one."""
    note: str = ""
    """Why the waiver does not hold; empty where it does."""


def apply_waivers(waivers: Iterable[Waiver], verdict: Verdict, result: PytestOutcome, *, nodeid: str, depth: Depth, day: date) -> Waived:
    """Return the outcome of ``verdict`` in the test ``nodeid``, in view of the waivers.

    ``result`` is the outcome without waivers. A waiver has expired if its last day is before ``day``. The first waiver of the judgement
    counts. A failure of the engine that it expects is WAIVED; any other stays, with a note why. A pass under a waiver fails, since the
    waiver is no longer needed. All other results stay.
    """
    judgement = (verdict.family, verdict.workload, verdict.pair)
    waiver = next((candidate for candidate in waivers if _covers(candidate, judgement, nodeid)), None)
    if waiver is None:
        return Waived(result=result)
    # A speed that nothing decided on passes its test without a verdict of PASS, and a PASS fails if a required feature is refused.
    is_pass = result is PytestOutcome.PASSED and verdict.outcome is Outcome.PASS
    is_fault_of_engine = result is PytestOutcome.FAILED and verdict.red
    if is_pass and depth is not Depth.SMOKE:  # at smoke depth so few requests are sent that a pass does not show the bug to be gone
        note = f"this waiver is no longer needed: remove it ({waiver.source}, {waiver.bug})"
        return Waived(result=PytestOutcome.FAILED, waiver=str(waiver), note=note)
    if is_fault_of_engine:
        note = _why_void(waiver, verdict, day)
        return Waived(result=PytestOutcome.FAILED if note else PytestOutcome.WAIVED, waiver=str(waiver), note=note)
    return Waived(result=result, waiver=str(waiver))


def _covers(waiver: Waiver, judgement: tuple[Family, str, str], nodeid: str) -> bool:
    """Return True if a waiver covers a judgement: its family, workload and pair, in the test ``nodeid``."""
    return (waiver.family, waiver.workload, waiver.variant) == judgement and waiver.test in nodeid


def _why_void(waiver: Waiver, verdict: Verdict, day: date) -> str:
    """Return the reason why the waiver does not apply; empty if it does.

    It may have expired. Or the failure, or another one that the headline adds (``FAILURE; also OTHER, OTHER``), lacks the words that the
    waiver expects. Those of the failure may be in the name of the bug too, which the verdict may have.
    """
    first, also, others = verdict.headline.partition("; also ")
    if day > waiver.expires:
        return f"the waiver of {waiver.bug} expired on {waiver.expires} ({waiver.source}); ask {waiver.owner}"
    if waiver.words not in f"{verdict.names} {first}":  # names: the bug that the verdict names, by its first failure
        return f"not the failure that the waiver of {waiver.bug} expects, which says {waiver.words!r} ({waiver.source})"
    if also and not all(waiver.words in other for other in others.split(", ")):
        return f"not only the failure that the waiver of {waiver.bug} expects: also {others} ({waiver.source})"
    return ""


def unused_lines(waivers: Iterable[Waiver], judgements: Iterable[JudgementResult]) -> Iterator[str]:
    """Yield a note for each waiver whose judgement was not made in this run."""
    judged = {((judgement.family, judgement.workload, judgement.pair), judgement.nodeid) for judgement in judgements}
    for waiver in waivers:
        if not any(_covers(waiver, judgement, nodeid) for judgement, nodeid in judged):
            place = f"{waiver.workload} on {waiver.variant}" + (f" in {waiver.test}" if waiver.test else "")
            yield f"waiver not used: {waiver.source}: nothing judged {waiver.family.value} of {place}"
