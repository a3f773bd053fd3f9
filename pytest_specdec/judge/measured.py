"""What was measured: a pair's speed with its interval, and the sentence that it allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance_length import acceptance_length
from pytest_specdec.judge.paces import paces
from pytest_specdec.model.gate import BOOT_SD, SPEEDUP
from pytest_specdec.stats.speedup import across_boots, boots

if TYPE_CHECKING:
    from pytest_specdec.judge.acceptance_length import AcceptanceLength
    from pytest_specdec.judge.paces import Figure, Paces
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.interval import Interval
    from pytest_specdec.stats.speedup import Boots, Estimate

__all__ = ["SHOWN_CONFIDENCE", "Change", "Measured", "measured"]

SHOWN_CONFIDENCE = 0.95
"""Of the interval that is shown: its lower limit is the one that proves a gate, one-sided at 2.5 %."""
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
    spread: Boots
    """How boots vary."""
    control: float | None
    """Natural log of the control's speed over the baseline's; None where no other boot of the baseline was timed."""
    length: AcceptanceLength | None

    @property
    def ratio(self) -> float:
        """Response tokens per second, speculative over baseline."""
        return self.estimate.ratio if self.estimate else self.paces.response.speculative / self.paces.response.baseline

    @property
    def interval(self) -> Interval | None:
        """The interval that is shown; None with fewer than two passes."""
        return self.estimate.interval(SHOWN_CONFIDENCE) if self.estimate else None

    @property
    def shown(self) -> str:
        """The ratio and its interval, as in ``1.82x [1.74, 1.90]``."""
        limits = f" [{self.interval.low:.2f}, {self.interval.high:.2f}]" if self.interval else ""
        return f"{self.ratio:.2f}x{limits}"

    @property
    def change(self) -> Change:
        """The sentence for it."""
        if self.interval is None:
            return Change.OPEN
        if 1.0 in self.interval:
            return Change.NONE
        return Change.FASTER if self.interval.low > 1.0 else Change.SLOWER


def measured(captured: Captured) -> Measured | None:
    """Return what can be said of the speed; None where no request was timed in every arm.

    Every boot of the baseline counts as its speed. Where there are two of them they also tell how boots vary here, beside what baseline
    files hold of earlier runs and the stated deviation; a control that is judged itself is held against the latter two.
    """
    control = _other_boot(captured)
    found = paces((captured.baseline, *([captured.control] if captured.control and not captured.is_control else [])), captured.speculative)
    if found is None:
        return None
    apart = None if control is None else _apart(captured.baseline, control, whole=found.whole)
    spread = boots((*_earlier(captured), *([] if apart is None else [apart])), _stated_sd(captured))
    return Measured(
        paces=found,
        estimate=_estimate(found.response, spread, baseline_boots=1 if control is None else 2),
        spread=spread,
        control=apart,
        length=acceptance_length(captured.speculative),
    )


def _other_boot(captured: Captured) -> Transcript | None:
    """Return the control where it is another boot than the baseline: at smoke depth one boot answers as both."""
    control = captured.control
    return None if control is None or captured.is_control or control.boot == captured.baseline.boot else control


def _apart(baseline: Transcript, control: Transcript, *, whole: bool) -> float | None:
    again = paces((baseline,), control, whole=whole)
    return None if again is None else math.fsum(again.response.log_ratios) / len(again.response.log_ratios)


def _earlier(captured: Captured) -> tuple[float, ...]:
    """Return the longest list of earlier runs that a gate on the speedup knows."""
    return max((gate.boot_log_ratios for gate in captured.gates if gate.figure == SPEEDUP), key=len, default=())


def _stated_sd(captured: Captured) -> float:
    return next((gate.boot_sd for gate in captured.gates if gate.figure == SPEEDUP and gate.boot_sd is not None), BOOT_SD)


def _estimate(figure: Figure, spread: Boots, *, baseline_boots: int) -> Estimate | None:
    if len(figure.log_ratios) < LEAST_PASSES:
        return None
    return across_boots(figure.log_ratios, spread, baseline_boots=baseline_boots)
