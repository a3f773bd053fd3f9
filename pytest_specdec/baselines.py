"""Baseline files: the gates that they hold for a machine, and how a run's speed gets into them."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from pytest_specdec.files import gates as stored
from pytest_specdec.model.gate import Gate
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_specdec.model.environment import Environment
    from pytest_specdec.model.verdict import Verdict

__all__ = ["FLOOR", "candidate", "gates", "measured", "notes", "path", "update"]

SPEEDUP = "speedup"
WHOLE = "answers_in_one_burst"
"""The figure of a speed verdict that compares whole requests."""
FLOOR = 0.9
"""A measured floor is so much of the typical speedup: noise of 5 % then rarely decides (facts: thresholds stand 10 % under it)."""
SPREAD_FROM = 4
"""Pairs of boots from which their spread is believed."""


def path(folder: Path, config: str, environment: Environment) -> Path:
    """Return the baseline file of this config and machine."""
    return folder / config / f"{environment.machine}.yaml"


def gates(folder: Path, config: str, environment: Environment) -> tuple[Gate, ...]:
    """Return the gates of this machine's baseline file; () without one."""
    return stored.read(path(folder, config, environment))


def notes(folder: Path, config: str, environment: Environment | None) -> tuple[str, ...]:
    """Return a sentence when this config has baseline files, none of them of this machine."""
    if environment is None or path(folder, config, environment).is_file():
        return ()
    machines = sorted({str(gate.machine) for gate in stored.other_machines(folder / config, environment.machine)})
    if not machines:
        return ()
    return (f"not comparable: this machine is {environment.machine}, the baselines of {config} are of {', '.join(machines)}",)


def measured(verdicts: Iterable[Verdict], known: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """Return a gate per speed verdict that did not fail: its log-ratio joins those known, and its floor never comes down.

    A verdict on whole requests is left out: it is of another quantity than one on decoding.
    """
    taken = {Outcome.PASS, Outcome.NOT_DECIDED}
    timed = (v for v in verdicts if v.family is Family.SPEED and v.outcome in taken and SPEEDUP in v.figures)
    return tuple(_joined(verdict, known) for verdict in timed if WHOLE not in verdict.figures)


def _joined(verdict: Verdict, known: tuple[Gate, ...]) -> Gate:
    about = (SPEEDUP, verdict.pair, verdict.workload)
    before = next((gate for gate in known if (gate.figure, gate.pair, gate.workload) == about), None)
    ratios = (*(before.log_ratios if before else ()), round(math.log(verdict.figures[SPEEDUP]), 6))
    floor = round(FLOOR * math.exp(statistics.fmean(ratios)), 3)
    return Gate(
        figure=SPEEDUP,
        pair=verdict.pair,
        workload=verdict.workload,
        at_least=max(floor, (before.at_least or 0.0) if before else 0.0),
        log_ratios=ratios,
        between_boot_sd=round(statistics.stdev(ratios), 6) if len(ratios) >= SPREAD_FROM else None,
    )


def update(folder: Path, config: str, environment: Environment, verdicts: Iterable[Verdict]) -> Path | None:
    """Write this run's speed into the baseline file; return its path, None when nothing was timed."""
    target = path(folder, config, environment)
    found = measured(verdicts, stored.read(target))
    if not found:
        return None
    stored.write(target, environment, found)
    return target


def candidate(folder: Path, environment: Environment, verdicts: Iterable[Verdict]) -> Path | None:
    """Write what the baseline file would be as ``baseline-candidate.yaml`` into ``folder``; None when nothing was timed."""
    found = measured(verdicts, ())
    if not found:
        return None
    written = folder / f"{environment.machine}.yaml"
    stored.write(written, environment, found)
    return written.replace(folder / "baseline-candidate.yaml")
