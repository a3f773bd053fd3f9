"""Bursts as evidence of drafting, for a server that reports neither counters nor windows of the judged answers.

A burst is several tokens that arrive at a time in a stream, as the accepted drafts of one verify step do. Bursts are measured in the
streams of the capability probe. So they show that the server drafts, but not that it did so in the judged requests.
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
    """Return the bursts of tokens in the judged arm's probe streams.

    Returns None if they are not needed, since counters or verify windows, the tokens of each step, show the drafts of the judged answers;
    for the control, which does not draft; and if the probe of either server, with its streams, is missing.
    """
    windows = (choice.windows for answer in captured.speculative.answers for choice in answer.choices)
    if captured.is_control or captured.speculative.counters is not None or any(sizes is not None for sizes in windows):
        return None
    variant, baseline = (captured.capabilities.get(arm) for arm in (captured.arm, BASELINE))
    return bursts.compare_streams(variant.streams, baseline.streams) if variant and baseline else None


def describe_bursts(streams: Bursts | None) -> str:
    """Return a line on tokens arriving together, with both tests' p-values.

    ``streams`` are the bursts of the arm beside the baseline's; None if they cannot be compared. They show nothing either if several tokens
    of the baseline, which drafts nothing, arrive at a time. The tests are of more tokens at a time than the baseline's, and of the same
    places of bursts in a prompt asked again; drafting is shown if both p-values are small.
    """
    if streams is None:
        return "bursts: no streams of both servers to compare"
    if not streams.known:
        return f"bursts: unknown, {streams.baseline_median:.2f} tokens of the baseline arrive at a time, with nothing drafted"
    return (
        f"bursts: {streams.tokens_per_step:.2f} tokens at a time, the baseline's {streams.baseline_tokens_per_step:.2f}; more: "
        f"p = {streams.coarser_p:.1g}; at the same tokens again: p = {streams.repeated_p:.1g}; drafting: both below {bursts.LEVEL:g}"
    )
