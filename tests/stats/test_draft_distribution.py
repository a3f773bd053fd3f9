from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.stats.draft_distribution import Lookup


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
