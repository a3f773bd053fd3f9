from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.simulation import RIGHT, emit, observe
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.verify_slots import (
    AFTER_REJECTION,
    BONUS,
    DRAFT,
    NEVER_REJECTED,
    NO_DRAFT,
    REJECTED_BEFORE,
    UNKNOWN,
    certain_chances,
    chances,
    filter_chances,
    join_slots,
    slots_from_windows,
    unknown_slots,
)


def test_windows_give_every_token_its_slot():
    slots = slots_from_windows((1, 4, 2, 3), 10, lambda _start: 3)
    assert slots.slot.tolist() == [0, 0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert slots.drafted.tolist() == [0] + [3] * 9
    assert slots.draft_slot.tolist() == [False, True, True, True, False, True, True, True, True, True]
    assert slots.bonus_slot.tolist() == [False] * 4 + [True] + [False] * 5
    assert slots.ended.tolist() == [True, False, False, False, True, False, True, False, False, True]
    assert slots.last.tolist() == [False] * 9 + [True]


def test_a_rejection_is_told_from_the_next_window_on():
    slots = slots_from_windows((1, 4, 2, 4, 1), 12, lambda _start: 3)
    assert np.flatnonzero(slots.after_rejection).tolist() == [7, 8, 9, 10]
    assert np.flatnonzero(slots.rejected_before).tolist() == [7, 8, 9, 10, 11]


def test_a_window_without_a_draft_rejects_nothing():
    slots = slots_from_windows((1, 1, 2, 1), 5, lambda start: 0 if start == 1 else 1)
    assert not slots.after_rejection.any()
    assert np.flatnonzero(slots.bonus_slot).tolist() == [3]


def test_a_window_cut_by_a_limit_has_not_ended():
    slots = slots_from_windows((1, 4), 3, lambda _start: 3)
    assert slots.slot.tolist() == [0, 0, 1]
    assert slots.ended.tolist() == [True, False, False]


def test_windows_beyond_the_tokens_are_ignored_and_tokens_beyond_the_windows_unknown():
    assert slots_from_windows((1, 1, 1, 1), 2, lambda _start: 0).slot.tolist() == [0, 0]
    assert slots_from_windows((1, 2), 5, lambda _start: 3).slot.tolist() == [0, 0, 1, UNKNOWN, UNKNOWN]


def test_answers_are_joined_in_order():
    both = join_slots([unknown_slots(2), slots_from_windows((1, 2), 3, lambda _start: 1)])
    assert both.known.tolist() == [False, False, True, True, True]
    assert both.last.tolist() == [False, True, False, False, True]


def spoken(*, sure):
    """A correct server's answers, windows known, and the same with windows hidden."""
    bank = zipf(np.random.default_rng(3), positions=500, vocabulary=128, top_tokens=20, certain=sure)
    if sure:
        bank.drafted[:] = True
    trace = emit(bank, RIGHT, np.random.default_rng(4), answers=400, tokens=24, k=3)
    return tuple(observe(bank, trace, k=3, windows=windows) for windows in (True, False))


def test_known_windows_leave_no_doubt():
    at = certain_chances(slots_from_windows((1, 4, 2, 1), 8, lambda start: 3 if start < 7 else 0)).at
    cells = [
        (NO_DRAFT, NEVER_REJECTED),
        *[(DRAFT, NEVER_REJECTED)] * 3,
        (BONUS, NEVER_REJECTED),
        *[(DRAFT, NEVER_REJECTED)] * 2,
        (NO_DRAFT, AFTER_REJECTION),
    ]
    assert [(int(np.argwhere(each)[0, 0]), int(np.argwhere(each)[0, 1])) for each in at] == cells
    assert at.sum() == len(cells)
    assert certain_chances(unknown_slots(3)).at.sum() == 0.0


def test_a_draft_that_is_certain_tells_the_windows():
    told, hidden = spoken(sure=True)
    assert hidden.slot_chances.at == pytest.approx(told.slot_chances.at)


def test_chances_come_true():
    """Of the tokens that are given a chance of .2 to stand at the bonus, a fifth does, and so for every chance and every place."""
    told, hidden = spoken(sure=False)
    for true, said in (
        (told.slot_chances.at[:, slot, state], hidden.slot_chances.at[:, slot, state]) for slot in range(3) for state in range(3)
    ):
        edges = np.quantile(said, np.linspace(0.0, 1.0, 6))
        for low, high in itertools.pairwise(edges):
            here = (said >= low) & (said <= high)
            error = np.sqrt(max(said[here].mean() * (1.0 - said[here].mean()), 1e-3) / here.sum())
            assert abs(true[here].mean() - said[here].mean()) < 4.0 * error


def test_a_tokens_own_fate_does_not_move_its_chances():
    kept, last = np.full(8, 0.5), np.arange(8) == 7
    drafted = np.ones(8, dtype=np.bool_)
    plain = filter_chances(kept, drafted, last, 3).at
    for token in range(8):
        changed = kept.copy()
        changed[token] = 0.0
        assert filter_chances(changed, drafted, last, 3).at[: token + 1] == pytest.approx(plain[: token + 1])


def test_a_new_answer_begins_anew_even_behind_one_that_is_cut_off():
    kept, drafted = np.full(5, 0.5), np.ones(5, dtype=np.bool_)
    at = filter_chances(kept, drafted, np.array([False, False, True, False, False]), 2).at
    assert at[3] == pytest.approx(at[0])
    assert at[4] == pytest.approx(at[1])


def test_where_nothing_was_drafted_a_window_begins():
    at = filter_chances(np.ones(4), np.array([True, True, False, True]), np.arange(4) == 3, 3).at
    assert (at[2, NO_DRAFT, NEVER_REJECTED], at[3, DRAFT, NEVER_REJECTED]) == (1.0, 1.0)


def test_after_a_step_without_a_draft_a_rejection_lies_in_an_earlier_window():
    """The chances are those of the windows themselves: the token after the undrafted one is not right after a rejection."""
    at = filter_chances(np.zeros(5), np.array([False, True, False, True, True]), np.arange(5) == 4, 3).at
    windows = slots_from_windows((1, 1, 1, 1, 1), 5, lambda start: 0 if start == 2 else 3)
    assert at == pytest.approx(certain_chances(windows).at)


def test_what_windows_do_not_tell_the_filter_does():
    slots = slots_from_windows((1, 2), 6, lambda _start: 3)
    at = chances(slots, np.zeros(6), np.ones(6, dtype=np.bool_), 3).at
    assert (at[2, DRAFT, NEVER_REJECTED], at[3, DRAFT, AFTER_REJECTION]) == (1.0, 1.0)
    assert chances(slots, None, np.ones(6, dtype=np.bool_), 3).at[3].sum() == 0.0


def test_everybody_bets_alike_on_windows_that_are_told_and_that_follow():
    told, hidden = spoken(sure=True)
    mine, theirs = bettors(told), {one.name: one for one in bettors(hidden)}
    for one in mine:
        if not one.guessed:
            np.testing.assert_allclose(one.log_payoffs, theirs[one.name].log_payoffs, rtol=1e-6, err_msg=one.name)


def test_rejections_are_remembered_to_the_end_of_the_answer():
    at = filter_chances(np.array([0.0, 0.0, 1.0, 1.0, 1.0, 0.0]), np.ones(6, dtype=np.bool_), np.arange(6) == 5, 2).at
    assert [int(state) for state in at.sum(axis=1).argmax(axis=1)] == [
        NEVER_REJECTED,
        NEVER_REJECTED,
        AFTER_REJECTION,
        AFTER_REJECTION,
        AFTER_REJECTION,
        REJECTED_BEFORE,
    ]
