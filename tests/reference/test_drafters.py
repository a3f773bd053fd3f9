"""Prompt lookup by its definition, and what it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_reference.drafters import lookup


def defined(tokens, n_min, n_max, k):
    """The docstring's sentence, word by word."""
    for n in range(n_max, n_min - 1, -1):
        for i in range(len(tokens) - n):
            if tokens[i : i + n] == tokens[len(tokens) - n :]:
                return tuple(tokens[i + n : i + n + k])
    return ()


@pytest.mark.parametrize(
    "tokens,draft",
    [
        ([1, 2, 9, 8, 1, 2], (9, 8, 1)),
        ([1, 2, 9, 1, 2, 7, 1, 2], (9, 1, 2)),
        ([5, 1, 2, 9, 1, 2, 4, 5, 1, 2], (9, 1, 2)),
        ([3, 3, 3], (3,)),
        ([1, 2, 3], ()),
        ([1], ()),
        ([256, 65536, 7, 256, 65536], (7, 256, 65536)),
    ],
    ids=["what followed", "the earliest", "the longest first", "overlap", "nothing", "one token", "bytes that align by chance"],
)
def test_lookup_continues_the_earliest_occurrence_of_the_longest_suffix(tokens, draft):
    assert lookup(tokens, 2, 4, 3) == draft


@given(
    st.lists(st.integers(0, 3) | st.sampled_from([256, 257, 65536]), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 5),
)
def test_lookup_is_its_definition(tokens, n_min, more, k):
    assert lookup(tokens, n_min, n_min + more, k) == defined(tokens, n_min, n_min + more, k)
