"""Groups of requests for speed under load, and how they are cut to what servers admit."""

from __future__ import annotations

import pytest

from pytest_specdec.prompts import ALL, CATEGORIES, load

LEVELS = load.levels(ALL)
FOUR = load.levels(ALL, alone=4)


def test_every_level_begins_with_the_same_prompts_and_no_two_rows_of_one_are_the_same():
    waves = FOUR.in_waves
    assert [len(wave) for wave in waves] == [1, 1, 1, 1, 4, 8, 12, 32, 128]
    assert [len(wave) for wave in LEVELS.in_waves] == [1, 4, 8, 12, 32, 128]
    asked = [[request.prompt_key for request in wave] for wave in waves]
    assert [each for wave in asked[:4] for each in wave] == asked[4]
    assert asked[4] == asked[5][:4]
    assert asked[5] == asked[6][:8]
    assert asked[6][:10] == asked[7][:10] == asked[8][:10]
    assert all(len(set(wave)) == len(wave) for wave in asked)


def test_they_are_asked_in_the_words_in_which_one_client_asks():
    alone = {request.digest for request in CATEGORIES.speed(max_tokens=24).requests}
    shared = [{request.digest for request in wave} & alone for wave in load.levels(CATEGORIES).in_waves]
    assert list(map(len, shared)) == [1, 4, 8, 10, 10, 10]


@pytest.mark.parametrize("most, waves", [
    (1000, (1, 1, 1, 1, 4, 8, 12, 32, 128)),
    (128, (1, 1, 1, 1, 4, 8, 12, 32, 128)),
    (32, (1, 1, 1, 1, 4, 8, 12, 32)),
    (16, (1, 1, 1, 1, 4, 8, 12, 16)),
    (5, (1, 1, 1, 1, 4, 5)),
    (1, (1, 1, 1, 1)),
])  # fmt: skip
def test_groups_get_no_larger_than_what_is_admitted_and_the_last_one_is_as_large(most, waves):
    cut = load.cut(FOUR, most)
    assert cut.waves == tuple(map(len, cut.in_waves)) == waves
    assert cut.concurrency == min(128, most)
    assert all(request in FOUR.requests for request in cut.requests)


def test_the_categories_begin_with_one_prompt_of_each():
    first = [prompt.category for prompt in CATEGORIES.items[:11]]
    assert len(set(first)) == len(first)
    assert {"chat", "code", "math", "summary", "rag", "translate", "extract", "json", "edit", "story", "long"} == set(first)
