"""Judging: the outcomes of one simulated run by the shipped judges."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.worlds.numerics import WORLDS
from benchmarks.worlds.results import AGAIN, CONTROL, ERROR, LETTERS
from benchmarks.worlds.run import CELLS, Run
from benchmarks.worlds.server import Fault
from pytest_specdec.judge.registry import judge_of
from pytest_specdec.judge.sampling import sensitivity
from pytest_specdec.model.families import COUNTED, FAMILIES
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict

__all__ = ["Job", "asked", "outcomes"]

_NO_CONTROL = frozenset({Outcome.FAIL, Outcome.INVALID})
_LEAKS = (0.2, 1.0)
"""Shares of leaked drafts that a passing sampling verdict is asked about. Fewer take less time, and can only make a run inconclusive."""


def asked(run: Run, cell: str) -> tuple[str, str]:
    """Return the letter of the outcome and the headline after what is open was asked again, as a run does (plugin/repeats.py)."""
    try:
        return _judge_in_rounds(run, cell)
    except Exception as error:  # noqa: BLE001 - a judge that raises is a result
        return ERROR, f"{type(error).__name__}: {error}"


def _judge_in_rounds(run: Run, cell: str) -> tuple[str, str]:
    captured, rounds = run.captured(cell), 0
    verdict = _judge(replace(captured, repeatable=True))
    while CELLS[cell].family in COUNTED and rounds < ROUNDS and verdict.outcome is Outcome.SUSPICIOUS:
        rounds += 1
        captured = run.captured(cell, rounds=rounds)
        verdict = _judge(replace(captured, repeatable=True))
    if verdict.outcome is Outcome.SUSPICIOUS:  # a run that cannot ask again leaves fewer counts open
        verdict = _judge(captured)
    control = _judge(captured.as_control()) if captured.workload.scored else None
    if control is not None and control.outcome in _NO_CONTROL:
        return CONTROL, f"{control.outcome}: {control.headline} (variant: {verdict.outcome})"
    letter = LETTERS[verdict.outcome]
    return (AGAIN if rounds and letter == LETTERS[Outcome.PASS] else letter), verdict.headline


def _judge(captured: Captured) -> Verdict:
    return judge_of(FAMILIES[captured.family])(captured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run and what of it is missing."""

    world: str
    run: int
    fault: str
    cells: tuple[str, ...]


def outcomes(job: Job) -> list[tuple[str, str, str]]:
    """Return cell, letter and headline of every judgement of ``job``."""
    simulated = Run(WORLDS[job.world], job.run, fault=Fault.parse(job.fault))
    sensitivity.LEAKS = _LEAKS
    gc.disable()  # looking for garbage meanwhile takes a tenth of the time
    try:
        return [(cell, *asked(simulated, cell)) for cell in job.cells]
    finally:
        gc.enable()
