"""Timing: the speedup of a pair that the paces of several passes and boots leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance.verdict import acceptance_length
from pytest_specdec.judge.speed import boot_blocks
from pytest_specdec.model.baseline import SPEEDUP, stated_boot_sd
from pytest_specdec.stats.answer_timing import in_one_burst
from pytest_specdec.stats.boot_spread import boot_spread
from pytest_specdec.stats.paces import paces
from pytest_specdec.stats.speedup import across_boots, within_one_boot

if TYPE_CHECKING:
    from pytest_specdec.judge.acceptance.verdict import AcceptanceLength
    from pytest_specdec.judge.speed.boot_blocks import BootBlocks
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.boot_spread import BootSpread
    from pytest_specdec.stats.paces import ArmTimings, ComparedFigure
    from pytest_specdec.stats.proportions import Interval
    from pytest_specdec.stats.speedup import Estimate

__all__ = ["SHOWN_CONFIDENCE", "MeasuredSpeed", "SpeedChange", "measure_speed"]

SHOWN_CONFIDENCE = 0.95
"""Of the interval that is shown. A gate is proven by a lower limit that is surer."""
LEAST_PASSES = 2


class SpeedChange(StrEnum):
    """Everything that can be said of a speedup."""

    FASTER = "faster"
    SLOWER = "slower"
    NONE = "no change detected"
    OPEN = "not decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Speed of a pair in one run."""

    paces: ArmTimings
    estimate: Estimate | None
    """None with fewer than two passes."""
    spread: BootSpread
    """Spread between boots."""
    earlier: int = 0
    """Earlier runs that it was measured in, beside this one."""
    control: float | None
    """Natural log of the control's speed over the baseline's; None where no other boot of the baseline was timed."""
    length: AcceptanceLength | None
    one_boot: Estimate | None = None
    """Over the passes alone, for the boots that were met; None where the estimate says what other boots would show."""
    blocks: BootBlocks | None = None
    """All boots, where there are several of the variant; None elsewhere."""

    @property
    def ratio(self) -> float:
        """Response tokens per second, speculative over baseline."""
        return self.estimate.ratio if self.estimate else self.paces.response.speculative / self.paces.response.baseline

    @property
    def interval(self) -> Interval | None:
        """The interval that is shown; None with fewer than two passes. Within one boot it claims nothing of others."""
        shown = self.one_boot or self.estimate
        return shown.interval(SHOWN_CONFIDENCE) if shown else None

    @property
    def over_passes(self) -> Interval | None:
        """The interval over the passes alone; None with fewer than two."""
        return replace(self.estimate, shares=0.0).interval(SHOWN_CONFIDENCE) if self.estimate else None

    @property
    def shown(self) -> str:
        """The ratio and its interval, as in ``1.82x [1.74, 1.90]``."""
        limits = f" [{self.interval.low:.2f}, {self.interval.high:.2f}]" if self.interval else ""
        return f"{self.ratio:.2f}x{limits}{' within one boot' if self.one_boot else ''}"

    @property
    def change(self) -> SpeedChange:
        """The sentence for it."""
        if self.interval is None:
            return SpeedChange.OPEN
        if 1.0 in self.interval:
            return SpeedChange.NONE
        return SpeedChange.FASTER if self.interval.low > 1.0 else SpeedChange.SLOWER


def measure_speed(captured: Captured) -> MeasuredSpeed | None:
    """Return what can be said of the speed; None where no request was timed in every arm.

    Every boot of the baseline counts as its speed. Where there are two of them they also tell how boots vary here, beside what baseline
    files hold of earlier runs; a control that is judged itself is held against the latter. An attached
    baseline shows one boot, so that gates lean on what is stated, and the interval that is shown is over the passes alone. Further boots
    of variant and baseline make boots the unit: what they differ by is what boots are measured to vary.
    """
    if captured.further:
        return _over_blocks(captured)
    control = _other_boot(captured)
    measured_paces = paces(captured.baseline_boots, captured.speculative)
    if measured_paces is None:
        return None
    apart = None if control is None else _apart(captured.baseline, control, whole=measured_paces.whole)
    spread = _spread(captured, *([] if apart is None else [apart]))
    estimate = _estimate(measured_paces.response, spread, baseline_boots=1 if control is None else 2)
    return MeasuredSpeed(
        paces=measured_paces,
        estimate=estimate,
        one_boot=within_one_boot(measured_paces.response.log_ratios) if estimate and captured.within_one_boot else None,
        spread=spread,
        earlier=_runs(captured),
        control=apart,
        length=acceptance_length(captured.speculative),
    )


def _over_blocks(captured: Captured) -> MeasuredSpeed | None:
    blocks = boot_blocks.compare_boots(captured, paces)
    if blocks is None:
        return None
    answers = [answer for arm in boot_blocks.arms(captured) for answer in arm.answers]
    joined = boot_blocks.join_blocks(blocks, bursts=sum(map(in_one_burst, answers)), answers=len(answers))
    control = _other_boot(captured)
    estimate = blocks.estimate(_spread(captured))
    return MeasuredSpeed(
        paces=joined,
        estimate=estimate,
        spread=estimate.boots if estimate else _spread(captured),
        earlier=_runs(captured),
        control=None if control is None else _apart(captured.baseline, control, whole=joined.whole),
        length=acceptance_length(captured.speculative),
        blocks=blocks,
    )


def _other_boot(captured: Captured) -> Transcript | None:
    """Return the control where it is another boot than the baseline: at smoke depth, and attached, one answers as both."""
    others = (boot for boot in captured.baseline_boots if boot.boot != captured.baseline.boot)
    return None if captured.within_one_boot else next(others, None)


def _apart(baseline: Transcript, control: Transcript, *, whole: bool) -> float | None:
    again = paces((baseline,), control, whole=whole)
    return None if again is None else math.fsum(again.response.log_ratios) / len(again.response.log_ratios)


def _spread(captured: Captured, *apart: float) -> BootSpread:
    """Return what is known of boots, from this run's two of the baseline and from the earlier runs of a baseline file."""
    earlier = _earlier(captured)
    before, runs = (earlier.boot_log_ratios, earlier.log_ratios) if earlier else ((), ())
    return boot_spread((*before, *apart), stated_boot_sd(captured.gates), runs)


def _runs(captured: Captured) -> int:
    earlier = _earlier(captured)
    return max(len(earlier.boot_log_ratios), len(earlier.log_ratios)) if earlier else 0


def _earlier(captured: Captured) -> Gate | None:
    """Return the gate on the speedup that knows most earlier runs."""
    return max((gate for gate in captured.gates if gate.figure == SPEEDUP), key=lambda gate: len(gate.boot_log_ratios), default=None)


def _estimate(figure: ComparedFigure, spread: BootSpread, *, baseline_boots: int) -> Estimate | None:
    if len(figure.log_ratios) < LEAST_PASSES:
        return None
    return across_boots(figure.log_ratios, spread, baseline_boots=baseline_boots)
