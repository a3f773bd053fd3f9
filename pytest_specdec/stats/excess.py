"""Excess: a bet that one arm has more rare events per token than its peers, in one round or in several.

Null hypothesis: an event comes at a token of the arm with at most the probability that it has at a token of the peers, independently from
token to token. Given an event of a round in which the arm has ``n`` of all ``n + m`` tokens, it is the arm's with probability ``w = n / (n
+ m)`` at most (Przyborowski and Wilenski 1940). A bettor on a probability ``q > w`` multiplies its wealth by ``q / w`` for an event of the
arm and by ``(1 - q) / (1 - w)`` for one of the peers: 1 at most in the mean, in every round, whatever came before. So the mean wealth of
several bettors is an e-process over rounds, and reaches 1/alpha with probability alpha at most (Ville 1939).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EventCount", "alarm_at", "log_evidence"]

_BETS = (0.5, 0.8, 0.95, 0.999)
"""The bettors' shares of the distance from w to 1: the least is for a rate a few times the peers', the last for peers without events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCount:
    """The events of one round, of the arm and of its peers, with the tokens at which they could occur."""

    events: int
    tokens: int
    peer_events: int
    peer_tokens: int


def log_evidence(rounds: Sequence[EventCount]) -> float:
    """Return the natural log of the bettors' wealth over all rounds.

    It is evidence that the arm has more events per token than its peers, and an alarm from ``-ln(alpha)`` on. It is 0 without events.
    Rounds in which either side has no tokens count for nothing.
    """
    paths = np.zeros(len(_BETS))
    for count in rounds:
        if count.tokens and count.peer_tokens:
            # The arm's share of the events: w by the null hypothesis, at most, and q by each bettor.
            w = count.tokens / (count.tokens + count.peer_tokens)
            q = w + np.array(_BETS) * (1.0 - w)
            paths += count.events * np.log(q / w) + count.peer_events * np.log((1.0 - q) / (1.0 - w))
    return float(np.logaddexp.reduce(paths)) - log(len(_BETS))


def alarm_at(tokens: int, peer_events: int, peer_tokens: int, alpha: float) -> int | None:
    """Return the least number of events for an alarm at ``alpha``.

    They are events of the arm, which has ``tokens``, in one round; the peers have ``peer_events`` at ``peer_tokens``. None if an event at
    each of the arm's tokens would not be enough, or if the peers have no tokens.
    """
    for events in range(1, tokens + 1 if peer_tokens else 0):
        count = EventCount(events=events, tokens=tokens, peer_events=peer_events, peer_tokens=peer_tokens)
        if log_evidence([count]) >= -log(alpha):
            return events
    return None
