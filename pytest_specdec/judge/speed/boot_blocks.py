"""Boot blocks: the speed of a pair over several boots, each of the variant beside boots of the baseline.

A boot is one start of a server. A block is a boot of the variant with the baseline's boots beside it; blocks that share one make a group. A
boot's level is the natural log of its speed over that of the baseline's first transcript. Log-ratios compare one boot's speed with that of
baseline boots, one per pass over the requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.stats.speedup import BootLevels, across_blocks, centre, mean_levels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.boot_spread import BootSpread
    from pytest_specdec.stats.paces import ArmTimings, ComparedFigure
    from pytest_specdec.stats.speedup import Estimate

__all__ = ["BootBlocks", "arms", "compare_boots", "join_blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootBlocks:
    """The speeds of all boots of a pair, on one scale."""

    paces: tuple[ArmTimings, ...]
    """One per boot of the variant, beside the baseline's boots around it."""
    groups: tuple[BootLevels, ...]
    """Natural logs of the speed of each boot over that of the baseline's first transcript; boots that blocks connect make a group."""
    baseline_boots: tuple[int, ...]
    """Baseline boots beside each boot of the variant."""
    first_per_s: float
    """Speed of the first baseline boot, in tokens per second."""

    @property
    def speculative(self) -> tuple[float, ...]:
        """The levels of all boots of the variant."""
        return tuple(level for group in self.groups for level in group.speculative)

    @property
    def baseline(self) -> tuple[float, ...]:
        """The levels of all boots of the baseline."""
        return tuple(level for group in self.groups for level in group.baseline)

    def estimate(self, earlier: BootSpread) -> Estimate | None:
        """Return the speed ratio to expect of other boots, with its error.

        ``earlier`` is the spread between boots that earlier runs showed. Returns None if a block has fewer than two passes.
        """
        ratios_by_block = [paces.response.log_ratios for paces in self.paces]
        if min(map(len, ratios_by_block)) < 2:  # noqa: PLR2004 - one pass has no spread
            return None
        return across_blocks(ratios_by_block, self.groups, earlier, baseline_boots=self.baseline_boots)

    def __str__(self) -> str:
        """Return the ratio of every block, and the baseline's boots against the first of them."""
        ratios = ", ".join(f"{math.exp(centre(paces.response.log_ratios)):.3f}x" for paces in self.paces)
        baseline = ", ".join(f"{math.exp(level):.3f}x" for level in self.baseline)
        return f"by boot of the variant: {ratios}; boots of the baseline against its first: {baseline}"


class _Compare(Protocol):
    """A comparison of one boot's speed with that of baseline boots, as by ``stats.paces.paces``."""

    def __call__(self, baselines: Sequence[Transcript], speculative: Transcript, *, whole: bool = False) -> ArmTimings | None: ...


def arms(captured: Captured) -> tuple[Transcript, ...]:
    """Return the transcripts of all timed boots, the baseline's first, each once."""
    first = [captured.baseline, *([captured.control] if captured.control is not None else [])]
    # By arm, since two blocks may share a boot of the baseline.
    baselines = {boot.arm: boot for boot in (*first, *(near for block in captured.further for near in block.baselines))}
    return (*baselines.values(), captured.speculative, *(block.speculative for block in captured.further))


def compare_boots(captured: Captured, compare: _Compare) -> BootBlocks | None:
    """Return the speeds of all boots, on one scale.

    ``compare`` times one boot against boots of the baseline, as ``stats.paces.paces`` does. If one block can only be timed by whole
    requests, all of them are, since those include the time to the first token. Returns None if a boot has no pass with usable timing.
    """
    blocks = _compare_blocks(captured, compare, whole=False)
    mixed = blocks is not None and len({paces.whole for paces in blocks.paces}) > 1
    return _compare_blocks(captured, compare, whole=True) if mixed else blocks


