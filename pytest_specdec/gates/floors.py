"""Floors on the speedup: what 95 of 100 runs like those measured on a machine prove.

A gate of a baseline file has the log-ratios of up to ten runs, each the natural log of the speedup: a difference of 0.01 nats is about 1 %.
The typical run is their median. A boot is one start of a server: boots of the same server differ in speed. A run times one boot of the
variant and two of the baseline, whose log-ratio shows how much. A regression is accepted by an option that states the reason.
"""

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
HEALTHY_SDS = 1.645
"""Standard deviations below the typical run: 95 of 100 runs are above that."""
LEAST_MARGIN = 0.1
"""The smallest distance of a floor below the typical run, in nats: passes vary too, also where boots do not."""
LOWEST_SHARE = 0.55
"""No floor is lower than this share of the typical ratio, however much runs vary: a file with a floor below half of it is refused."""
NOTABLE_CHANGE = 0.02
"""Nats by which the typical run has to change to be given as the cause of a floor's move; otherwise the spread of the runs is."""
ACCEPT = '--specdec-update-baselines --specdec-accept-regression "why"'
"""The options that take a regression into the file, as in a message."""
FIT_OUTCOMES = frozenset({Outcome.PASS, Outcome.NOT_DECIDED})
"""Outcomes of runs that make a floor: a failed one would lower the gate that it missed, and needs an accepted regression."""


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
    return tuple(
        _renew_gate(verdict, speedup, stored_gates, accepted)
        for verdict, speedup in _select_speedups(verdicts, accepted)
        if not _reason_against_floor(speedup)
    )


def unfit_verdicts(verdicts: Iterable[Verdict], accepted: str) -> Iterator[tuple[Verdict, str]]:
    """Yield each speed verdict unfit for a floor, with the reason.

    Failed ones are considered only if a regression is accepted: ``accepted`` is the reason for that, empty without one.
    """
    for verdict, speedup in _select_speedups(verdicts, accepted):
        if reason := _reason_against_floor(speedup):
            yield verdict, reason


def _select_speedups(verdicts: Iterable[Verdict], accepted: str) -> Iterator[tuple[Verdict, Speedup]]:
    """Yield the verdicts that may bring a floor about, with their speedups.

    They passed or are not decided, or failed while a regression is accepted.
    """
    outcomes = FIT_OUTCOMES | ({Outcome.FAIL} if accepted else set())
    for verdict in verdicts:
        if isinstance(verdict.promise, Speedup) and verdict.outcome in outcomes:
            yield verdict, verdict.promise


def _reason_against_floor(speedup: Speedup) -> str:
    """Return the reason against a floor from a speedup; empty without one.

    A speedup is unfit if its times do not show the servers' speed, or if its confidence interval is too wide: its upper limit is over 1.5
    times the lower by the run's passes alone, or over 3 times with what boots may add. A floor computed from it would be too low to gate
    anything.
    """
    if speedup.unfit:
        return speedup.unfit
    for limits, widest, over in ((speedup.over_passes, WIDEST_OVER_PASSES, " over the passes alone"), (speedup.limits, WIDEST, "")):
        if limits is not None and limits.high > widest * limits.low:
            return f"{speedup.ratio:.2f}x [{limits.low:.2f}, {limits.high:.2f}]{over} is too wide for a floor"
    return ""


def _renew_gate(verdict: Verdict, speedup: Speedup, stored_gates: tuple[Gate, ...], accepted: str) -> GateChange:
    """Return a gate with the verdict's run added, and its new floor.

    ``accepted`` is the reason for a regression, empty without one. The gate states it if the floor is lower than the stored one, and
    otherwise the reason that the stored gate states. An empty gate stands in for one that is not stored.
    """
    cell = (SPEEDUP, verdict.pair, verdict.workload)
    previous = next((gate for gate in stored_gates if (gate.figure, gate.pair, gate.workload) == cell), Gate(figure=SPEEDUP))
    gate = _add_run(previous, verdict, speedup)
    floor = _compute_floor(gate)
    is_lower = previous.at_least is not None and floor < previous.at_least
    regression = accepted if accepted and is_lower else previous.accepted_regression
    reason = _describe_floor(gate, floor, previous)
    gate = replace(gate, at_least=floor, accepted_regression=regression, reason=reason)
    return GateChange(gate=gate, move=_describe_change(previous, gate))


def _add_run(previous: Gate, verdict: Verdict, speedup: Speedup) -> Gate:
    """Return a gate with the verdict's run added, without a floor.

    After a failure, which comes here only if it is accepted, the earlier runs are dropped. Their ratios between boots
    stay, since they describe the machine and not the variant.
    """
    continued = Gate(figure=SPEEDUP) if verdict.outcome is Outcome.FAIL else previous
    tokens = speedup.tokens_per_step
    return Gate(
        figure=SPEEDUP,
        pair=verdict.pair,
        workload=verdict.workload,
        log_ratios=_append_run(continued.log_ratios, math.log(speedup.ratio)),
        log_tokens_per_step=_append_run(continued.log_tokens_per_step, None if tokens is None else math.log(tokens)),
        boot_log_ratios=_append_run(previous.boot_log_ratios, speedup.boot_log_ratio),
    )


