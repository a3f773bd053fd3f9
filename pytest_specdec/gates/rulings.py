"""Speed gates: rulings on a threshold from the confidence limits of a measured figure.

The two errors have different chances. A gate wrongly met is no false alarm: it has the usual 2.5 %, and for speeds less, since how boots
(server starts) vary is known only in part. A gate wrongly missed is a false alarm: it has the judgement's share of the false-alarm budget.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.model.baseline import LAST_RUNS, MARGIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.stats.speedup import Estimate

PROVEN_ERROR = 0.025
"""Chance, one-sided, of a threshold that is called proven and not reached."""
SPEED_ERROR = 0.0075
"""The same for a speedup, which keeps fewer than 1 % wrong where boots vary by 0 to 10 % (``benchmarks.speed_gate``)."""


class ConfidenceLimits(Protocol):
    """A measured figure of which any one-sided limit can be asked."""

    def at_least(self, error: float) -> float:
        """Return the lower confidence limit.

        The true figure is below it with probability ``error``.
        """

    def at_most(self, error: float) -> float:
        """Return the upper confidence limit.

        The true figure is above it with probability ``error``.
        """


class GateRuling(StrEnum):
    """Rulings on a gate."""

    PROVEN = "met"
    MISSED = "missed"
    OPEN = "not decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledGate:
    """A gate and its ruling, with the confidence limits behind it."""

    gate: Gate
    ruling: GateRuling
    low: float
    """The lower limit, for proving it; 0 if nothing was measured."""
    high: float
    """The upper limit, for missing it: of the comparison with earlier runs if the gate has any. Infinity if nothing was measured."""
    alpha: float
    """Chance of a false fail."""
    error: float = PROVEN_ERROR
    """Chance that it is proven and not reached."""
    expected: str = ""
    """The least speed expected by the earlier runs, in words; empty without any, or if nothing was measured."""
    expected_speed: float | None = None
    """The same as a number; None where that is empty."""

    @property
    def least(self) -> float:
        """The value that the gate is missed below.

        For a gate with earlier runs it is the speed that they make expected: only a comparison with them can miss it. For any other it is
        the threshold; 0 for a gate without one: on stored lengths, or with an upper limit alone.
        """
        return (self.gate.at_least or 0.0) if self.expected_speed is None else self.expected_speed

    @property
    def threshold(self) -> str:
        """The gate in words.

        If it comes from a baseline file, the speed expected of it is added.
        """
        return f"{self.gate}, {self.expected}" if self.expected else str(self.gate)

    def __str__(self) -> str:
        """Return the ruling with the confidence limits behind it.

        They are the lower limit for a proven gate, the upper one for a missed gate, and both for an open gate, but none
        if nothing was measured.
        """
        # Each limit has the confidence of its own error: of a false proof, and of a false fail.
        low = f"{self.low:.2f} or more at {_confidence(self.error)} confidence"
        high = f"{self.high:.2f} or less at {_confidence(self.alpha)}"
        if self.expected:  # below this speed a gate with earlier runs may be missed
            high = f"{high}, {self.expected}"
        ruling = f"gate: {self.gate}: {self.ruling.value}"
        if self.ruling is GateRuling.PROVEN:
            return f"{ruling}: {low}"
        if self.ruling is GateRuling.MISSED:
            return f"{ruling}: {high}"
        was_measured = self.low != 0.0
        return f"{ruling}: {low}, {high}" if was_measured else ruling


def gates_on(gates: Iterable[Gate], figure: str) -> tuple[Gate, ...]:
    """Return the gates on ``figure`` with a threshold to rule on.

    Gates of golden files, other projects' published lengths, are left out, since those count only the steps with a draft.
    """
    return tuple(gate for gate in gates if gate.figure == figure and gate.at_least is not None and gate.golden is None)


def rule_gates(gates: Sequence[Gate], limits: ConfidenceLimits | None, alpha: float) -> tuple[RuledGate, ...]:
    """Return the ruling on every gate by its figure's confidence limits.

    A gate is missed if the upper limit is below its threshold, and proven if the lower limit reaches it. ``alpha`` is
    the chance of a false fail. All gates are open if ``limits`` is None, since nothing was measured.
    """
    low, high = (0.0, math.inf) if limits is None else (limits.at_least(PROVEN_ERROR), limits.at_most(alpha))
    return tuple(RuledGate(gate=gate, ruling=_ruling(gate, low, high), low=low, high=high, alpha=alpha) for gate in gates)


def rule_speeds(gates: Sequence[Gate], estimate: Estimate | None, alpha: float) -> tuple[RuledGate, ...]:
    """Return the ruling on every gate on the speedup.

    All gates are open if ``estimate`` is None. ``alpha`` is the chance of a false fail over all of them: it is halved
    if there are both floors from a config and from a baseline file, since each kind is missed by a test of its own.

    A gate of a config is proven or missed by its threshold. A gate of a baseline file is proven by its threshold, the floor. That stands
    well below the gate's earlier runs, so that the gate is missed by a comparison with these.
    """
    kinds = {bool(gate.log_ratios) for gate in gates}  # only gates of a baseline file have earlier runs
    alpha /= max(1, len(kinds))
    if estimate is None:
        return rule_gates(gates, None, alpha)
    return tuple(_rule_speed(gate, estimate, alpha) for gate in gates)


def _rule_speed(gate: Gate, estimate: Estimate, alpha: float) -> RuledGate:
    """Return the ruling on one gate on the speedup.

    Without earlier runs it is missed if the upper limit is below its threshold. With earlier runs it is missed by two comparisons together.
    A further run like them would be this slow with a chance of less than ``alpha``. And this run is slower than the expected speed, 5 %
    under their median, with the error SPEED_ERROR: a small loss misses no gate, however certain. ``high`` of the result is then the limit
    of the first comparison. A gate that is not missed is proven if the lower limit reaches its threshold, and else open.
    """
    low, runs = estimate.at_least(SPEED_ERROR), gate.log_ratios[-LAST_RUNS:]
    if not runs:  # a floor of a config
        high = estimate.at_most(alpha)
        return RuledGate(gate=gate, ruling=_ruling(gate, low, high), low=low, high=high, alpha=alpha, error=SPEED_ERROR)
    # The same estimate, wider by the uncertainty of the earlier runs' median.
    against_runs, typical = estimate.against_median(len(runs)), math.exp(statistics.median(runs))
    high, expected_speed = against_runs.at_most(alpha), typical * math.exp(-MARGIN)
    is_unlike_runs = high < typical
    is_notably_slower = against_runs.at_most(SPEED_ERROR) < expected_speed
    expected = f"{expected_speed:.2f} expected: 5 % under the typical {typical:.2f}x of {len(runs)} run{'s' * (len(runs) > 1)}"
    by_threshold = _ruling(gate, low, math.inf)  # infinity: the threshold may prove the gate, but not miss it
    ruling = GateRuling.MISSED if is_unlike_runs and is_notably_slower else by_threshold
    return RuledGate(
        gate=gate, ruling=ruling, low=low, high=high, alpha=alpha, error=SPEED_ERROR, expected=expected, expected_speed=expected_speed
    )


def _ruling(gate: Gate, low: float, high: float) -> GateRuling:
    """Return the ruling on a threshold by the lower and upper confidence limits.

    It is missed if ``high`` is below the threshold, proven if ``low`` reaches it, and else open.
    """
    threshold = gate.at_least or 0.0
    if high < threshold:
        return GateRuling.MISSED
    return GateRuling.PROVEN if low >= threshold else GateRuling.OPEN


def _confidence(error: float) -> str:
    return f"{100.0 * (1.0 - error):.5g}%"
