"""Bursts as evidence of drafting, where neither counters nor windows of the judged answers tell.

They are those of a probe's streams. So they show that the server drafts, and not that it did in the judged requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.stats import bursts

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.stats.bursts import Bursts

__all__ = ["SEEN", "describe_bursts", "uncounted_bursts"]

SEEN = "drafting seen by bursts of its stream, not counted"


def uncounted_bursts(captured: Captured) -> Bursts | None:
    """Return the bursts of the judged arm; None where its drafts are counted, for the control, and where the probe was not answered."""
    windows = (choice.windows for answer in captured.speculative.answers for choice in answer.choices)
    if captured.is_control or captured.speculative.counters is not None or any(each is not None for each in windows):
        return None
    mine, theirs = (captured.capabilities.get(arm) for arm in (captured.arm, BASELINE))
    return bursts.bursts(mine.streams, theirs.streams) if mine and theirs else None


def describe_bursts(streams: Bursts | None) -> str:
    """Return what the bursts say, with both tests."""
    if streams is None:
        return "bursts: no streams of both servers to compare"
    if not streams.known:
        return f"bursts: unknown, {streams.baseline_median:.2f} tokens of the baseline arrive at a time, with nothing drafted"
    return (
        f"bursts: {streams.tokens_per_step:.2f} tokens at a time, the baseline's {streams.baseline_tokens_per_step:.2f}; more: "
        f"p = {streams.coarser_p:.1g}; at the same tokens again: p = {streams.repeated_p:.1g}; drafting: both below {bursts.LEVEL:g}"
    )
