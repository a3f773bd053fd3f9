"""Servers that must stay green: healthy ones, and lawful variations of the reference engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.sensitivity.suite_run import DRAFT, NGRAM, SuiteRun
from specdec_reference.lawful import VARIATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.sensitivity.suite_run import Judged

__all__ = ["HEALTHY", "GreenRun", "alarms", "healthy", "lawful", "runs"]

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class GreenRun:
    """One variant that must be green, under one seed."""

    name: str
    """``healthy`` with the way of drafting, or the lawful variation."""
    seed: int
    depth: str
    alarms: tuple[str, ...]
    """A line per family that turned red."""


def alarms(judged: Sequence[Judged]) -> tuple[str, ...]:
    """Return a line per red judgement, and per judgement that could not be made."""
    wrong = [one for one in judged if one.red or one.outcome in {"invalid", "error", "failed"}]
    return tuple(f"{one.family} of {one.workload}: {one.outcome}: {one.headline}" for one in wrong)


def healthy(seed: int, depth: str = "smoke") -> SuiteRun:
    """Return a run of the two healthy variants."""
    return SuiteRun(name=f"{HEALTHY}-{depth}-{seed}", variants={"draft-k3": DRAFT, "ngram-k3": NGRAM}, seed=seed, depth=depth)


def lawful(seed: int, depth: str, only: Sequence[str] = ()) -> Iterator[SuiteRun]:
    """Yield runs of the lawful variations: those of the speculating arm share one, one of both arms has its own."""
    chosen = {name: one for name, one in VARIATIONS.items() if not only or name in only}
    arm = {name: {**DRAFT, "variation": name} for name, one in chosen.items() if not one.engine}
    if arm:
        yield SuiteRun(name=f"lawful-{depth}-{seed}", variants=arm, seed=seed, depth=depth)
    for name, one in chosen.items():
        if one.engine:
            yield SuiteRun(name=f"{name}-{depth}-{seed}", variants={name: DRAFT}, seed=seed, depth=depth, engine=one.engine)


def runs(run: SuiteRun, folder: Path) -> Iterator[GreenRun]:
    """Capture ``run`` unless it was, and yield what its variants came to."""
    if not (folder / run.name / "run.json").exists():
        run.capture(folder)
    kind = f"{HEALTHY}, " if run.name.startswith(HEALTHY) else "lawful, "
    for name, judged in run.judged(folder).items():
        yield GreenRun(name=kind + name, seed=run.seed, depth=run.depth, alarms=alarms(judged))
