"""Observed: what is known of the emitted tokens, and of each before it came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.chances import Chances, chances

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.stats.laws import Bools, Floats, Ints, Law
    from pytest_specdec.stats.places import Places

__all__ = ["NOBODY", "TAIL", "WIDEST_VOCABULARY", "Observed"]

NOBODY = -1
"""The id before a text's first token."""
TAIL = -2
"""The tail's id."""

WIDEST_VOCABULARY = 2**18
"""Taken for the vocabulary's size where it is unknown: a size that is too large costs power and never validity."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """N emitted tokens with everything that was known before each of them."""

    law: Law
    ids: Ints
    """[N, K], the atoms' token ids."""
    q: Floats | None
    """[N, K+1], the draft's law on the same outcomes; None where it is not known at all."""
    drafted: Bools
    """[N], where ``q`` is known and there was a draft, or would be if a window began here."""
    places: Places
    k: int
    """Draft tokens per verify step."""
    kept: Floats | None = None
    """[N], ``min(1, q(x)/p(x))`` of the emitted token: the chance that a correct server had accepted it as a draft; None with ``q``."""
    q_chosen: Floats | None = None
    """[N], lower bound on q of the emitted token itself, adding up to one at most over all tokens; None where tokens are listed only."""
    accept: Floats | None = None
    """[N], ``min(1, p(x)/q(x))`` of the emitted token: the chance of its acceptance had it been drafted; None with ``q``."""
    listed: Bools | None = None
    """[N, K+1], outcomes at which ``q`` is exact; None with ``q``."""
    q_unasked: Floats | None = None
    """[N, K+1], the draft's law where nothing that the request asks for is done; None with ``q``."""
    vocabulary: int = 0
    """0 where unknown."""
    previous: Ints | None = None
    """[N], the token id before each, -1 for an answer's first; None where the order of tokens tells nothing."""
    contexts: Ints | None = None
    """[N], the same number where prompt and answer so far are the same; None with ``previous``."""
    ends: Bools | None = None
    """[N, K+1], outcomes that end an answer; None where they are not known."""
    copies: Floats | None = None
    """[N, K+1], the law of a server that may give an earlier answer to the same prompt again; None where no prompt comes twice."""
    mishandled: Mapping[str, Floats] = field(default_factory=dict)
    """Laws [N, K+1] of a server that ignores penalties and biases or applies them twice, by name; empty where none are asked for."""

    @property
    def tokens(self) -> int:
        """How many."""
        return len(self.law.outcome)

    @property
    def before(self) -> Ints:
        """[N], ``previous``, or else the atom emitted before in the same answer: TAIL where it was none, NOBODY for an answer's first."""
        if self.previous is not None:
            return self.previous
        ids = np.column_stack([self.ids, np.full(self.tokens, TAIL)])
        emitted = np.take_along_axis(ids, self.law.outcome[:, None], axis=1)[:-1, 0]
        return np.concatenate([[NOBODY], np.where(self.places.last[:-1], NOBODY, emitted)]).astype(np.int64)

    @property
    def stands(self) -> Chances:
        """Where in their windows the tokens stand, as far as windows or the draft's law tell."""
        return chances(self.places, self.kept, self.drafted, self.k)

    @property
    def slots_told(self) -> bool:
        """Whether anything tells where tokens stand."""
        return self.q is not None or bool(self.places.known.any())

    @property
    def size(self) -> int:
        """The vocabulary's size, or what is taken for it."""
        return max(self.vocabulary or WIDEST_VOCABULARY, int(self.ids.shape[1]) + 1)
