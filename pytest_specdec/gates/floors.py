"""Floors on the speedup: what 95 of 100 runs like those measured on a machine prove."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.gates.rulings import SPEED_ERROR
from pytest_specdec.model.baseline import LAST_RUNS, SPEEDUP, Gate
from pytest_specdec.model.promise import Speedup
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.boot_spread import RUN_BOOTS, boot_spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.model.verdict import Verdict

WIDEST, WIDEST_OVER_PASSES = 3.0, 1.5
"""Upper over lower 95 % limit of a run that a floor may be made of: with what boots may add, and over its passes alone."""
HEALTHY = 1.645
"""Standard deviations of a run under the typical one that 95 of 100 runs are above."""
NEAREST = 0.1
"""Nats under the typical run that every floor stands: no fewer, since passes vary too. What a floor proves is no more than that."""
FARTHEST = 0.55
"""Of the typical ratio: no floor is lower, however much runs vary. From half of it on a floor in a file could as well be none."""
NOTABLE = 0.02
"""Change of the typical ratio from which on it is given as the cause of a floor's move, and not what runs vary by."""
FIT_OUTCOMES = frozenset({Outcome.PASS, Outcome.NOT_DECIDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class GateChange:
    """A gate as the baseline file will have it."""

    gate: Gate
    move: str
    """How it moved, and why."""


def measure_floors(verdicts: Iterable[Verdict], stored_gates: tuple[Gate, ...], accepted: str = "") -> tuple[GateChange, ...]:
    """Return the new gate of each speed verdict fit for a floor.

    The verdict's log-ratio is added to those of the stored gate, and the floor follows the last ten, up or down.

    A failed verdict makes a floor only if a regression is ``accepted``, which is the reason for it, empty without
    one. The earlier runs are then dropped, since they show the speed before the regression.
    """
    outcomes = FIT_OUTCOMES | ({Outcome.FAIL} if accepted else set())
    speedups = ((verdict, speedup) for verdict, speedup in _select_speedups(verdicts) if verdict.outcome in outcomes)
    return tuple(_join_floor(verdict, speedup, stored_gates, accepted) for verdict, speedup in speedups if not _why_unfit(speedup))


def unfit_verdicts(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, str]]:
    """Yield each speed verdict unfit for a floor, with the reason.

    Only passed and undecided verdicts are considered.
    """
    for verdict, speedup in _select_speedups(verdicts):
        if verdict.outcome in FIT_OUTCOMES and (why := _why_unfit(speedup)):
            yield verdict, why


def _select_speedups(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, Speedup]]:
    return ((verdict, verdict.promise) for verdict in verdicts if isinstance(verdict.promise, Speedup))


def _why_unfit(speedup: Speedup) -> str:
    """Return the reason against a floor from this speedup, or nothing.

    A speedup is unfit if its times do not show the servers' speed, or if its confidence interval is too wide, either
    over the run's passes alone or with what boots may add: a floor computed from it would be too low to gate anything.
    """
    if speedup.unfit:
        return speedup.unfit
    for limits, widest, over in ((speedup.over_passes, WIDEST_OVER_PASSES, " over the passes alone"), (speedup.limits, WIDEST, "")):
        if limits is not None and limits.high > widest * limits.low:
            return f"{speedup.ratio:.2f}x [{limits.low:.2f}, {limits.high:.2f}]{over} is too wide for a floor"
    return ""


def _join_floor(verdict: Verdict, speedup: Speedup, stored_gates: tuple[Gate, ...], accepted: str) -> GateChange:
    """Return a gate's new floor, with the verdict's run added.

    After a failure that was accepted, the floor is computed from this run alone. The ratios between boots stay, since
    they describe the machine and not the variant. The gate states ``accepted``, the reason for a regression, if there
    is one and the floor is now lower, and otherwise the reason that the stored gate states.
    """
    cell = (SPEEDUP, verdict.pair, verdict.workload)
    stored = next((gate for gate in stored_gates if (gate.figure, gate.pair, gate.workload) == cell), None)
    previous = stored or Gate(figure=SPEEDUP)
    continued = previous if verdict.outcome is not Outcome.FAIL else Gate(figure=SPEEDUP)
    tokens = speedup.tokens_per_step
    gate = Gate(
        figure=SPEEDUP,
        pair=verdict.pair,
        workload=verdict.workload,
        log_ratios=_append_run(continued.log_ratios, math.log(speedup.ratio)),
        log_tokens_per_step=_append_run(continued.log_tokens_per_step, None if tokens is None else math.log(tokens)),
        boot_log_ratios=_append_run(previous.boot_log_ratios, speedup.boot_log_ratio),
    )
    floor = _compute_floor(gate)
    is_lower = previous.at_least is not None and floor < previous.at_least
    gate = replace(gate, at_least=floor, accepted_regression=accepted if accepted and is_lower else previous.accepted_regression)
    gate = replace(gate, reason=_describe_floor(gate, floor, previous))
    return GateChange(gate=gate, move=_describe_change(previous, gate))


