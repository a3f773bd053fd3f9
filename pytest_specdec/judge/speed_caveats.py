"""Speed caveats: why an interval is too wide to be of use, and whether the machine was too busy to show a server's speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge import boot_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.judge.timing import MeasuredSpeed
    from pytest_specdec.model.captured import Captured

__all__ = ["busy", "cell", "is_wide", "wide"]

WIDE = 3.0
"""Upper over lower limit from which on an interval is not shown without the reason: no speedup and a threefold one are alike to it."""
_FEW = 4
"""Degrees of freedom below which limits lie far apart for want of passes alone: Student's t at 2.5 % is 2.8 with four, 12.7 with one."""


def is_wide(measured: MeasuredSpeed) -> bool:
    """Whether the limits of the shown interval lie too far apart to say anything."""
    return measured.interval is not None and measured.interval.high > WIDE * measured.interval.low


def cell(measured: MeasuredSpeed) -> str:
    """Return the ratio and its interval for a table; without the interval where that needs a sentence, for which a table has no room."""
    return f"{measured.ratio:.2f}x, interval too wide" if is_wide(measured) else measured.shown


def wide(captured: Captured, measured: MeasuredSpeed) -> str:
    """Return the sentence without which a wide interval is not shown; empty where it is none."""
    if measured.interval is None or not is_wide(measured):
        return ""
    factor = measured.interval.high / measured.interval.low
    return f"the interval spans a factor of {factor:,.3g}, which says next to nothing: {' and '.join(_reasons(captured, measured))}"


def _reasons(captured: Captured, measured: MeasuredSpeed) -> Iterator[str]:
    """Yield the larger part of the error, passes or boots, then what made it large."""
    found = measured.one_boot or measured.estimate
    if found is None:
        return
    if found.passes_sd**2 / found.passes >= found.standard_error**2 / 2.0:
        yield f"passes vary by {found.passes_sd:.0%}"
        if found.within_freedom < _FEW:
            yield f"{found.passes} passes are few"
    else:
        yield f"boots {'vary' if found.boots.freedom else 'are taken to vary'} by {found.boots.sd:.0%}"
    yield from (f"the machine was busy ({why})" for why in busy(captured)[:1])


def busy(captured: Captured) -> tuple[str, ...]:
    """Return what shows that the client's machine had more to do than its cores can, boot by boot; the worst first."""
    crowded = [arm for arm in boot_blocks.arms(captured) if arm.busy_machine]
    return tuple(dict.fromkeys(arm.busy_machine for arm in sorted(crowded, key=lambda arm: -(arm.machine_load or 0.0))))
