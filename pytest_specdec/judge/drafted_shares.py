"""Drafted shares: how many of the tokens are accepted drafts, round by round of a soak, on a server and on its ranks.

A soak sends the same traffic for minutes, and a round is one stretch of it. A rank is a part of the server with counters of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.stats.decline import decline, theil_sen_slope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.soak import SoakRound
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.decline import Decline

__all__ = ["LEAST_DRAFTED", "LEAST_ROUNDS", "DraftedShares", "RankDrafts", "RankRound", "rank_drafts", "server_shares"]

LEAST_ROUNDS = 14
"""Rounds needed: of fewer not even a fall from each to the next is sure enough, the first sixth left out."""
LEAST_DRAFTED = 0.02
"""Least share of accepted drafts among the tokens at first: a fall from less cannot be seen."""
_SETTLING = 6
"""One round in so many, the first ones, is left out: caches, graphs and clocks settle in them."""
_SEEN = 0.5
"""Fraction of a rank's lost accepted drafts that the server has to have lost too: without a fault other ranks have gained them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedShares:
    """The share of accepted drafts among the tokens of a server or of a rank, round by round."""

    shares: tuple[float, ...]
    """Of the rounds in which it is known."""
    requests: tuple[float, ...]
    """Requests that the server answered until the end of each of these rounds."""

    @property
    def fall(self) -> Decline | None:
        """The fall over the settled rounds; None if they are too few, or if hardly anything was drafted from the beginning."""
        fall = decline(self.shares[len(self.shares) // _SETTLING :]) if len(self.shares) >= LEAST_ROUNDS else None
        return fall if fall is not None and fall.first >= LEAST_DRAFTED else None

    @property
    def slope(self) -> float:
        """Slope of the share per 1,000 requests, by Theil and Sen."""
        return 1000.0 * theil_sen_slope(self.requests, self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRound:
    """What one rank drafted in one round of a soak."""

    whole: SoakRound
    """The round of the whole server."""
    requests: float
    """Requests that the server answered until the round's end."""
    share: float
    """The rank's accepted drafts, as a share of ``tokens``."""
    tokens: int
    """Tokens that the rank generated, or those that it drafted if it does not count the former."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDrafts:
    """The drafts of one rank, round by round, with the server's own figures of each round beside them (``whole``)."""

    name: str
    rounds: tuple[RankRound, ...]
    """Those in which it has tokens."""

    @property
    def shares(self) -> DraftedShares:
        """The shares of its tokens that are accepted drafts."""
        return DraftedShares(shares=tuple(one.share for one in self.rounds), requests=tuple(one.requests for one in self.rounds))

    @property
    def is_lost_to_server(self) -> bool:
        """True if the server's share of accepted drafts falls with the rank's.

        Without a fault other ranks gain the accepted drafts that one rank loses: the server must have lost at least half of them. The first
        and the last third of the rounds are compared, after the first sixth, in which caches and clocks settle. False if these are too few.
        """
        counted = [one for one in self.rounds if one.whole.drafted_share is not None]
        settled = counted[len(counted) // _SETTLING :]
        third = len(settled) // 3
        if not third:
            return False
        first, last = settled[:third], settled[-third:]
        fall_of_rank = _rank_share(first) - _rank_share(last)
        fall_of_server = _server_share(first) - _server_share(last)
        # By so much the rank's fall lowers the server's share, by its part of the tokens in the last third, where the drafts are missing.
        rank_loss = fall_of_rank * sum(one.tokens for one in last) / max(1, sum(one.whole.tokens for one in last))
        return rank_loss > 0.0 and fall_of_server >= _SEEN * rank_loss


def _rank_share(rounds: Sequence[RankRound]) -> float:
    """Return the share of accepted drafts among a rank's tokens of several rounds."""
    return sum(one.share * one.tokens for one in rounds) / max(1, sum(one.tokens for one in rounds))


def _server_share(rounds: Sequence[RankRound]) -> float:
    """Return the share of accepted drafts among the server's tokens of several rounds."""
    accepted = sum((one.whole.drafted_share or 0.0) * one.whole.tokens for one in rounds)
    return accepted / max(1, sum(one.whole.tokens for one in rounds))


def server_shares(transcript: Transcript) -> DraftedShares:
    """Return a server's shares of accepted drafts, round by round of its soak.

    Rounds with an unknown share are left out.
    """
    rounds = zip(transcript.soak, _sum_requests(transcript), strict=True)
    points = [(share, requests) for one, requests in rounds if (share := one.drafted_share) is not None]
    return DraftedShares(shares=tuple(share for share, _ in points), requests=tuple(requests for _, requests in points))


def rank_drafts(transcript: Transcript) -> list[RankDrafts]:
    """Return the drafts of each rank of a server, round by round of its soak.

    Rounds in which a rank has no tokens are left out.
    """
    by_name: dict[str, list[RankRound]] = {}
    for whole, requests_until in zip(transcript.soak, _sum_requests(transcript), strict=True):
        for rank in whole.ranks:
            # Without a count of generated tokens the share is the rank's acceptance rate, among its draft tokens.
            tokens = rank.counters.draft_tokens if rank.generated_tokens is None else rank.generated_tokens
            if tokens:
                share = rank.counters.accepted_tokens / tokens
                by_name.setdefault(rank.name, []).append(RankRound(whole=whole, requests=requests_until, share=share, tokens=tokens))
    return [RankDrafts(name=name, rounds=tuple(rounds)) for name, rounds in by_name.items()]


def _sum_requests(transcript: Transcript) -> list[float]:
    """Return the requests answered until the end of each round of a soak."""
    return [float(total) for total in accumulate(one.requests for one in transcript.soak)]
