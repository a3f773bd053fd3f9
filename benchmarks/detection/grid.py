"""A grid: the payoffs of every bettor of the panel, for each position of a bank, each outcome, and each slot of a window.

The panel itself computes them, once for each combination, so a run of any length is read off instead of bet anew. Payoffs that depend on
more than one token are not in it: bettors on some answers are followed through the tokens of a run, as is the bettor on the drafts of one
window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.simulation import observe, trace_of
from pytest_specdec.stats.bettors import bettors, window_bettors
from pytest_specdec.stats.reused_numbers import ReusedNumber
from pytest_specdec.stats.sparse_bettors import bet_on_some_answers, parent_name
from pytest_specdec.stats.verify_slots import NO_DRAFT, filter_chances

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from benchmarks.bank import Bank
    from benchmarks.simulation import Trace
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.token_distribution import Bools, Floats

__all__ = ["EXACT", "NONE", "SURROGATE", "Grid", "grid"]

EXACT, SURROGATE, NONE = "q", "surrogate", "without q"
"""What the judge knows of the draft: its distribution; nothing, so that it guesses; nothing, and the guesses do not bet."""
STATES = ((False, False), (False, True), (True, True))
"""Whether the window before came short of its draft, and whether any did."""
SLOTS = (("plain", *STATES[0]), *((slot, *state) for slot in ("draft", "bonus") for state in STATES))
"""Where every position has a draft, a token without one is the prefill's."""
_WINDOW = ReusedNumber.WINDOW.value
ROWS = 512
"""Positions asked at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """The payoffs of one bank for a judge that knows so much."""

    bank: Bank
    seats: tuple[Bettor, ...]
    """The panel, its accounts empty."""
    log_payoffs: npt.NDArray[np.float32]
    """[places, B, K+2, tabled bettors], natural logs; one place where windows are hidden and not even q is known."""
    accepted_if_emitted: Floats
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
        """Return what the tokens of ``trace`` paid, [S, T, bettors]; every row ends with the last token that is read of an answer."""
        tabled = self._tabled(trace).reshape(trace.at.size, -1)
        payoffs = {seat.name: column.astype(np.float64) for seat, column in zip(_tabled(self.seats), tabled.T, strict=True)}
        if any(seat.name == _WINDOW for seat in self.seats):
            (live,) = window_bettors(observe(self.bank, trace, k=self.k, windows=not self.hidden))
            payoffs[live.name] = live.log_payoffs
        ends = trace.last.copy()
        ends[:, -1] = True
        paid = [self._paid(seat, payoffs, ends.ravel()) for seat in self.seats]
        return np.stack(paid, axis=1, dtype=np.float32).reshape(*trace.at.shape, len(self.seats))

    @staticmethod
    def _paid(seat: Bettor, payoffs: Mapping[str, Floats], last: Bools) -> Floats:
        """Return the log payoffs [tokens] of ``seat``, from those of the bettors on all answers in ``payoffs``, by name."""
        if not seat.faulty_fraction:
            return payoffs[seat.name]
        everywhere = replace(seat, name=parent_name(seat), log_payoffs=payoffs[parent_name(seat)])
        return bet_on_some_answers(everywhere, seat.faulty_fraction, last).log_payoffs

    def _tabled(self, trace: Trace) -> npt.NDArray[np.float32]:
        """Return what the tabled bettors were paid, [S, T, tabled]."""
        if self.hidden:
            return self._filtered(trace)
        if len(self.log_payoffs) == 1:
            return self.log_payoffs[0, trace.at, trace.outcome]
        behind = np.where(trace.slot < trace.drafted, 1, 1 + len(STATES)) + np.where(trace.short, 2, trace.ever)
        place = np.where(trace.drafted == 0, 0, behind)
        return self.log_payoffs[place, trace.at, trace.outcome]

    def _filtered(self, trace: Trace) -> npt.NDArray[np.float32]:
        """Weigh what the places pay by their chances, as the judge stakes less where it is in doubt."""
        accepted_if_emitted = self.accepted_if_emitted[trace.at, trace.outcome].ravel()
        everywhere = np.ones(accepted_if_emitted.size, dtype=np.bool_)
        at = (
            filter_chances(accepted_if_emitted, everywhere, trace.last.ravel(), self.k)
            .at[:, :NO_DRAFT]
            .reshape(*trace.at.shape, len(SLOTS) - 1)
        )
        wealth = np.zeros((*trace.at.shape, self.log_payoffs.shape[-1]), dtype=np.float32)
        for place, chance in enumerate([1.0 - at.sum(axis=-1), *np.moveaxis(at, -1, 0)]):
            here = chance > 0.0
            wealth[here] += chance[here, None] * np.exp(self.log_payoffs[place, trace.at[here], trace.outcome[here]])
        return np.log(wealth)

    @property
    def without_windows(self) -> Grid:
        """The same panel where windows are hidden."""
        return replace(self, hidden=True)

    @property
    def without_guesses(self) -> Grid:
        """The same panel without the bettors that guess at the draft."""
        sure = np.array([not seat.guessed for seat in _tabled(self.seats)])
        return replace(self, seats=tuple(seat for seat in self.seats if not seat.guessed), log_payoffs=self.log_payoffs[..., sure])

    def accounts(self, paid: npt.NDArray[np.float32]) -> tuple[Bettor, ...]:
        """Return the bettors with what a run ``paid``, [tokens, bettors]."""
        return tuple(replace(seat, log_payoffs=column) for seat, column in zip(self.seats, paid.T.astype(np.float64), strict=True))


def grid(bank: Bank, knows: str, *, windows: bool, k: int) -> Grid:
    """Return the payoffs of the judge that ``knows`` EXACT or SURROGATE of the draft; of ``bank`` every position has a draft."""
    assert bank.drafted.all()
    slots = SLOTS if windows else SLOTS[:1]
    outcomes = bank.p.shape[1] + 1  # the drafted token of the remainder apart
    seats: tuple[Bettor, ...] = ()
    table = None
    for place, (slot, short, ever) in enumerate(slots):
        for first in range(0, len(bank), ROWS):
            rows = np.arange(first, min(first + ROWS, len(bank)))
            standing = {"slot": k if slot == "bonus" else 0, "drafted": 0 if slot == "plain" else k, "short": short, "ever": ever}
            asked = trace_of(np.repeat(rows, outcomes), np.tile(np.arange(outcomes), len(rows)), **standing)
            observed = observe(bank, asked, k=k, windows=windows)
            known = (
                observed
                if knows == EXACT
                else replace(observed, q=None, q_chosen=None, accepted_if_emitted=None, accepted_if_drafted=None, listed=None, q_raw=None)
            )
            seats = bettors(known)
            paid = np.stack([seat.log_payoffs for seat in _tabled(seats)], axis=1)
            if table is None:
                table = np.empty((len(slots), len(bank), outcomes, paid.shape[1]), dtype=np.float32)
            table[place, rows] = paid.reshape(len(rows), outcomes, -1)
    assert table is not None
    empty = tuple(replace(seat, log_payoffs=np.zeros(0)) for seat in seats)
    return Grid(bank=bank, seats=empty, log_payoffs=table, accepted_if_emitted=_accepted_if_emitted(bank), k=k)


def _tabled(seats: Iterable[Bettor]) -> list[Bettor]:
    """Return the bettors with a payoff that depends on one token and its place only."""
    return [seat for seat in seats if not seat.faulty_fraction and seat.name != _WINDOW]


def _accepted_if_emitted(bank: Bank) -> Floats:
    outcomes = bank.p.shape[1] + 1
    rows = np.repeat(np.arange(len(bank)), outcomes)
    accepted_if_emitted = observe(bank, trace_of(rows, np.tile(np.arange(outcomes), len(bank))), k=1, windows=False).accepted_if_emitted
    assert accepted_if_emitted is not None
    return accepted_if_emitted.reshape(len(bank), outcomes)
