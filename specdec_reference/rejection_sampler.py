"""The rejection sampler: exact verification of a batch of drafts, as pure functions.

Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative Decoding", algorithm 1; Chen et al. (2023). A draft
token x ~ q is accepted with probability min(1, p(x)/q(x)). After the first rejection one token is drawn from max(p - q, 0) normalised;
without a rejection, one from p at the next position. Every emitted token then follows p. Arrays of p are packed: a row (a sequence) has a
line for each of its draft tokens and one after the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_reference.rules import EngineRules


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftProposal:
    """The draft tokens of n rows, at most k each."""

    tokens: NDArray[np.intp]
    """(n, k); entries beyond a row's count are there for the shape only."""
    counts: NDArray[np.intp]
    """(n,): how many of them the row proposes."""
    q: NDArray[np.float32] | None = None
    """(n, k, vocabulary): the distribution each was drawn from; None where they are certain, a one-hot distribution."""

    @property
    def width(self) -> int:
        """The most draft tokens of a row: k."""
        return int(self.tokens.shape[1])

    @property
    def starts(self) -> NDArray[np.intp]:
        """First line of each row, (n,).

        Every row has ``counts`` + 1 lines, packed one after the other.
        """
        lines = self.counts + 1
        return np.cumsum(lines) - lines

    def mass(self) -> NDArray[np.float64]:
        """Return q of each proposed token, (n, k)."""
        if self.q is None:
            return np.ones(self.tokens.shape)
        return np.take_along_axis(self.q, self.tokens[..., None], axis=2)[..., 0].astype(np.float64)

    def distribution(self, rows: NDArray[np.intp], at: NDArray[np.intp], vocabulary: int) -> NDArray[np.float64]:
        """Return q of some rows, each at one draft position.

        It is (len(rows), vocabulary): row ``rows[i]`` at position ``at[i]``. It is one-hot where drafts are certain.
        """
        if self.q is not None:
            return self.q[rows, at].astype(np.float64)
        certain = np.zeros((len(rows), vocabulary))
        certain[np.arange(len(rows)), self.tokens[rows, at]] = 1.0
        return certain


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyWindows:
    """The tokens that n rows emit in one step: the accepted part of the draft, then one token."""

    accepted: NDArray[np.intp]
    """(n,): accepted draft tokens."""
    last: NDArray[np.intp]
    """(n,): the recovered token after a rejection, the bonus token without one."""


def accept(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the mask of accepted draft tokens.

    Each is accepted with probability min(1, p/q).
    """
    accepted: NDArray[np.bool_] = uniforms * q < p
    return accepted


def residual(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unnormalised distribution of a recovered token.

    It is max(p - q, 0), rows by vocabulary.
    """
    recovered = np.maximum(p - q, 0.0)
    # p = q up to float32 rounding leaves nothing; then p is the distribution in the limit.
    empty_rows = ~recovered.any(axis=1)
    recovered[empty_rows] = p[empty_rows]
    return recovered


def verify(p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], rules: EngineRules) -> VerifyWindows:
    """Return the windows of n rows.

    ``p`` is (lines, vocabulary), the target's distribution at each proposed token and after the last, row
    after row. ``uniforms`` is (n, k + 1): k to accept by, one to draw by.
    """
    n, k = draft.tokens.shape
    starts, accepted = draft.starts, np.zeros(n, np.intp)
    if k:
        proposed = np.arange(k) < draft.counts[:, None]
        lines = np.where(proposed, starts[:, None] + np.arange(k), 0)  # where nothing is proposed any line does
        target_mass = p[lines, draft.tokens].astype(np.float64)
        passed = rules.accept(target_mass, draft.mass(), uniforms[:, :k]) & proposed
        accepted = np.logical_and.accumulate(passed, axis=1).sum(axis=1)
    distribution = p[starts + accepted].astype(np.float64)
    rejected = np.flatnonzero(accepted < draft.counts)
    if len(rejected):
        distribution[rejected] = rules.residual(distribution[rejected], draft.distribution(rejected, accepted[rejected], p.shape[1]))
    return VerifyWindows(accepted=accepted, last=pick(distribution, uniforms[:, k]))