def _append_run(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    """Return the last ``LAST_RUNS`` values, with ``value`` as the newest.

    A value of None is not added. Older runs are dropped, since a machine changes with time.
    """
    return (*values, *([] if value is None else [round(value, 6)]))[-LAST_RUNS:]


def _compute_floor(gate: Gate) -> float:
    """Return the floor on the speedup from a gate's runs.

    It lies below their median ratio by the nats of :func:`_margin_below_typical`, but is at least ``FARTHEST`` of the
    median.
    """
    typical = math.exp(statistics.median(gate.log_ratios))
    return round(max(typical * math.exp(-_margin_below_typical(gate)), typical * FARTHEST), 3)


def _margin_below_typical(gate: Gate) -> float:
    """Return the floor's distance below the median run, in nats.

    It is chosen so that 95 of 100 runs like those measured prove the floor: their lower confidence limit is above it.

    Such a run lies up to 1.645 s sqrt(1 + pi / (2 n)) under the median of n runs, with s^2 = 1.5 sigma^2 over its
    three boots. Its lower limit is another half-width of its confidence interval below. sigma, the spread between
    boots, is estimated from the two boots of the baseline in each run and from the runs themselves. The half-width is
    taken over all values of sigma that these leave open: a first run may be a lucky one, and so leaves a low floor.
    """
    runs, spread = len(gate.log_ratios), boot_spread(gate.boot_log_ratios, runs=gate.log_ratios)
    unlucky = HEALTHY * math.sqrt(RUN_BOOTS * (1.0 + math.pi / (2.0 * runs))) * spread.sd
    return max(NEAREST, unlucky + spread.half_width(SPEED_ERROR, RUN_BOOTS))


def _describe_floor(gate: Gate, floor: float, previous: Gate) -> str:
    """Return a sentence on a floor's computation and its last move."""
    runs, typical = len(gate.log_ratios), math.exp(statistics.median(gate.log_ratios))
    count = f"{runs} run{'s' * (runs > 1)}{': add more' * (runs == 1)}"
    spread = boot_spread(gate.boot_log_ratios, runs=gate.log_ratios).sd
    move = "" if previous.at_least is None else _describe_move(previous, previous.at_least, gate, floor)
    margin = 1.0 - floor / typical
    return f"median {typical:.2f}x over {count}, less {margin:.1%}, which healthy runs prove where boots vary by {spread:.1%}{move}"


def _describe_move(stored: Gate, stored_floor: float, gate: Gate, floor: float) -> str:
    """Return a clause on the direction and cause of a floor's move.

    The cause is the median of the runs if that moved the same way by ``NOTABLE`` or more, otherwise the spread of the
    runs. Empty if the floor did not move, or has no earlier runs.
    """
    if stored_floor == floor or not stored.log_ratios:
        return ""
    direction = "down" if floor < stored_floor else "up"
    stored_median, new_median = statistics.median(stored.log_ratios), statistics.median(gate.log_ratios)
    if abs(new_median - stored_median) >= NOTABLE and (new_median > stored_median) == (direction == "up"):
        cause = f"the typical run went from {math.exp(stored_median):.2f}x to {math.exp(new_median):.2f}x"
    else:
        cause = f"{len(gate.log_ratios)} runs show {'more' if direction == 'down' else 'less'} spread than was reckoned with"
    return f"; {direction} from {stored_floor:g}, as {cause}"


def _describe_change(previous: Gate, gate: Gate) -> str:
    """Return a line with a gate's old and new floor.

    If the floor moved, the reason of an accepted regression is added.
    """
    floors = [f"{version.at_least:g}" for version in (previous, gate) if version.at_least is not None]
    accepted = f"; accepted: {gate.accepted_regression}" if gate.accepted_regression and floors[0] != floors[-1] else ""
    return f"{gate.figure} {gate.pair} {gate.workload}: at_least {' -> '.join(floors)} ({gate.reason}){accepted}"
