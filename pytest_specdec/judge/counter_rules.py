"""Rules of a server's speculation counters over one workload: among themselves, and against the answers' verify windows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import DraftKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import SpecCounters, Transcript

__all__ = ["STILL", "UNEVEN", "broken"]

UNEVEN = "the speculation counters do not add up"
STILL = "the speculation counters stand still"
_ENOUGH = 20
"""Accepted tokens in windows of the answers beside which counters of 0 are no accident."""
_MOST_DRAFTED = 32
_SLACK, _ROUNDED = 8, 0.05
"""Tokens, and part of the tokens, by which figures may be off that were read from rounded lines of a log or estimated."""
_CHAINS = frozenset({DraftKind.MODEL, DraftKind.NGRAM})
"""Drafters that propose as many tokens as can be accepted; heads may propose a tree of them."""


def broken(part: Captured) -> tuple[str, str] | None:
    """Return the name of a breach and its figures; None where there is none, and where the counters may count something else too."""
    transcript = part.speculative
    counters = transcript.counters
    shared = transcript.foreign or transcript.uncounted or transcript.replaced or transcript.restarts or transcript.server_failures
    if counters is None or shared or not all(answer.ok for answer in transcript.answers):
        return None
    seen = _seen(transcript)
    if counters.drafts <= 0 and seen >= _ENOUGH:
        return STILL, f"{counters.drafts} drafts counted while the answers show {seen} accepted draft tokens"
    what = next(_uneven(counters, part), "") or _more_than_emitted(counters, part)
    return (UNEVEN, what) if what else None


def _seen(transcript: Transcript) -> int:
    """Return the accepted draft tokens that the answers' windows show."""
    return sum(window - 1 for answer in transcript.answers for choice in answer.choices for window in choice.windows or ())


def _uneven(counters: SpecCounters, part: Captured) -> Iterator[str]:
    """Yield what no count of drafts can be, by more than engines lose that round their figures or estimate one from others."""
    draft, by_position = part.pair.variant.draft, counters.accepted_per_position
    most = draft.tokens if draft.kind in _CHAINS else 0
    slack = _SLACK + _ROUNDED * counters.accepted_tokens
    if counters.accepted_tokens > counters.draft_tokens + slack:
        yield f"{counters.accepted_tokens} tokens accepted of {counters.draft_tokens} drafted"
    if most and counters.draft_tokens > most * counters.drafts * (1 + _ROUNDED) + _SLACK:
        yield f"{counters.draft_tokens} tokens in {counters.drafts} drafts of {most} at most"
    if min(counters.drafts, counters.draft_tokens, counters.accepted_tokens) < -_SLACK:
        yield "a counter went down"
    if by_position and abs(sum(by_position) - counters.accepted_tokens) > slack:
        yield f"{counters.accepted_tokens} tokens accepted, {sum(by_position)} over all positions"
    if any(later > earlier + slack for earlier, later in pairwise(by_position)):
        yield f"a later position is accepted more often than an earlier one: {by_position}"


def _more_than_emitted(counters: SpecCounters, part: Captured) -> str:
    """Report more tokens of verify steps than the answers hold: each step emits what it accepts and one more, the last may be cut."""
    answers = part.speculative.answers
    choices = sum(len(answer.choices) for answer in answers)
    counts = [answer.usage.completion_tokens if answer.usage else sum(len(c.token_ids) for c in answer.choices) for answer in answers]
    emitted, steps = sum(counts), counters.drafts + counters.accepted_tokens
    leeway = 2 * choices * ((part.pair.variant.draft.tokens or _MOST_DRAFTED) + 1)
    if not all(counts) or steps <= emitted + leeway:
        return ""
    return f"steps of {steps} tokens counted, {emitted} answered"
