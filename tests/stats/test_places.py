from __future__ import annotations

import numpy as np

from pytest_specdec.stats.verify_slots import UNKNOWN, joined, placed, unplaced


def test_windows_give_every_token_its_slot():
    places = placed((1, 4, 2, 3), 10, lambda _start: 3)
    assert places.slot.tolist() == [0, 0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert places.drafted.tolist() == [0] + [3] * 9
    assert places.draft_slot.tolist() == [False, True, True, True, False, True, True, True, True, True]
    assert places.bonus_slot.tolist() == [False] * 4 + [True] + [False] * 5
    assert places.ended.tolist() == [True, False, False, False, True, False, True, False, False, True]
    assert places.last.tolist() == [False] * 9 + [True]


def test_a_rejection_is_told_from_the_next_window_on():
    places = placed((1, 4, 2, 4, 1), 12, lambda _start: 3)
    assert np.flatnonzero(places.after_rejection).tolist() == [7, 8, 9, 10]
    assert np.flatnonzero(places.rejected_before).tolist() == [7, 8, 9, 10, 11]


def test_a_window_without_a_draft_rejects_nothing():
    places = placed((1, 1, 2, 1), 5, lambda start: 0 if start == 1 else 1)
    assert not places.after_rejection.any()
    assert np.flatnonzero(places.bonus_slot).tolist() == [3]


def test_a_window_cut_by_a_limit_has_not_ended():
    places = placed((1, 4), 3, lambda _start: 3)
    assert places.slot.tolist() == [0, 0, 1]
    assert places.ended.tolist() == [True, False, False]


def test_windows_beyond_the_tokens_are_ignored_and_tokens_beyond_the_windows_unknown():
    assert placed((1, 1, 1, 1), 2, lambda _start: 0).slot.tolist() == [0, 0]
    assert placed((1, 2), 5, lambda _start: 3).slot.tolist() == [0, 0, 1, UNKNOWN, UNKNOWN]


def test_answers_are_joined_in_order():
    both = joined([unplaced(2), placed((1, 2), 3, lambda _start: 1)])
    assert both.known.tolist() == [False, False, True, True, True]
    assert both.last.tolist() == [False, True, False, False, True]
