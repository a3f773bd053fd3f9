"""Flaws of a score: what a distribution at one token must hold before anything is judged by it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.transcript import Position

__all__ = ["LOWEST", "ROUNDING", "flaw", "is_logprob"]

ROUNDING = 1e-3
"""Nats, and probability, by which log-probabilities of one server and their sums may be off."""
LOWEST = -1e39
"""Below every number of single precision, which some engines write in place of minus infinity."""
_ALL = -0.01
"""Nats: a token of more has nearly all the probability, so that its server may list no other one."""


def flaw(position: Position, *, top_tokens: int) -> str:
    """Return the first contradiction in the scored distribution at one position.

    Checked are, in this order, the list of top tokens, its values, their ranking and their number, then the scored token itself. Empty if
    all are sound. ``top_tokens`` is the number of top tokens that the request asked for. If it is 2 or more, a list of one token is a flaw,
    since a better token may be missing, unless the listed one has nearly all the probability.
    """
    ids, logprobs, logprob = position.top_ids, position.top_logprobs, position.logprob
    if not logprobs or len(ids) != len(logprobs):
        return f"lists {len(ids)} tokens with {len(logprobs)} log-probabilities"
    if not all(map(is_logprob, logprobs)):
        return f"lists a log-probability of {next(value for value in logprobs if not is_logprob(value))}"
    if not math.isfinite(logprobs[0]):
        return "lists no best token: its log-probability is not finite"
    if any(lower > higher + ROUNDING for higher, lower in pairwise(logprobs)):
        return "lists tokens that are not ranked by falling probability"
    if top_tokens > 1 and len(logprobs) == 1 and logprobs[0] < _ALL:
        return f"lists one token, at {logprobs[0]:.4g} nats, where {top_tokens} were asked for: a better one may be missing"
    return _own_flaw(logprob, ids.index(position.token_id) if position.token_id in ids else None, logprobs)


def is_logprob(value: float) -> bool:
    """Return True if ``value`` can be a log-probability.

    Minus infinity can be one; slightly above 0 is allowed for rounding. nan and very low numbers are no log-probability.
    """
    return value == -math.inf or LOWEST <= value <= ROUNDING


def _own_flaw(logprob: float, place: int | None, logprobs: Sequence[float]) -> str:
    """Return the contradiction between the scored token and the top list.

    ``logprob`` is the token's own log-probability, ``logprobs`` are those of the list, and ``place`` is the token's index in it, None if it
    is not listed. A listed token must have the list's value. An unlisted one must not be more probable than the best, and may be nan, since
    some routes report top tokens only. Empty without a contradiction.
    """
    if place is None:
        is_sound = math.isnan(logprob) or (is_logprob(logprob) and logprob <= logprobs[0] + ROUNDING)
        return "" if is_sound else f"has a log-probability of {logprob}, the best one listed has {logprobs[0]:.4g}"
    listed = logprobs[place]
    if logprob == listed or abs(logprob - listed) <= ROUNDING:  # equal infinities have no difference
        return ""
    return f"has a log-probability of {logprob}, and of {listed:.4g} in the list"
