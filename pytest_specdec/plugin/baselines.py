"""Baseline files: the gates that they hold for a machine, and how a run's speed gets into them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.files import baselines as stored
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.baseline import BOOT_SD, SPEEDUP, STATED_BOOTS, Gate
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.verdict import Verdict

__all__ = ["Update", "candidate", "check", "gates", "keep", "measured", "notes", "path", "update"]

BOOT_LOG_RATIO = "boot_log_ratio"
"""The figure of a speed verdict that tells how far the baseline's two boots lie apart."""
TOKENS_PER_STEP = "tokens_per_step"
WHOLE = "answers_in_one_burst"
"""The figure of a speed verdict that compares whole requests."""
SPREADS = 4.0
"""A floor stands so many standard deviations of a run under the typical one: 14 % after a first run, later on what the machine shows.

Where boots vary by 2 %, 93 of 100 healthy runs prove such a floor, and 73 one that stands three of them away (``benchmarks.speed_gate``).
"""
_MAD_TO_SD = 1.4826
"""Of normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A baseline file that was written, and how its floors moved."""

    path: Path
    moves: tuple[str, ...]
    """One line per gate, from the old floor to the new one."""


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
    return (f"no baseline of this machine ({environment.machine}): those of {config} are of {', '.join(machines)} and not comparable",)


def check(folder: Path, config: str) -> None:
    """Read every baseline file of ``config``. Raises ConfigError or RunError, with file and line, for one that cannot be used."""
    stored.other_machines(folder / config, "")


def keep(folder: Path, config: str, environment: Environment, kept: Path) -> None:
    """Copy this machine's baseline file into ``kept``: a replay is judged by what the run was, whatever the file says by then."""
    source, copy = path(folder, config, environment), path(kept, config, environment)
    if source.is_file():
        atomic_write(copy, source.read_text(encoding="utf-8"))
    else:
        copy.unlink(missing_ok=True)


def measured(verdicts: Iterable[Verdict], known: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """Return a gate per speed verdict that did not fail: its log-ratios join those known, and the floor follows all of them.

    A verdict on whole requests is left out: it is of another quantity than one on decoding.
    """
    taken = {Outcome.PASS, Outcome.NOT_DECIDED}
    timed = (v for v in verdicts if v.family is Family.SPEED and v.outcome in taken and SPEEDUP in v.figures)
    return tuple(_joined(verdict, known) for verdict in timed if WHOLE not in verdict.figures)


def _joined(verdict: Verdict, known: tuple[Gate, ...]) -> Gate:
    before = _same(known, Gate(figure=SPEEDUP, pair=verdict.pair, workload=verdict.workload))
    ratios = (*(before.log_ratios if before else ()), round(math.log(verdict.figures[SPEEDUP]), 6))
    apart, tokens = verdict.figures.get(BOOT_LOG_RATIO), verdict.figures.get(TOKENS_PER_STEP)
    return Gate(
        figure=SPEEDUP,
        pair=verdict.pair,
        workload=verdict.workload,
        at_least=round(math.exp(statistics.median(ratios) - SPREADS * _spread(ratios)), 3),
        log_ratios=ratios,
        log_tokens_per_step=(
            *(before.log_tokens_per_step if before else ()),
            *([] if tokens is None else [round(math.log(tokens), 6)]),
        ),
        boot_log_ratios=(*(before.boot_log_ratios if before else ()), *([] if apart is None else [round(apart, 6)])),
    )


def _spread(log_ratios: Sequence[float]) -> float:
    """Return the standard deviation of a run's log-ratio around the typical one.

    A run's three boots are stated to make 1.5 boot_sd^2 of its variance, which counts for four degrees of freedom, as in stats/speedup.py.
    The runs that were measured count for the others, by their median absolute deviation, times 1.4826 to be a standard one: a single
    lucky or unlucky run moves neither it nor the median.
    """
    centre = statistics.median(log_ratios)
    seen = _MAD_TO_SD * statistics.median(abs(ratio - centre) for ratio in log_ratios)
    more = len(log_ratios) - 1
    return math.sqrt((STATED_BOOTS * 1.5 * BOOT_SD**2 + more * seen**2) / (STATED_BOOTS + more))


def _same(gates: Iterable[Gate], wanted: Gate) -> Gate | None:
    about = (wanted.figure, wanted.pair, wanted.workload)
    return next((gate for gate in gates if (gate.figure, gate.pair, gate.workload) == about), None)


def update(folder: Path, config: str, environment: Environment, verdicts: Iterable[Verdict]) -> Update | None:
    """Write this run's speed into the baseline file; None when nothing was timed."""
    target = path(folder, config, environment)
    known = stored.read(target)
    new = measured(verdicts, known)
    if not new:
        return None
    stored.write(target, environment, new)
    return Update(path=target, moves=tuple(_move(_same(known, gate), gate) for gate in new))


def _move(before: Gate | None, now: Gate) -> str:
    floors = [f"{gate.at_least:g}" for gate in (before, now) if gate is not None and gate.at_least is not None]
    runs, typical = len(now.log_ratios), math.exp(statistics.median(now.log_ratios))
    come = f"median {typical:.2f}x over {runs} run{'s' * (runs > 1)}, a run varies by {_spread(now.log_ratios):.1%}"
    return f"{now.figure} {now.pair} {now.workload}: at_least {' -> '.join(floors)} ({come})"


def candidate(folder: Path, environment: Environment, verdicts: Iterable[Verdict]) -> Path | None:
    """Write what the baseline file would be as ``baseline-candidate.yaml`` into ``folder``; None when nothing was timed."""
    new = measured(verdicts, ())
    if not new:
        return None
    written = folder / f"{environment.machine}.yaml"
    stored.write(written, environment, new)
    return written.replace(folder / "baseline-candidate.yaml")
