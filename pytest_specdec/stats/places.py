"""Where an emitted token stood in its verify step, as far as that is known before the token is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_specdec.stats.laws import Bools, Ints

__all__ = ["UNKNOWN", "Places", "joined", "placed", "unplaced"]

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Window places of N tokens.

    A bettor may use ``slot``, ``drafted``, ``after_rejection`` and ``rejected_before``: let F_t hold the tokens up to t and whether the
    window of each of them went on behind it. A correct server draws token t+1 from p given F_t, at a draft slot (draft, accept, else
    recover: marginally p whatever q) as at a bonus slot. The slot of t+1 is that of t plus one where t's window went on and 0 where it
    ended, so it is in F_t; the windows before it, and whether they came short of their draft, are in F_t as well. ``ended`` is not:
    whether t's own window goes on is told after t and depends on it, so no token may be chosen by its own ``ended`` (accepted tokens do
    not follow p); it serves the naming only.
    """

    slot: Ints
    """[N], tokens emitted before it in its window; UNKNOWN where windows are."""
    drafted: Ints
    """[N], draft tokens of its window; UNKNOWN where windows are."""
    after_rejection: Bools
    """[N], whether it stands in the verify step that follows a window shorter than its draft plus one."""
    rejected_before: Bools
    """[N], whether any earlier window of its answer was."""
    ended: Bools
    """[N], whether its window ended with it."""
    last: Bools
    """[N], whether it is the last token of its answer: a limit may have cut its window."""
    implied: bool = False
    """Whether the windows are those of a correct server with these drafts, not told by the server: nothing can be learnt from them."""

    @property
    def known(self) -> Bools:
        """[N], whether the window is known."""
        return np.asarray(self.slot != UNKNOWN)

    @property
    def draft_slot(self) -> Bools:
        """[N], where a draft token was verified."""
        return self.known & (self.slot < self.drafted)

    @property
    def bonus_slot(self) -> Bools:
        """[N], where every draft token had been accepted and the target's own token followed."""
        return np.asarray(self.known & (self.slot == self.drafted) & (self.drafted > 0))


def placed(windows: Sequence[int], tokens: int, drafts: Callable[[int], int]) -> Places:
    """Return the places of an answer's tokens, from its window lengths, the prefill's first.

    ``drafts`` tells how many tokens were drafted for the window that begins after so many emitted tokens. Tokens that the windows do not
    cover are UNKNOWN.
    """
    places = unplaced(tokens)
    start, short, ever = 0, False, False
    for step, length in enumerate(windows):
        if start >= tokens:
            break
        drafted = drafts(start) if step else 0
        here = slice(start, min(start + length, tokens))
        places.slot[here] = np.arange(here.stop - here.start)
        places.drafted[here] = drafted
        places.after_rejection[here] = short
        places.rejected_before[here] = ever
        places.ended[here.stop - 1] = here.stop == start + length
        short = drafted > 0 and length < drafted + 1
        ever |= short
        start += length
    return places


def unplaced(tokens: int) -> Places:
    """Return the places of an answer whose windows are unknown."""
    none = np.zeros(tokens, dtype=np.bool_)
    return Places(
        slot=np.full(tokens, UNKNOWN, dtype=np.int64),
        drafted=np.full(tokens, UNKNOWN, dtype=np.int64),
        after_rejection=none.copy(),
        rejected_before=none.copy(),
        ended=none.copy(),
        last=np.arange(tokens) == tokens - 1,
    )


def joined(parts: Sequence[Places]) -> Places:
    """Return the places of all answers, one behind the other."""
    return Places(
        slot=np.concatenate([part.slot for part in parts]),
        drafted=np.concatenate([part.drafted for part in parts]),
        after_rejection=np.concatenate([part.after_rejection for part in parts]),
        rejected_before=np.concatenate([part.rejected_before for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
        last=np.concatenate([part.last for part in parts]),
        implied=any(part.implied for part in parts),
    )