def _compare_blocks(captured: Captured, compare: _Compare, *, whole: bool) -> BootBlocks | None:
    """Return the speeds of all boots, by decoding or by whole requests.

    The levels of the baseline's boots are measured directly. That of a variant boot is its log-ratio to the baseline boots beside it, plus
    their mean level. Returns None if a boot has no pass with usable timing.
    """
    control = [captured.control] if captured.control is not None else []
    blocks = [([captured.baseline, *control], captured.speculative), *((block.baselines, block.speculative) for block in captured.further)]
    timed = tuple(timings for baselines, speculative in blocks if (timings := compare(baselines, speculative, whole=whole)) is not None)
    # A block in which decoding cannot be timed is compared by whole requests: then the levels have to be too.
    levels = _measure_baseline_levels(captured, compare, whole=whole or any(timings.whole for timings in timed))
    if levels is None or len(timed) < len(blocks):
        return None
    levels_beside = [math.fsum(levels[boot.arm] for boot in baselines) / len(baselines) for baselines, _ in blocks]
    variant_levels = [centre(timings.response.log_ratios) + level for timings, level in zip(timed, levels_beside, strict=True)]
    # One boot may have answered twice, as baseline and as control: its level is the mean of the two.
    levels_by_boot: dict[int, list[float]] = {}
    for transcript in _baselines(captured):
        levels_by_boot.setdefault(transcript.boot, []).append(levels[transcript.arm])
    return BootBlocks(
        paces=timed,
        groups=tuple(
            BootLevels(
                speculative=tuple(variant_levels[block] for block in group.blocks),
                baseline=tuple(math.fsum(values) / len(values) for boot, values in levels_by_boot.items() if boot in group.baseline_boots),
            )
            for group in _connect_blocks([frozenset(boot.boot for boot in baselines) for baselines, _ in blocks])
        ),
        baseline_boots=tuple(len(baselines) for baselines, _ in blocks),
        # The first block's baseline speed is a mean over its boots, e to their mean level times that of the first.
        first_per_s=timed[0].response.baseline / math.exp(levels_beside[0]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectedBlocks:
    """Blocks that share boots of the baseline, directly or through other blocks."""

    blocks: tuple[int, ...]
    """Their indices."""
    baseline_boots: frozenset[int]
    """Numbers of all baseline boots beside them."""


def _connect_blocks(baselines: Sequence[frozenset[int]]) -> list[_ConnectedBlocks]:
    """Return the groups of blocks connected by shared boots of the baseline.

    ``baselines`` has the numbers of the baseline boots of each block.
    """
    groups: list[_ConnectedBlocks] = []
    for block, boots in enumerate(baselines):
        sharing = [group for group in groups if group.baseline_boots & boots]
        blocks = (*(member for group in sharing for member in group.blocks), block)
        joined = _ConnectedBlocks(blocks=blocks, baseline_boots=boots.union(*(group.baseline_boots for group in sharing)))
        groups = [*(group for group in groups if group not in sharing), joined]
    return groups


def _baselines(captured: Captured) -> tuple[Transcript, ...]:
    """Return the baseline's timed transcripts: :func:`arms` without the variant's, which come last."""
    return arms(captured)[: -1 - len(captured.further)]


def _measure_baseline_levels(captured: Captured, compare: _Compare, *, whole: bool) -> Mapping[str, float] | None:
    """Return the level of each transcript of the baseline, by arm.

    The first transcript has level 0, since levels are relative to it. Speed is tokens per second: of decoding, or with ``whole`` of the
    whole request, the time to the first token included. Returns None if one of the transcripts has no usable timing.
    """
    first = captured.baseline
    levels = {first.arm: 0.0}
    for transcript in _baselines(captured)[1:]:
        timings = compare((first,), transcript, whole=whole)
        if timings is None:
            return None
        log_ratios = timings.response.log_ratios  # of the transcript's speed over the first's, one per pass
        levels[transcript.arm] = math.fsum(log_ratios) / len(log_ratios)
    return levels


def join_blocks(blocks: BootBlocks, *, bursts: int, answers: int) -> ArmTimings:
    """Return the timings of all blocks joined into one ArmTimings.

    An arm's response speed is the geometric mean over its boots, with groups of boots weighted as in :meth:`BootBlocks.estimate`, so that
    the ratio of the two speeds is that of the estimate. Times to first token and to first text, and prompt speeds, are geometric means over
    the blocks, each None if the first block has none; ``requests`` is the smallest number of a block. ``bursts`` counts the answers of all
    arms that came in one burst, ``answers`` all of their answers.
    """
    first, all_timings = blocks.paces[0], blocks.paces
    variant_level, baseline_level = mean_levels(blocks.groups)  # logs of speed over that of the first baseline boot
    # Joined by block are only the log-ratios: the speeds are means over boots.
    response = replace(
        _join_figures([timings.response for timings in all_timings]),
        baseline=blocks.first_per_s * math.exp(baseline_level),
        speculative=blocks.first_per_s * math.exp(variant_level),
    )
    return replace(
        first,
        response=response,
        ttft=_join_figures([timings.ttft for timings in all_timings if timings.ttft is not None]) if first.ttft else None,
        content=_join_figures([timings.content for timings in all_timings if timings.content is not None]) if first.content else None,
        prompt=_join_figures([timings.prompt for timings in all_timings if timings.prompt is not None]) if first.prompt else None,
        requests=min(timings.requests for timings in all_timings),
        bursts=bursts,
        answers=answers,
    )


def _join_figures(figures: Sequence[ComparedFigure]) -> ComparedFigure:
    """Return one figure of several blocks: geometric means, and all log-ratios."""
    return replace(
        figures[0],
        baseline=math.exp(math.fsum(math.log(figure.baseline) for figure in figures) / len(figures)),
        speculative=math.exp(math.fsum(math.log(figure.speculative) for figure in figures) / len(figures)),
        log_ratios=tuple(value for figure in figures for value in figure.log_ratios),
    )