def _append_run(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    """Return the last ``LAST_RUNS`` values, with ``value`` as the newest.

    A value of None is not added. Older runs are dropped, since a machine changes with time.
    """
    return (*values, *([] if value is None else [round(value, 6)]))[-LAST_RUNS:]


def _compute_floor(gate: Gate) -> float:
    """Return the floor on the speedup from a gate's runs.

    It lies below their median ratio by the nats of :func:`_margin_below_typical`, but is at least 55 % of the median: a file with a floor
    below half of it is refused.
    """
    typical = math.exp(statistics.median(gate.log_ratios))
    return round(max(typical * math.exp(-_margin_below_typical(gate)), typical * LOWEST_SHARE), 3)


def _margin_below_typical(gate: Gate) -> float:
    """Return the floor's distance below the median run, in nats.

    95 of 100 runs like those measured then prove the floor: their lower confidence limit is above it. The distance has two parts. A run may
    lie below the median, and its lower limit lies below the run. It is never less than ``LEAST_MARGIN``.

    sigma is the standard deviation of the log speed from boot to boot, in ``spread`` as far as it is known. A run's log-ratio, of one boot
    to the mean of two, has the variance 1.5 sigma^2: the factor is RUN_BOOTS. The median of n runs has pi / (2 n) times a run's variance.
    """
    runs, spread = len(gate.log_ratios), boot_spread(gate.boot_log_ratios, runs=gate.log_ratios)
    variance_factor = RUN_BOOTS * (1.0 + math.pi / (2.0 * runs))  # of a run's distance from the median, over sigma^2
    run_below_median = HEALTHY_SDS * math.sqrt(variance_factor) * spread.sd
    limit_below_run = spread.half_width(SPEED_ERROR, RUN_BOOTS)  # wider after few runs, which leave sigma less certain
    return max(LEAST_MARGIN, run_below_median + limit_below_run)


def _describe_floor(gate: Gate, floor: float, previous: Gate) -> str:
    """Return a clause on a floor's computation and its move from ``previous``.

    It has the runs' median, the margin that is taken off it, and the deviation between boots that the margin allows for.
    """
    runs, typical = len(gate.log_ratios), math.exp(statistics.median(gate.log_ratios))
    advice = ": add more" if runs == 1 else ""  # one run has no spread
    count = f"{runs} run{'s' * (runs > 1)}{advice}"
    boot_sd = boot_spread(gate.boot_log_ratios, runs=gate.log_ratios).sd  # 0.01 nats are about 1 %
    move = "" if previous.at_least is None else _describe_move(previous, previous.at_least, gate, floor)
    margin = 1.0 - floor / typical
    return f"median {typical:.2f}x over {count}, less {margin:.1%}, which healthy runs prove where boots vary by {boot_sd:.1%}{move}"


def _describe_move(stored: Gate, stored_floor: float, gate: Gate, floor: float) -> str:
    """Return a clause on the direction and cause of a floor's move.

    The cause is the median of the runs if that moved the same way by ``NOTABLE_CHANGE`` or more, otherwise the spread
    of the runs. Empty if the floor did not move, or the stored gate has no runs.
    """
    if stored_floor == floor or not stored.log_ratios:
        return ""
    direction = "down" if floor < stored_floor else "up"
    stored_median, new_median = statistics.median(stored.log_ratios), statistics.median(gate.log_ratios)
    if abs(new_median - stored_median) >= NOTABLE_CHANGE and (new_median > stored_median) == (direction == "up"):
        cause = f"the typical run went from {math.exp(stored_median):.2f}x to {math.exp(new_median):.2f}x"
    else:
        cause = f"{len(gate.log_ratios)} runs show {'more' if direction == 'down' else 'less'} spread than was reckoned with"
    return f"; {direction} from {stored_floor:g}, as {cause}"


def _describe_change(previous: Gate, gate: Gate) -> str:
    """Return a line with a gate's old and new floor.

    ``gate`` has a floor. ``previous`` has none if the gate is new. If the floor moved, the reason of an accepted regression is added.
    """
    floors = [f"{version.at_least:g}" for version in (previous, gate) if version.at_least is not None]
    accepted = f"; accepted: {gate.accepted_regression}" if gate.accepted_regression and floors[0] != floors[-1] else ""
    return f"{gate.figure} {gate.pair} {gate.workload}: at_least {' -> '.join(floors)} ({gate.reason}){accepted}"
