"""Judging: the outcomes of one simulated run by the shipped judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.worlds.numerics import WORLDS
from benchmarks.worlds.results import CONTROL, ERROR, LETTERS
from benchmarks.worlds.run import Run
from benchmarks.worlds.server import Fault
from pytest_specdec.judge.registry import judge_of
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured

__all__ = ["Job", "judged", "outcomes"]

_NO_CONTROL = frozenset({Outcome.FAIL, Outcome.INVALID})


def judged(captured: Captured) -> tuple[str, str]:
    """Return the letter of the outcome and the headline, the control being judged first as a run does."""
    judge = judge_of(FAMILIES[captured.family])
    try:
        control = judge(captured.as_control()) if captured.workload.scored else None
        verdict = judge(captured)
    except Exception as error:  # noqa: BLE001 - a judge that raises is a result
        return ERROR, f"{type(error).__name__}: {error}"
    if control is not None and control.outcome in _NO_CONTROL:
        return CONTROL, f"{control.outcome}: {control.headline} (variant: {verdict.outcome})"
    return LETTERS[verdict.outcome], verdict.headline


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
    return [(cell, *judged(simulated.captured(cell))) for cell in job.cells]
