"""Compared speed: the figures of speed of two runs, and what became slower.

A figure is one of an arm, the baseline or a variant that speculates. Its gate is the least ratio of new to old that passes. The gate's
ruling is PROVEN if the ratio is surely above it, and OPEN if that is undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.gates.rulings import GateRuling

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ChangedFigure", "ComparedSpeed", "SlowPart", "Slowdown", "UpgradeFigure", "describe"]


class UpgradeFigure(StrEnum):
    """What is compared between two runs."""

    DECODE = "decode speed"
    TTFT = "time to first token"
    LENGTH = "accepted tokens per step"


class SlowPart(StrEnum):
    """What became slower."""

    BASELINE = "the baseline"
    DRAFTER = "the drafter"
    STEP = "the verify step"
    VARIANT = "the variant"
    """Its drafter or its step: how many tokens a step brings is unknown in one of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFigure:
    """One figure of one arm in both runs."""

    figure: UpgradeFigure
    arm: str
    workload: str
    """Empty for a figure of all workloads together."""
    old: float
    """Tokens per second, seconds, or tokens per step."""
    new: float
    ratio: float
    """New over old."""
    low: float
    """The lower 95 % limit of the ratio; 0 where nothing gives limits."""
    high: float
    """The upper one; infinity where nothing gives limits."""
    at_least: float | None = None
    """The gate; None for a figure that is shown and not gated."""
    ruling: GateRuling = GateRuling.OPEN
    """On the gate; OPEN without one."""
    unfit: str = ""
    """Why it is no speed of the servers; empty where it is."""

    @property
    def has_limits(self) -> bool:
        """Whether the ratio has limits."""
        return math.isfinite(self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """One part that became slower, surely."""

    part: SlowPart
    arm: str
    """``baseline`` or the variant."""
    why: str
    """The figures behind it, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSpeed:
    """The speeds of two runs."""

    ratios: tuple[ChangedFigure, ...] = ()
    not_gated: str = ""
    """Why figures are shown and not gated; empty where they are."""
    slower: tuple[Slowdown, ...] = ()
    doubtful: tuple[ChangedFigure, ...] = ()
    """Figures that would miss their gate, of times that are not the servers' alone."""
    late: tuple[ChangedFigure, ...] = ()
    """Times to first token that are surely much longer. No gate is on them."""

    @property
    def undecided(self) -> tuple[ChangedFigure, ...]:
        """The gated figures that are neither surely above their gate nor surely below it."""
        return tuple(figure for figure in self.ratios if figure.at_least is not None and figure.ruling is GateRuling.OPEN)

    def is_held(self, arm: str, workload: str) -> bool:
        """Return True if ``arm`` surely meets all its decode gates, one of them on ``workload``."""
        rulings = {
            figure.workload: figure.ruling
            for figure in self.ratios
            if figure.arm == arm and figure.figure is UpgradeFigure.DECODE and figure.at_least is not None
        }
        return workload in rulings and all(ruling is GateRuling.PROVEN for ruling in rulings.values())

    def without(self, variants: Iterable[str]) -> ComparedSpeed:
        """Return the comparison without the speeds of some variants."""
        left_out = frozenset(variants)
        return replace(
            self,
            ratios=tuple(figure for figure in self.ratios if figure.arm not in left_out),
            slower=tuple(slow for slow in self.slower if slow.arm not in left_out),
            doubtful=tuple(figure for figure in self.doubtful if figure.arm not in left_out),
            late=tuple(figure for figure in self.late if figure.arm not in left_out),
        )


def describe(figure: ChangedFigure) -> str:
    """Return a figure in words: ``decode speed of draft-k3: 41.9 -> 37.1 tokens/s, 0.89x [0.84, 0.94]``."""
    where = f" ({figure.workload})" if figure.workload else ""
    old, new = (_show(figure.figure, value) for value in (figure.old, figure.new))
    limits = f" [{figure.low:.2f}, {figure.high:.2f}]" if figure.has_limits else ""
    return f"{figure.figure.value} of {figure.arm}{where}: {old} -> {new}, {figure.ratio:.2f}x{limits}"


def _show(figure: UpgradeFigure, value: float) -> str:
    """Return a value with its unit."""
    if figure is UpgradeFigure.TTFT:
        return f"{1e3 * value:,.4g} ms"
    return f"{value:,.4g} tokens/s" if figure is UpgradeFigure.DECODE else f"{value:.2f}"
