"""Speed gates: rulings on a threshold from the confidence limits of a measured figure.

The two errors differ. A gate wrongly met is no false alarm, so the usual 2.5 % do, and for speeds fewer, since how boots vary is known
only in part. A wrong fail is one, and takes the judgement's share of the false-alarm budget.
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
        """Return what the true figure is below with probability ``error``."""

    def at_most(self, error: float) -> float:
        """Return what the true figure is above with probability ``error``."""


class GateRuling(StrEnum):
    """Rulings on a gate."""

    PROVEN = "met"
    MISSED = "missed"
    OPEN = "not decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledGate:
    """A gate, and what was ruled."""

    gate: Gate
    ruling: GateRuling
    low: float
    """The limit that proves it; 0 where nothing was measured."""
    high: float
    """The limit that misses it; infinity where nothing was measured."""
    alpha: float
    """Chance of a false fail."""
    error: float = PROVEN_ERROR
    """Chance that it is proven and not reached."""
    expected: str = ""
    """What the upper limit is held against, where that is not the threshold itself."""

    @property
    def threshold(self) -> str:
        """What is not reached where it is missed."""
        return f"{self.gate}, {self.expected}" if self.expected else str(self.gate)

    def __str__(self) -> str:
        low = f"{self.low:.2f} or more at {_sure(self.error)} confidence"
        high = f"{self.high:.2f} or less at {_sure(self.alpha)}{f', {self.expected}' if self.expected else ''}"
        limits = {GateRuling.PROVEN: f": {low}", GateRuling.MISSED: f": {high}", GateRuling.OPEN: f": {low}, {high}" if self.low else ""}
        return f"gate: {self.gate}: {self.ruling.value}{limits[self.ruling]}"


def gates_on(gates: Iterable[Gate], figure: str) -> tuple[Gate, ...]:
    """Return the gates that ask something of ``figure``."""
    return tuple(gate for gate in gates if gate.figure == figure and gate.at_least is not None)


def rule_gates(gates: Sequence[Gate], limits: ConfidenceLimits | None, alpha: float) -> tuple[RuledGate, ...]:
    """Hold every gate against ``limits``; None leaves all of them open."""
    low, high = (0.0, math.inf) if limits is None else (limits.at_least(PROVEN_ERROR), limits.at_most(alpha))
    return tuple(RuledGate(gate=gate, ruling=_ruling(gate, low, high), low=low, high=high, alpha=alpha) for gate in gates)


def ruled_speeds(gates: Sequence[Gate], estimate: Estimate | None, alpha: float) -> tuple[RuledGate, ...]:
    """Hold every gate on the speedup against ``estimate``; None leaves all of them open.

    One of a baseline file is missed by its runs and not by its floor, which stands further down: where one more run like the median of them
    would be as slow with a chance of less than alpha (a prediction interval), and this one is surely, at SPEED_ERROR, more than 5 % slower.
    """
    alpha /= max(1, len({bool(gate.log_ratios) for gate in gates}))
    if estimate is None:
        return rule_gates(gates, None, alpha)
    return tuple(_ruled_speed(gate, estimate, alpha) for gate in gates)


def _ruled_speed(gate: Gate, estimate: Estimate, alpha: float) -> RuledGate:
    low, runs = estimate.at_least(SPEED_ERROR), gate.log_ratios[-LAST_RUNS:]
    if not runs:
        high = estimate.at_most(alpha)
        return RuledGate(gate=gate, ruling=_ruling(gate, low, high), low=low, high=high, alpha=alpha, error=SPEED_ERROR)
    beside, typical = estimate.against_median(len(runs)), math.exp(statistics.median(runs))
    high, least = beside.at_most(alpha), typical * math.exp(-MARGIN)
    missed = high < typical and beside.at_most(SPEED_ERROR) < least
    expected = f"{least:.2f} expected: 5 % under the typical {typical:.2f}x of {len(runs)} run{'s' * (len(runs) > 1)}"
    ruling = GateRuling.MISSED if missed else _ruling(gate, low, math.inf)
    return RuledGate(gate=gate, ruling=ruling, low=low, high=high, alpha=alpha, error=SPEED_ERROR, expected=expected)


def _ruling(gate: Gate, low: float, high: float) -> GateRuling:
    threshold = gate.at_least or 0.0
    if high < threshold:
        return GateRuling.MISSED
    return GateRuling.PROVEN if low >= threshold else GateRuling.OPEN


def _sure(error: float) -> str:
    return f"{100.0 * (1.0 - error):.5g}%"
