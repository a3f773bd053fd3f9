"""What was measured: a pair's speed with its interval, and the sentence that it allows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance_length import acceptance_length
from pytest_specdec.judge.paces import paces
from pytest_specdec.stats.speedup import Spread, across_boots, within_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.acceptance_length import AcceptanceLength
    from pytest_specdec.judge.paces import Figure, Paces
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.gate import Gate
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.speedup import Estimate

__all__ = ["SPEEDUP", "Change", "Measured", "measured"]

SPEEDUP = "speedup"
SHOWN_CONFIDENCE = 0.95
"""Of an interval that decides nothing."""
LEAST_PASSES = 2


class Change(StrEnum):
    """Everything that can be said of a speedup."""

    FASTER = "faster"
    SLOWER = "slower"
    NONE = "no change detected"
    OPEN = "not decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run shows of a pair's speed."""

    paces: Paces
    estimate: Estimate | None
    """None with fewer than two passes."""
    spread: Spread | None
    """Between boots, on this machine; None where nobody has measured it."""
    length: AcceptanceLength | None

    @property
    def ratio(self) -> float:
        """Response tokens per second, speculative over baseline."""
        return self.estimate.ratio if self.estimate else self.paces.response.speculative / self.paces.response.baseline

    @property
    def shown(self) -> str:
        """The ratio and its interval, as in ``1.82x [1.74, 1.90]``."""
        limits = f" [{self.estimate.interval.low:.2f}, {self.estimate.interval.high:.2f}]" if self.estimate else ""
        return f"{self.ratio:.2f}x{limits}"

    @property
    def change(self) -> Change:
        """The sentence for it; open where other boots might say otherwise."""
        if self.estimate is None or self.spread is None:
            return Change.OPEN
        if 1.0 in self.estimate.interval:
            return Change.NONE
        return Change.FASTER if self.estimate.interval.low > 1.0 else Change.SLOWER


def measured(captured: Captured) -> Measured | None:
    """Return what can be said of the speed; None where no request was timed in every arm.

    Limits that decide hold at ``captured.alpha`` on either side, shared by the gated figures, and include the spread between boots. Without
    a known spread they are those of this run alone, at 95 %.
    """
    found = paces(_baselines(captured), captured.speculative)
    if found is None:
        return None
    spread = _spread(captured.gates)
    gated = {SPEEDUP} | {gate.figure for gate in captured.gates if gate.at_least is not None}
    confidence = 1.0 - 2.0 * captured.alpha / len(gated)
    estimate = _estimate(found.response, spread, confidence)
    return Measured(paces=found, estimate=estimate, spread=spread, length=acceptance_length(captured, confidence))


def _baselines(captured: Captured) -> tuple[Transcript, ...]:
    control = () if captured.control is None or captured.is_control else (captured.control,)
    return (captured.baseline, *control)


def _spread(gates: Sequence[Gate]) -> Spread | None:
    known = ((gate.between_boot_sd, gate) for gate in gates if gate.figure == SPEEDUP)
    return next((Spread(sd=sd, boots=len(gate.log_ratios)) for sd, gate in known if sd is not None), None)


def _estimate(figure: Figure, spread: Spread | None, confidence: float) -> Estimate | None:
    if len(figure.log_ratios) < LEAST_PASSES:
        return None
    return within_run(figure.log_ratios, SHOWN_CONFIDENCE) if spread is None else across_boots(figure.log_ratios, spread, confidence)
