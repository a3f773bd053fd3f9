"""One line on how far a capture is: a count, a rate, an expected end; times and counts as all lines of a report have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from pytest_specdec.model.status import Progress


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, ``1:05``, from an hour on ``1:02:05``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural for all counts but 1."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def same_step(now: Progress, then: Progress | None) -> bool:
    """Return True if both belong to one step.

    A step is the same boot doing the same thing for the same workload.
    """
    return then is not None and (now.boot, now.arm, now.doing, now.workload) == (then.boot, then.arm, then.doing, then.workload)


def line(now: Progress, began: Progress, run: str = "") -> str:
    """Return the progress line for ``now``: boot, step, rate and time.

    ``began`` is the first progress of the same step, from which the rate is counted. ``run`` names one of several runs at once.
    """
    parts = [
        run,
        f"boot {now.boot + 1}/{now.boots} {now.arm}",
        f"{now.doing} {now.workload}".strip() + _describe_count(now),
        _describe_rate(now, began),
        _describe_time(now),
    ]
    return printable("specdec: " + " · ".join(part for part in parts if part))


def _describe_count(now: Progress) -> str:
    return f" {now.done}/{now.of}" if now.of else ""


def _describe_rate(now: Progress, began: Progress) -> str:
    """Return the tokens per second since the step began."""
    seconds = now.at_s - began.at_s
    tokens = now.tokens - began.tokens
    return f"{tokens / seconds:,.0f} tokens/s" if tokens > 0 and seconds > 0 else ""


def _describe_time(now: Progress) -> str:
    remaining = f", {clock(now.remaining_s)} left" if now.remaining_s is not None else ""
    return f"{clock(now.at_s)} so far{remaining}"
