from __future__ import annotations

import numpy as np

from pytest_specdec.stats.verify_slots import UNKNOWN, joined, slots_from_windows, unknown_slots


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
    both = joined([unknown_slots(2), slots_from_windows((1, 2), 3, lambda _start: 1)])
    assert both.known.tolist() == [False, False, True, True, True]
    assert both.last.tolist() == [False, True, False, False, True]
