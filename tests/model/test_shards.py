"""Shards of a matrix: every cell once, groups whole where that is possible, and loads that differ little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.model import shards as model_shards
from pytest_specdec.model.matrix import Cell, Group, Matrix


def matrix(*sizes: int) -> Matrix:
    """Return a matrix with a group of each size."""
    groups = tuple(
        Group(name=f"g{index}", cells=tuple(Cell(name=f"v{number}--g{index}", variant=f"v{number}", choices={}) for number in range(size)))
        for index, size in enumerate(sizes)
    )
    return Matrix(axes={"variant": tuple(f"v{number}" for number in range(max(sizes)))}, groups=groups)


def cells(shards) -> list[list[str]]:
    return [[cell.name for cell in shard.cells] for shard in shards]


def work(shard: Matrix) -> int:
    """Return its boots: a baseline and a control for each group, and a variant for each cell."""
    return 2 * len(shard.groups) + len(shard.cells)


def divide(whole: Matrix, count: int, **slower: float) -> tuple[Matrix, ...]:
    """Return the shards where an arm takes a second, or as long as stated by group."""
    return model_shards.divide(whole, count, {group.name: slower.get(group.name, 1.0) for group in whole.groups})


SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=9)


@given(SIZES, st.data())
def test_every_cell_is_in_one_shard_and_no_shard_is_empty(sizes, data):
    whole = matrix(*sizes)
    count = data.draw(st.integers(1, len(whole.cells)))
    shards = divide(whole, count)
    assert len(shards) == count
    assert all(shard.cells for shard in shards)
    assert sorted(name for names in cells(shards) for name in names) == sorted(cell.name for cell in whole.cells)
    assert all(shard.axes == whole.axes for shard in shards)


@given(SIZES, st.data())
def test_no_shard_has_twice_the_least_that_the_largest_can_have(sizes, data):
    """Graham's bound: the last group of a shard goes where the least work is, which is at most the mean."""
    count = data.draw(st.integers(1, len(sizes)))
    whole = matrix(*sizes)
    best = max(work(whole) / count, *(2 + size for size in sizes))
    assert max(map(work, divide(whole, count))) <= 2 * best


def test_a_group_is_whole_unless_the_longest_shard_gets_shorter():
    assert cells(divide(matrix(3, 3), 2)) == [["v0--g0", "v1--g0", "v2--g0"], ["v0--g1", "v1--g1", "v2--g1"]]
    assert cells(divide(matrix(4, 1), 3)) == [["v0--g0", "v1--g0"], ["v2--g0", "v3--g0"], ["v0--g1"]]
    longest = max(map(work, divide(matrix(3, 3, 3, 3), 3)))
    assert longest == 8, "the fourth group in three parts; whole it would be 10"


def test_a_group_of_a_large_model_weighs_more():
    assert [len(shard.groups) for shard in divide(matrix(1, 1, 1, 1), 2, g0=3.0)] == [1, 3]


def test_the_division_is_always_the_same():
    assert divide(matrix(1, 5, 2, 2), 3) == divide(matrix(1, 5, 2, 2), 3)


@pytest.mark.parametrize("count", [0, -1, 4])
def test_more_shards_than_cells_are_refused(count):
    with pytest.raises(ValueError, match=f"3 cells cannot be divided into {count} shards"):
        divide(matrix(1, 2), count)
