from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.stats.draft_distribution import (
    Lookup,
    SplitRemainder,
    bonus_chance,
    favourite,
    index_of,
    listed_outcomes,
    map_draft,
    merge_remainder,
    overlap,
)


def by_definition(tokens, k, shortest, longest):
    """The definition, word by word: longest suffix first, earliest occurrence, its continuation."""
    for n in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - n):
            if n <= len(tokens) and tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tuple(tokens[start + n : start + n + k])
    return ()


@pytest.mark.parametrize(
    "tokens, k, draft",
    [
        ([1, 2, 3, 9, 1, 2], 3, (3, 9, 1)),
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, (3, 1)),
        ([5, 1, 2, 7, 8, 1, 2], 4, (7, 8, 1, 2)),
        ([1, 2, 3, 4], 3, ()),
        ([7, 7, 7], 3, (7,)),
        ([3, 1, 2, 4, 1, 2, 5, 3, 1, 2], 1, (4,)),
        ([], 3, ()),
    ],
    ids=["continuation", "earliest", "overlaps itself", "no match", "cut by the end", "longest first", "empty"],
)
def test_the_earliest_occurrence_of_the_longest_suffix_is_continued(tokens, k, draft):
    assert Lookup(tokens, shortest=2, longest=3).propose(k) == draft


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2))
def test_it_is_the_definition_at_every_length(tokens, k, shortest, more):
    lookup = Lookup((), shortest=shortest, longest=shortest + more)
    for end, token in enumerate(tokens):
        assert lookup.propose(k) == by_definition(tokens[:end], k, shortest, shortest + more)
        lookup.append(token)


def test_a_draft_distribution_is_carried_over_to_the_baselines_top_tokens():
    q = map_draft(np.array([[0.5, 0.2, 0.3]]), np.array([[7, 99]]), np.array([[5, 7, -1]]), np.array([[0.4, 0.3, 0.0, 0.2]]))
    assert q[0] == pytest.approx([0.3 * 0.4 / 0.6, 0.5, 0.0, 0.2 + 0.3 * 0.2 / 0.6])
    assert listed_outcomes(np.array([[7, 99]]), np.array([[5, 7, -1]])).tolist() == [[False, True, False, False]]


def test_a_draft_token_outside_the_top_tokens_is_the_remainder():
    assert index_of(np.array([7, 8, -1]), np.array([[5, 7], [5, 7], [5, -1]])).tolist() == [1, 2, 2]


def test_the_favourite_is_never_the_remainder():
    assert favourite(np.array([[0.2, 0.1, 0.7]])).tolist() == [[1.0, 0.0, 0.0]]


def test_a_draft_certain_of_the_remainder_means_one_of_its_tokens():
    p, q = np.array([[0.5, 0.1, 0.4], [0.5, 0.1, 0.4]]), np.array([[0.0, 0.0, 1.0], [0.2, 0.2, 0.6]])
    split = SplitRemainder.of(p, q)
    assert split.p == pytest.approx(np.array([[0.5, 0.1, 0.05, 0.35], [0.5, 0.1, 0.0, 0.4]]))
    assert split.q == pytest.approx(np.array([[0.0, 0.0, 1.0, 0.0], [0.2, 0.2, 0.0, 0.6]]))
    assert merge_remainder(split.p) == pytest.approx(p)
    assert overlap(p, q) == pytest.approx([0.05, 0.7])


@pytest.mark.parametrize("beta, share", [(1.0, 1 / 4), (0.0, 0.0), (0.5, 0.125 / 1.875)])
def test_hidden_windows_have_a_bonus_every_so_often(beta, share):
    assert bonus_chance(np.array([beta]), 3)[0] == pytest.approx(share)
