"""Timing: the pace of streamed answers, and the speedup that paces of several passes and boots leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.judge import boot_blocks
from pytest_specdec.judge.acceptance import acceptance_length
from pytest_specdec.judge.answer_timing import (
    content_ttft_s,
    in_one_burst,
    prompt_tokens_per_s,
    response_tokens_per_s,
    tokens_per_s,
    ttft_s,
)
from pytest_specdec.model.baseline import BOOT_SD, SPEEDUP
from pytest_specdec.stats.speedup import across_boots, boots, within_one_boot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_specdec.judge.acceptance import AcceptanceLength
    from pytest_specdec.judge.boot_blocks import BootBlocks
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.stats.proportions import Interval
    from pytest_specdec.stats.speedup import Boots, Estimate

__all__ = [
    "SHOWN_CONFIDENCE",
    "ArmTimings",
    "ComparedFigure",
    "MeasuredSpeed",
    "SpeedChange",
    "compared",
    "measured",
    "paces",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One quantity in two arms, compared over requests that both answered."""

    baseline: float
    """The typical value over the baseline's boots, in the quantity's own unit."""
    speculative: float
    log_ratios: tuple[float, ...]
    """Speculative over baseline, one per pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimings:
    """Speed of one arm beside the baseline's boots."""

    response: ComparedFigure
    """Decode tokens per second; with ``whole`` those of the whole request, time to first token included."""
    ttft: ComparedFigure | None
    """Seconds to the first token, of reasoning too; None with ``whole``."""
    content: ComparedFigure | None
    """Seconds to the first text or tool call; None with ``whole``, and where that is unknown."""
    prompt: ComparedFigure | None
    """Prompt tokens per second of time to first token; None with ``whole``."""
    requests: int
    """Per pass, at least."""
    whole: bool
    """Whether whole requests are compared, in all arms alike, because some answers' decoding could not be timed."""
    bursts: int
    """Answers that came in one burst."""
    answers: int
    """All answers, over all arms."""


def paces(baselines: Sequence[Transcript], speculative: Transcript, *, whole: bool = False) -> ArmTimings | None:
    """Return the figures over requests that every arm answered, pass by pass; None where no pass has one with usable timing.

    One answer in one burst, in whichever arm, has whole requests compared in all of them, as ``whole`` asks for in any case.
    """
    answers = [answer for arm in (*baselines, speculative) for answer in arm.answers]
    bursts = sum(map(in_one_burst, answers))
    whole = whole or bursts > 0
    response = compared(tokens_per_s if whole else response_tokens_per_s, baselines, speculative)
    if response is None:
        return None
    return ArmTimings(
        response=response,
        ttft=None if whole else compared(ttft_s, baselines, speculative),
        content=None if whole else compared(content_ttft_s, baselines, speculative),
        prompt=None if whole else compared(prompt_tokens_per_s, baselines, speculative),
        requests=min(map(len, _shared(tokens_per_s if whole else response_tokens_per_s, baselines, speculative).values())),
        whole=whole,
        bursts=bursts,
        answers=len(answers),
    )


def compared(of: Callable[[Answer], float | None], baselines: Sequence[Transcript], speculative: Transcript) -> ComparedFigure | None:
    """Return one quantity compared request by request: the median over a pass's requests, one value per pass; None where none is shared.

    An arm's own value is the geometric mean over passes of the pass's median, so that with one prompt the two arms' values have the very
    ratio that the mean log-ratio gives.
    """
    shared = _shared(of, baselines, speculative)
    if not shared:
        return None
    return ComparedFigure(
        baseline=math.exp(_mean(median(base for base, _ in pairs) for pairs in shared.values())),
        speculative=math.exp(_mean(median(spec for _, spec in pairs) for pairs in shared.values())),
        log_ratios=tuple(median(spec - base for base, spec in pairs) for pairs in shared.values()),
    )


