"""How two baselines relate, line by line, as the comparison of two runs shows it.

A baseline is a model served without speculation. The shift between two is the standard deviation, in nats, of one logit's difference after
the same tokens. Noise is what differs between two boots or kernels of one build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_noise import RESOLUTION
from pytest_specdec.report import old_tokens
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.stats.logit_shift import LogitShift

__all__ = ["describe_dated", "lines", "shift_bound"]

_WIDEST = 120
_SHOWN = 3
"""Differing answers, and prompts with other ids, that are listed."""


def _shorten(text: str) -> str:
    """Return a text on one line of at most :data:`_WIDEST` characters."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def shift_bound(change: BaselineChange | None) -> str:
    """Return the largest plausible shift between two baselines: ``0.0012 nats per logit``.

    It is the upper limit of the measured shift, or if larger :data:`RESOLUTION`, up to which no shift counts as a change.
    """
    return f"{max(change.shift.high if change and change.shift else 0.0, RESOLUTION):.2g} nats per logit"


def describe_dated(change: BaselineChange) -> str:
    """Return a clause on prompts of which a few token ids differ; empty without any.

    A chat template may write the date into a prompt, so that runs of two days differ in these ids. The new run scores the old answers
    after the old run's own ids: by these scores both baselines are compared on such prompts.
    """
    if not change.dated_prompts:
        return ""
    few = f"{change.dated_prompts} of {change.prompts} prompts differ in a few token ids, as by a date"
    return f"{few}, and were compared after the old ids only"


def lines(change: BaselineChange) -> Iterator[str]:
    """Yield lines on the prompts, distributions and answers of two baselines.

    Lists of what differs are cut to the first few entries. The scores of either engine's tokens by the other come last.
    """
    yield from _prompt_lines(change)
    if change.shift:
        yield _describe_shift(change, change.shift)
    yield from _answer_lines(change)
    yield from old_tokens.lines(change.old)
    yield from old_tokens.new_lines(change.new)


def _prompt_lines(change: BaselineChange) -> Iterator[str]:
    """Yield lines on the token ids of both runs' prompts.

    Prompts with many other ids are listed. Without any, prompts with a few other ids are counted (``dated_prompts``, as a date in the chat
    template is the usual reason), and among them those that no date explains (``undated_prompts``).
    """
    if not change.prompts:
        yield "prompts: none was scored in both runs"
    elif change.other_prompts:
        yield f"prompts: {len(change.other_prompts)} of {change.prompts} have other token ids"
        yield from (printable(f"  {_shorten(prompt)}") for prompt in change.other_prompts[:_SHOWN])
    elif change.dated_prompts:
        exceptions = f"; {change.undated_prompts} of them not as by a date" if change.undated_prompts else ""
        remark = exceptions or ", as where the template writes the date"
        yield f"prompts: {change.dated_prompts} of {change.prompts} differ in a few token ids{remark}"
    else:
        yield f"prompts: all {change.prompts} have the same token ids"


def _describe_shift(change: BaselineChange, shift: LogitShift) -> str:
    """Return a line on the distance of the distributions.

    It says how much of that distance the noise of both runs explains (``allowed``), and how much if a boot may also shift all its scores
    alike, for as long as it runs (``boots_allow``). A run with one boot of its baseline cannot measure that shift.
    """
    distance = f"{shift.nats:.2g} nats per logit apart [{shift.low:.2g}, {shift.high:.2g}]"
    noise = f"; the noise of both runs explains up to {change.allowed:.2g}" if change.allowed else ""
    boots_explain_more = change.boots_allow > change.allowed + RESOLUTION
    with_boots = f", {change.boots_allow:.2g} with what a boot may keep" if boots_explain_more else ""
    return f"distributions: {distance} over {shift.positions:,} positions of {shift.prompts} prompts{noise}{with_boots}"


def _answer_lines(change: BaselineChange) -> Iterator[str]:
    """Yield lines on the answers at temperature 0 to the requests of both runs.

    They are counts, then the first few answers with another token, with another end, and without an answer in the new run. The gap of two
    tokens is the difference of their log-probabilities.
    """
    if change.answers:
        yield (
            f"answers at temperature 0: {change.alike} of {change.answers} alike, {len(change.differences)} with another token, "
            f"{change.beyond} of them beyond noise; {len(change.other_ends)} end elsewhere"
        )
    for difference in change.differences[:_SHOWN]:
        tokens = f"id {difference.old_id} -> id {difference.new_id}"
        yield printable(f"  {difference.request_id}, token {difference.index + 1}: {tokens}, {difference.gap:.2f} nats apart")
    if change.other_ends:
        yield printable(f"  end elsewhere: {', '.join(change.other_ends[:_SHOWN])}")
    if change.lost:
        yield printable(f"  {len(change.lost)} that the new run has no answer to: {', '.join(change.lost[:_SHOWN])}")
