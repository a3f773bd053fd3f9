from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.prompts.covering import pairwise


def stand_together(rows, one, a, other, b):
    return any(row[one] == a and row[other] == b for row in rows)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=7))
def test_every_pair_of_levels_stands_together_in_a_row(counts):
    levels = {f"factor {i}": count for i, count in enumerate(counts)}
    rows = pairwise(levels)
    for one, other in combinations(levels, 2):
        assert all(stand_together(rows, one, a, other, b) for a, b in product(range(levels[one]), range(levels[other])))
    assert all(row.keys() == levels.keys() for row in rows)


def test_an_unlawful_pair_stands_in_no_row_and_all_others_do():
    levels = {"a": 3, "b": 3, "c": 2}
    rows = pairwise(levels, lambda row: not (row.get("a") == 1 and row.get("b") == 2))
    for one, other in combinations(levels, 2):
        for a, b in product(range(levels[one]), range(levels[other])):
            assert stand_together(rows, one, a, other, b) is ((one, a, other, b) != ("a", 1, "b", 2))


@pytest.mark.parametrize("counts, most", [((2,) * 10, 12), ((3,) * 4, 12), ((4, 3, 2), 13)])
def test_rows_are_few_and_always_the_same(counts, most):
    levels = {str(i): count for i, count in enumerate(counts)}
    assert len(pairwise(levels)) <= most
    assert pairwise(levels) == pairwise(levels)
