"""Speed gates: rulings on a threshold from the confidence limits of a measured figure.

The two errors differ. A gate wrongly met is no false alarm, so the usual 2.5 % do. A wrong fail is one, and takes the judgement's share of
the false-alarm budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.model.baseline import Gate

__all__ = ["PROVEN_ERROR", "ConfidenceLimits", "GateRuling", "RuledGate", "ruled", "stated"]

PROVEN_ERROR = 0.025
"""Chance, one-sided, of a threshold that is called proven and not reached."""


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

    def __str__(self) -> str:
        low, high = f"{self.low:.2f} or more at {_sure(PROVEN_ERROR)} confidence", f"{self.high:.2f} or less at {_sure(self.alpha)}"
        limits = {GateRuling.PROVEN: f": {low}", GateRuling.MISSED: f": {high}", GateRuling.OPEN: f": {low}, {high}" if self.low else ""}
        return f"gate: {self.gate}: {self.ruling.value}{limits[self.ruling]}"


def stated(gates: Iterable[Gate], figure: str) -> tuple[Gate, ...]:
    """Return the gates that ask something of ``figure``."""
    return tuple(gate for gate in gates if gate.figure == figure and gate.at_least is not None)


def ruled(gates: Sequence[Gate], limits: ConfidenceLimits | None, alpha: float) -> tuple[RuledGate, ...]:
    """Hold every gate against ``limits``; None leaves all of them open."""
    low, high = (0.0, math.inf) if limits is None else (limits.at_least(PROVEN_ERROR), limits.at_most(alpha))
    return tuple(RuledGate(gate=gate, ruling=_ruling(gate.at_least or 0.0, low, high), low=low, high=high, alpha=alpha) for gate in gates)


def _ruling(threshold: float, low: float, high: float) -> GateRuling:
    if high < threshold:
        return GateRuling.MISSED
    return GateRuling.PROVEN if low >= threshold else GateRuling.OPEN


def _sure(error: float) -> str:
    return f"{100.0 * (1.0 - error):.5g}%"
