"""A covering array: few rows of values in which every pair of values of two factors stands together at least once."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["pairwise"]

Row = dict[str, int]
"""A level for each factor, by the factor's name."""
Pair = tuple[str, int, str, int]
"""A factor with its level, and another factor with its level."""


def _allow_any(_: Mapping[str, int]) -> bool:
    return True


def pairwise(levels: Mapping[str, int], is_allowed: Callable[[Mapping[str, int]], bool] = _allow_any) -> tuple[Mapping[str, int], ...]:
    """Return rows with every allowed pair of levels at least once.

    ``levels`` has the number of levels of each factor. A row has one level, from 0, for each factor; a pair is two levels
    of two factors. ``is_allowed`` is called with rows that may lack factors, and no row has a combination that it
    rejects; it must also reject a row that cannot be completed, since no choice of a level is taken back. The method is
    greedy and deterministic: each row begins with the first missing pair and takes, factor by factor, the level that adds
    most missing pairs.
    """
    missing = dict.fromkeys(pair for pair in _all_pairs(levels) if is_allowed({pair[0]: pair[1], pair[2]: pair[3]}))
    rows: list[Row] = []
    while missing:
        row = _next_row(levels, missing, is_allowed)
        for pair in _pairs_of_row(row):
            missing.pop(pair, None)
        rows.append(row)
    return tuple(rows)


def _all_pairs(levels: Mapping[str, int]) -> list[Pair]:
    """Return every pair of levels of two factors, factors in the order of ``levels``."""
    return [
        (first, first_level, second, second_level)
        for first, second in combinations(levels, 2)
        for first_level in range(levels[first])
        for second_level in range(levels[second])
    ]


def _next_row(levels: Mapping[str, int], missing: Mapping[Pair, None], is_allowed: Callable[[Mapping[str, int]], bool]) -> Row:
    """Return a row with the first missing pair and many others.

    ``missing`` is an ordered set of pairs. For each further factor the row has the allowed level that adds most missing pairs with the
    levels chosen before; of equal ones the lowest.
    """
    first, first_level, second, second_level = next(iter(missing))
    row = {first: first_level, second: second_level}
    for factor, count in levels.items():
        if factor not in row:
            allowed = [level for level in range(count) if is_allowed({**row, factor: level})]
            gains = [sum(pair in missing for pair in _pairs_with_level(row, factor, level, levels)) for level in allowed]
            row[factor] = allowed[gains.index(max(gains))]
    return {factor: row[factor] for factor in levels}


def _pairs_with_level(row: Mapping[str, int], factor: str, level: int, levels: Mapping[str, int]) -> Sequence[Pair]:
    """Return one level's pairs with the levels already in ``row``.

    In each pair the factors stand in the order of ``levels``, as in the set of missing pairs.
    """
    order = list(levels)
    factors_before = [(name, value) for name, value in row.items() if order.index(name) < order.index(factor)]
    factors_after = [(name, value) for name, value in row.items() if order.index(name) > order.index(factor)]
    return [
        *((name, value, factor, level) for name, value in factors_before),
        *((factor, level, name, value) for name, value in factors_after),
    ]


def _pairs_of_row(row: Mapping[str, int]) -> list[Pair]:
    return [(first, row[first], second, row[second]) for first, second in combinations(row, 2)]
