"""Timing: the speedup of a pair and its interval, from the speeds of several passes and boots.

A boot is one start of a server, a pass one round over the workload's requests. The control is the baseline booted again. A log-ratio is the
natural log of one speed over another. Further boots are those of the variant after its first, each a block with the baseline's boots beside
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance.length import acceptance_length
from pytest_specdec.judge.speed import boot_blocks
from pytest_specdec.model.baseline import SPEEDUP, stated_boot_sd
from pytest_specdec.stats.answer_timing import in_one_burst
from pytest_specdec.stats.boot_spread import boot_spread
from pytest_specdec.stats.paces import paces
from pytest_specdec.stats.speedup import across_boots, within_one_boot

if TYPE_CHECKING:
    from pytest_specdec.judge.acceptance.length import AcceptanceLength
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
"""Confidence of the interval that is shown. A gate is proven by a lower limit of higher confidence."""
LEAST_PASSES = 2


class SpeedChange(StrEnum):
    """The possible statements on a speedup."""

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
    """Earlier runs in which that spread was measured, beside this one."""
    control: float | None
    """Natural log of the control's speed over the baseline's; None if no other boot of the baseline was timed."""
    length: AcceptanceLength | None
    one_boot: Estimate | None = None
    """The estimate over the passes alone, valid for these boots only; None unless one attached server is baseline and control."""
    blocks: BootBlocks | None = None
    """All boots, if there are several of the variant; else None."""

    @property
    def ratio(self) -> float:
        """Response tokens per second, speculative over baseline."""
        return self.estimate.ratio if self.estimate else self.paces.response.speculative / self.paces.response.baseline

    @property
    def interval(self) -> Interval | None:
        """The interval that is shown; None with fewer than two passes.

        If it is within one boot it claims nothing about other boots.
        """
        shown = self.one_boot or self.estimate
        return shown.interval(SHOWN_CONFIDENCE) if shown else None

    @property
    def over_passes(self) -> Interval | None:
        """The interval over the passes alone; None with fewer than two."""
        return replace(self.estimate, relative_variance=0.0).interval(SHOWN_CONFIDENCE) if self.estimate else None

    @property
    def shown(self) -> str:
        """The ratio and its interval, as in ``1.82x [1.74, 1.90]``."""
        limits = f" [{self.interval.low:.2f}, {self.interval.high:.2f}]" if self.interval else ""
        return f"{self.ratio:.2f}x{limits}{' within one boot' if self.one_boot else ''}"

    @property
    def change(self) -> SpeedChange:
        """The statement on the speedup, by the interval that is shown."""
        if self.interval is None:
            return SpeedChange.OPEN
        if 1.0 in self.interval:
            return SpeedChange.NONE
        return SpeedChange.FASTER if self.interval.low > 1.0 else SpeedChange.SLOWER


def measure_speed(captured: Captured) -> MeasuredSpeed | None:
    """Return the measured speed of a pair, with its interval.

    The speedup is the variant's speed over the mean of the baseline's boots. Its interval covers the variation from pass to pass and the
    spread from boot to boot. Returns None if no request was timed in every arm; with further boots, if one of them has no usable timing.
    """
    if captured.further:  # boots are compared then instead of passes
        return _measure_blocks(captured)
    timings = paces(captured.baseline_boots, captured.speculative)
    if timings is None:
        return None
    # None without a second boot, or if the control is judged itself, in the variant's place.
    control = _find_second_boot(captured)
    # Both are timed as the variant is: by whole requests if decoding could not be timed.
    control_log_ratio = None if control is None else _control_log_ratio(captured.baseline, control, whole=timings.whole)
    # The spread between boots, by this run's two boots of the baseline and by the earlier runs in baseline files.
    spread = _spread(captured) if control_log_ratio is None else _spread(captured, control_log_ratio)
    estimate = _estimate(timings.response, spread, baseline_boots=1 if control is None else 2)
    # If one attached server is baseline and control, an interval over the passes alone is shown: this run does not show the spread.
    estimate_over_passes = within_one_boot(timings.response.log_ratios) if estimate and captured.within_one_boot else None
    return MeasuredSpeed(
        paces=timings,
        estimate=estimate,
        one_boot=estimate_over_passes,
        spread=spread,
        earlier=_count_earlier_runs(captured),
        control=control_log_ratio,
        length=acceptance_length(captured.speculative, captured.workload),
    )


def _measure_blocks(captured: Captured) -> MeasuredSpeed | None:
    """Return the speed of a pair whose variant has further boots.

    Blocks are compared, not passes, and so show the spread between boots. Returns None if a boot has no pass with usable timing.
    """
    blocks = boot_blocks.compare_boots(captured, paces)
    if blocks is None:
        return None
    answers = [answer for arm in boot_blocks.arms(captured) for answer in arm.answers]
    joined = boot_blocks.join_blocks(blocks, bursts=sum(map(in_one_burst, answers)), answers=len(answers))
    control = _find_second_boot(captured)
    earlier_spread = _spread(captured)
    estimate = blocks.estimate(earlier_spread)  # None if a block has fewer than two passes
    return MeasuredSpeed(
        paces=joined,
        estimate=estimate,
        # The estimate adds what this run's boots show of the spread between boots.
        spread=estimate.boots if estimate else earlier_spread,
        earlier=_count_earlier_runs(captured),
        # ``whole``: it is timed by whole requests if the blocks are, because decoding could not be timed.
        control=None if control is None else _control_log_ratio(captured.baseline, control, whole=joined.whole),
        length=acceptance_length(captured.speculative, captured.workload),
        blocks=blocks,
    )


def _find_second_boot(captured: Captured) -> Transcript | None:
    """Return the control if it is another boot than the baseline, else None.

    At smoke depth, and with an attached baseline, one boot answers as both.
    """
    others = (boot for boot in captured.baseline_boots if boot.boot != captured.baseline.boot)
    return None if captured.within_one_boot else next(others, None)


def _control_log_ratio(baseline: Transcript, control: Transcript, *, whole: bool) -> float | None:
    """Return the log of the control's speed over the baseline's; None without usable timing."""
    timings = paces((baseline,), control, whole=whole)
    return None if timings is None else math.fsum(timings.response.log_ratios) / len(timings.response.log_ratios)


def _spread(captured: Captured, *apart: float) -> BootSpread:
    """Return the spread between boots, by this run and earlier ones.

    ``apart`` are this run's log-ratios between two boots of the baseline; earlier runs are those of a baseline file.
    """
    gate = _gate_of_earlier_runs(captured)
    earlier_apart, speedup_log_ratios = (gate.boot_log_ratios, gate.log_ratios) if gate else ((), ())
    return boot_spread((*earlier_apart, *apart), stated_boot_sd(captured.gates), speedup_log_ratios)


def _count_earlier_runs(captured: Captured) -> int:
    gate = _gate_of_earlier_runs(captured)
    return max(len(gate.boot_log_ratios), len(gate.log_ratios)) if gate else 0


def _gate_of_earlier_runs(captured: Captured) -> Gate | None:
    """Return the speedup gate with most measured pairs of boots, then with most runs; None without gates."""
    return max((gate for gate in captured.gates if gate.figure == SPEEDUP), key=_earlier_runs, default=None)


def _earlier_runs(gate: Gate) -> tuple[int, int]:
    """Return the numbers of a gate's measured pairs of boots and of runs; both are 0 for a gate that the config states."""
    return len(gate.boot_log_ratios), len(gate.log_ratios)


def _estimate(figure: ComparedFigure, spread: BootSpread, *, baseline_boots: int) -> Estimate | None:
    """Return the speedup to expect of other boots; None with fewer than two passes."""
    if len(figure.log_ratios) < LEAST_PASSES:
        return None
    return across_boots(figure.log_ratios, spread, baseline_boots=baseline_boots)
