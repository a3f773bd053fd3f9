"""Shards of a matrix: every cell once, groups whole where that is possible, and loads that differ little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.model.matrix import Cell, Group, Matrix
from pytest_specdec.model.shards import divide


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
def test_a_group_is_whole_where_there_are_as_many_groups_as_shards(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))
    groups = [group for shard in divide(matrix(*sizes), count) for group in shard.groups]
    assert sorted(len(group.cells) for group in groups) == sorted(sizes)
    assert len({group.name for group in groups}) == len(groups)


@given(SIZES, st.data())
def test_no_shard_has_twice_the_least_that_the_largest_can_have(sizes, data):
    """Graham's bound: the last group of a shard goes where the least work is, which is at most the mean."""
    count = data.draw(st.integers(1, len(sizes)))
    whole = matrix(*sizes)
    best = max(work(whole) / count, *(2 + size for size in sizes))
    assert max(map(work, divide(whole, count))) <= 2 * best


def test_the_largest_groups_are_halved_where_there_are_more_shards():
    assert cells(divide(matrix(4, 1), 3)) == [["v0--g0", "v1--g0"], ["v2--g0", "v3--g0"], ["v0--g1"]]
    assert cells(divide(matrix(3), 2)) == [["v0--g0", "v1--g0"], ["v2--g0"]]


def test_cells_keep_their_order_and_the_division_is_always_the_same():
    shards = divide(matrix(1, 5, 2, 2), 2)
    assert cells(shards) == [["v0--g0", *(f"v{number}--g1" for number in range(5))], ["v0--g2", "v1--g2", "v0--g3", "v1--g3"]]
    assert shards == divide(matrix(1, 5, 2, 2), 2)


@pytest.mark.parametrize("count", [0, -1, 4])
def test_more_shards_than_cells_are_refused(count):
    with pytest.raises(ValueError, match=f"3 cells cannot be divided into {count} shards"):
        divide(matrix(1, 2), count)
