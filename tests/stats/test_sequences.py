from __future__ import annotations

import pytest

from pytest_specdec.stats.sequences import first_difference


@pytest.mark.parametrize("one, other, index", [
    ((1, 2, 3), (1, 5, 3), 1), ((1, 2), (1, 2, 3), 2), ("abc", "abc", 3), ("", "a", 0), ("xa", "ya", 0),
])  # fmt: skip
def test_sequences_differ_first_where_an_element_does_or_the_shorter_ends(one, other, index):
    assert first_difference(one, other) == first_difference(other, one) == index
