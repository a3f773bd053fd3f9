"""Where in its window a token stands, as chances: certain where windows are known, filtered from the tokens where the draft's law is.

A window goes on behind a draft slot if the draft token was accepted. Of a correct server that emitted x there, it was with chance
``min(1, q(x)/p(x))``, which hangs on x and both laws only: so the place of the next token has a law given the tokens before it, by the
forward recursion of a hidden Markov chain (Rabiner 1989, section III.A). Bets may be weighed with it, since nothing of the token itself
enters. A draft that is certain leaves no doubt, and the windows follow from the tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Bools, Floats
    from pytest_specdec.stats.places import Places

__all__ = ["CLEAN", "PLAIN", "Chances", "certain", "chances", "filtered"]

DRAFT, BONUS, PLAIN = 0, 1, 2
"""PLAIN: nothing was drafted, as for the prefill's token."""
CLEAN, EVER, SHORT = 0, 1, 2
"""No draft token of the answer was rejected before; one was; one was in the very window before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chances:
    """The chances of N tokens to stand at a draft slot, a bonus slot or where nothing was drafted, behind rejections or not."""

    at: Floats
    """[N, 3, 3]: DRAFT, BONUS and PLAIN by CLEAN, EVER and SHORT; they add up to one, or to 0 where nothing tells."""

    @property
    def draft(self) -> Floats:
        """[N], of a draft slot."""
        return np.asarray(self.at[:, DRAFT].sum(axis=1))

    @property
    def bonus(self) -> Floats:
        """[N], of a bonus slot."""
        return np.asarray(self.at[:, BONUS].sum(axis=1))

    @property
    def after_rejection(self) -> Floats:
        """[N], of the verify step behind a rejection."""
        return np.asarray(self.at[:, :, SHORT].sum(axis=1))

    @property
    def rejected_before(self) -> Floats:
        """[N], of any rejection before in the answer."""
        return np.asarray(self.at[:, :, EVER:].sum(axis=(1, 2)))


def certain(places: Places) -> Chances:
    """Return the chances of known windows, 0 or 1; all 0 where the window is not known."""
    at = np.zeros((len(places.slot), 3, 3))
    state = np.where(places.after_rejection, SHORT, np.where(places.rejected_before, EVER, CLEAN))
    for slot, here in ((DRAFT, places.draft_slot), (BONUS, places.bonus_slot), (PLAIN, places.known & (places.drafted == 0))):
        at[here, slot, state[here]] = 1.0
    return Chances(at=at)


def filtered(kept: Floats, drafted: Bools, last: Bools, k: int) -> Chances:
    """Return the chances of hidden windows, answer by answer; the first token of each is the prefill's, every window drafts ``k`` tokens.

    ``kept`` [N] is the chance that a correct server that emits the token at a draft slot had accepted it; ``drafted`` [N] tells where it
    is known: elsewhere nothing is taken to be drafted, and the next token begins a window. ``last`` [N] marks the ends of answers.
    """
    starts = np.flatnonzero(np.concatenate([[True], last[:-1]]))
    lengths = np.diff([*starts.tolist(), len(last)])
    at = np.zeros((len(last), 3, 3))
    at[starts, PLAIN, CLEAN] = 1.0
    now = np.zeros((len(starts), k + 1, 3))
    now[:, 0, CLEAN] = 1.0
    for step in range(1, int(lengths.max(initial=0))):
        going = lengths > step
        rows, state = starts[going] + step, now[going]
        known = drafted[rows][:, None]
        slots = np.stack([state[:, :k].sum(axis=1), state[:, k]], axis=1)
        at[rows, DRAFT:PLAIN] = np.where(known[:, None], slots, 0.0)
        at[rows, PLAIN] = np.where(known, 0.0, state.sum(axis=1))
        now[going] = np.where(known[:, None], _behind(state, kept[rows]), _again(state))
    return Chances(at=at)


def _behind(state: Floats, kept: Floats) -> Floats:
    """Return the chances [A, k+1, 3] of the next token's place from those of this one, whose window goes on with chance ``kept`` [A]."""
    after = np.zeros_like(state)
    after[:, 1:] = state[:, :-1] * kept[:, None, None]
    after[:, 0, SHORT] = (state[:, :-1] * (1.0 - kept)[:, None, None]).sum(axis=(1, 2))
    after[:, 0, CLEAN] += state[:, -1, CLEAN]
    after[:, 0, EVER] += state[:, -1, EVER] + state[:, -1, SHORT]
    return after


def _again(state: Floats) -> Floats:
    """Return the chances behind a token for which nothing was drafted: a window begins."""
    after = np.zeros_like(state)
    after[:, 0] = state.sum(axis=1)
    return after


def chances(places: Places, kept: Floats | None, drafted: Bools, k: int) -> Chances:
    """Return what is known of the places: ``places`` themselves, and for tokens whose window they do not tell the filter, if there is q."""
    known = certain(places)
    if kept is None or bool(places.known.all()):
        return known
    hidden = filtered(kept, drafted, places.last, k)
    return Chances(at=np.where(places.known[:, None, None], known.at, hidden.at))