def _shared(
    of: Callable[[Answer], float | None], baselines: Sequence[Transcript], speculative: Transcript
) -> Mapping[int, Sequence[tuple[float, float]]]:
    """Return (log over the baseline's boots, log of the speculative arm) per pass and request that all of them have."""
    mine = _logs(of, speculative)
    theirs = [_logs(of, baseline) for baseline in baselines]
    by_pass: dict[int, list[tuple[float, float]]] = {}
    for key in mine:
        if all(key in each for each in theirs):
            by_pass.setdefault(key[1], []).append((_mean(each[key] for each in theirs), mine[key]))
    return by_pass


def _logs(of: Callable[[Answer], float | None], transcript: Transcript) -> dict[tuple[str, int], float]:
    known = ((answer.key, of(answer)) for answer in transcript.answers)
    return {key: math.log(value) for key, value in known if value is not None}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


SHOWN_CONFIDENCE = 0.95
"""Of the interval that is shown: its lower limit is the one that proves a gate, one-sided at 2.5 %."""
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
    spread: Boots
    """Spread between boots."""
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


def measured(captured: Captured) -> MeasuredSpeed | None:
    """Return what can be said of the speed; None where no request was timed in every arm.

    Every boot of the baseline counts as its speed. Where there are two of them they also tell how boots vary here, beside what baseline
    files hold of earlier runs and the stated deviation; a control that is judged itself is held against the latter two. An attached
    baseline shows one boot, so that gates lean on what is stated, and the interval that is shown is over the passes alone. Further boots
    of variant and baseline make boots the unit: what they differ by is what boots are measured to vary.
    """
    if captured.further:
        return _over_blocks(captured)
    control = _other_boot(captured)
    found = paces((captured.baseline, *([captured.control] if captured.control and not captured.is_control else [])), captured.speculative)
    if found is None:
        return None
    apart = None if control is None else _apart(captured.baseline, control, whole=found.whole)
    spread = boots((*_earlier(captured), *([] if apart is None else [apart])), _stated_sd(captured))
    estimate = _estimate(found.response, spread, baseline_boots=1 if control is None else 2)
    return MeasuredSpeed(
        paces=found,
        estimate=estimate,
        one_boot=within_one_boot(found.response.log_ratios) if estimate and captured.within_one_boot else None,
        spread=spread,
        control=apart,
        length=acceptance_length(captured.speculative),
    )


def _over_blocks(captured: Captured) -> MeasuredSpeed | None:
    blocks = boot_blocks.compared(captured, paces)
    if blocks is None:
        return None
    answers = [answer for arm in boot_blocks.arms(captured) for answer in arm.answers]
    found = boot_blocks.joined(blocks, bursts=sum(map(in_one_burst, answers)), answers=len(answers))
    control = _other_boot(captured)
    estimate = blocks.estimate(_earlier(captured), _stated_sd(captured))
    return MeasuredSpeed(
        paces=found,
        estimate=estimate,
        spread=estimate.boots if estimate else boots(_earlier(captured), _stated_sd(captured)),
        control=None if control is None else _apart(captured.baseline, control, whole=found.whole),
        length=acceptance_length(captured.speculative),
        blocks=blocks,
    )


def _other_boot(captured: Captured) -> Transcript | None:
    """Return the control where it is another boot than the baseline: at smoke depth, and attached, one answers as both."""
    control = None if captured.within_one_boot else captured.control
    return None if control is None or captured.is_control or control.boot == captured.baseline.boot else control


def _apart(baseline: Transcript, control: Transcript, *, whole: bool) -> float | None:
    again = paces((baseline,), control, whole=whole)
    return None if again is None else math.fsum(again.response.log_ratios) / len(again.response.log_ratios)


def _earlier(captured: Captured) -> tuple[float, ...]:
    """Return the longest list of earlier runs that a gate on the speedup knows."""
    return max((gate.boot_log_ratios for gate in captured.gates if gate.figure == SPEEDUP), key=len, default=())


def _stated_sd(captured: Captured) -> float:
    return next((gate.boot_sd for gate in captured.gates if gate.figure == SPEEDUP and gate.boot_sd is not None), BOOT_SD)


def _estimate(figure: ComparedFigure, spread: Boots, *, baseline_boots: int) -> Estimate | None:
    if len(figure.log_ratios) < LEAST_PASSES:
        return None
    return across_boots(figure.log_ratios, spread, baseline_boots=baseline_boots)
