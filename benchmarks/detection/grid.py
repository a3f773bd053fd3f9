"""A grid: what every bettor of the panel is paid, for each position of a bank, each outcome, and each place of a window.

The panel itself is asked, once for each combination, so a run of any length is read off instead of bet anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.chances import PLAIN, filtered
from pytest_specdec.stats.panel import bettors
from pytest_specdec.stats.simulation import observe, trace_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_specdec.stats.bank import Bank
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.laws import Floats, Ints
    from pytest_specdec.stats.simulation import Trace

__all__ = ["EXACT", "NONE", "SURROGATE", "Grid", "grid"]

EXACT, SURROGATE, NONE = "q", "surrogate", "without q"
"""What the judge knows of the draft: its law; nothing, so that it guesses; nothing, and the guesses do not bet."""
STATES = ((False, False), (False, True), (True, True))
"""Whether the window before came short of its draft, and whether any did."""
PLACES = (("plain", *STATES[0]), *((slot, *state) for slot in ("draft", "bonus") for state in STATES))
"""Where every position has a draft, a token without one is the prefill's."""
ROWS = 512
"""Positions asked at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """The payoffs of one bank for a judge that knows so much."""

    seats: tuple[Bettor, ...]
    """The panel, its accounts empty."""
    log_payoffs: npt.NDArray[np.float32]
    """[places, B, K+1, bettors], natural logs; one place where windows are hidden and not even q is known."""
    kept: Floats
    """[B, K+2], the chance that a correct server that emits an outcome at a draft slot had accepted it."""
    k: int
    hidden: bool = False
    """Whether windows have to be filtered from the tokens."""

    @property
    def log_weights(self) -> Floats:
        """Shares of the starting wealth, [bettors]; they add up to one."""
        weights = np.array([seat.weight for seat in self.seats])
        return np.log(weights / weights.sum())

    def read(self, trace: Trace) -> npt.NDArray[np.float32]:
        """Return what the tokens of ``trace`` paid, [S, T, bettors]."""
        outcome = np.minimum(trace.outcome, self.log_payoffs.shape[2] - 1)
        if self.hidden:
            return self._filtered(trace, outcome)
        if len(self.log_payoffs) == 1:
            return self.log_payoffs[0, trace.at, outcome]
        behind = np.where(trace.slot < trace.drafted, 1, 1 + len(STATES)) + np.where(trace.short, 2, trace.ever)
        place = np.where(trace.drafted == 0, 0, behind)
        return self.log_payoffs[place, trace.at, outcome]

    def _filtered(self, trace: Trace, outcome: Ints) -> npt.NDArray[np.float32]:
        """Weigh what the places pay by their chances, as the judge stakes less where it is in doubt."""
        kept = self.kept[trace.at, trace.outcome].ravel()
        everywhere = np.ones(kept.size, dtype=np.bool_)
        at = filtered(kept, everywhere, trace.last.ravel(), self.k).at[:, :PLAIN].reshape(*trace.at.shape, len(PLACES) - 1)
        wealth = np.zeros((*trace.at.shape, len(self.seats)), dtype=np.float32)
        for place, chance in enumerate([1.0 - at.sum(axis=-1), *np.moveaxis(at, -1, 0)]):
            here = chance > 0.0
            wealth[here] += chance[here, None] * np.exp(self.log_payoffs[place, trace.at[here], outcome[here]])
        return np.log(wealth)

    @property
    def without_windows(self) -> Grid:
        """The same panel where windows are hidden."""
        return replace(self, hidden=True)

    @property
    def without_guesses(self) -> Grid:
        """The same panel without the bettors that guess at the draft."""
        sure = np.array([not seat.guessed for seat in self.seats])
        return replace(self, seats=tuple(seat for seat in self.seats if not seat.guessed), log_payoffs=self.log_payoffs[..., sure])

    def accounts(self, paid: npt.NDArray[np.float32]) -> tuple[Bettor, ...]:
        """Return the bettors with what a run ``paid``, [tokens, bettors]."""
        return tuple(replace(seat, log_payoffs=column) for seat, column in zip(self.seats, paid.T.astype(np.float64), strict=True))


def grid(bank: Bank, knows: str, *, windows: bool, k: int) -> Grid:
    """Return the payoffs of the judge that ``knows`` EXACT or SURROGATE of the draft; of ``bank`` every position has a draft."""
    assert bank.drafted.all()
    places = PLACES if windows else PLACES[:1]
    outcomes = bank.p.shape[1]
    seats: tuple[Bettor, ...] = ()
    table = None
    for place, (slot, short, ever) in enumerate(places):
        for first in range(0, len(bank), ROWS):
            rows = np.arange(first, min(first + ROWS, len(bank)))
            standing = {"slot": k if slot == "bonus" else 0, "drafted": 0 if slot == "plain" else k, "short": short, "ever": ever}
            asked = trace_of(np.repeat(rows, outcomes), np.tile(np.arange(outcomes), len(rows)), **standing)
            observed = observe(bank, asked, k=k, windows=windows)
            seats = bettors(observed if knows == EXACT else replace(observed, q=None, kept=None, listed=None, q_unasked=None))
            if table is None:
                table = np.empty((len(places), len(bank), outcomes, len(seats)), dtype=np.float32)
            paid = np.stack([seat.log_payoffs for seat in seats], axis=1)
            table[place, rows] = paid.reshape(len(rows), outcomes, len(seats))
    assert table is not None
    return Grid(seats=tuple(replace(seat, log_payoffs=np.zeros(0)) for seat in seats), log_payoffs=table, kept=_kept(bank), k=k)


def _kept(bank: Bank) -> Floats:
    outcomes = bank.p.shape[1] + 1
    rows = np.repeat(np.arange(len(bank)), outcomes)
    kept = observe(bank, trace_of(rows, np.tile(np.arange(outcomes), len(bank))), k=1, windows=False).kept
    assert kept is not None
    return kept.reshape(len(bank), outcomes)
