"""The cells of a matrix: every combination of values that no exclusion leaves out, or few of them with every pair of values.

A combination, or row, has a value for each axis of settings and a variant, by axis; ``levels`` are the names of all values by axis. An
exclusion has values of some axes: combinations with all of them are left out. Cells with the same baseline form a group.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cache
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import validate
from pytest_specdec.config.matrix_axes import AXES, value_name
from pytest_specdec.model.matrix import VARIANT, Cell, Group, Matrix
from pytest_specdec.prompts.covering import pairwise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.matrix_axes import Axis
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument

__all__ = ["ALL", "SEPARATOR", "expand", "find_problems"]

ALL = "all"
"""The group of a matrix whose axes touch variants only."""
SEPARATOR = "--"
"""Between the parts of a cell's id."""
_EXCLUDE = ("matrix", "exclude")
_MOST_COMBINATIONS = 10_000
_LONGEST = 120
"""Characters of a group's name, which names folders: a file system takes 255 bytes, and a baseline's folder has the config's name too."""

Exclusion = Mapping[str, str]
"""By axis, the value of the combinations left out."""


def find_problems(document: YamlDocument, axes: Sequence[Axis]) -> Iterator[Problem]:
    """Yield the problems of exclusions and of the number of combinations.

    An exclusion must name axes and values that exist, and leave out a combination that earlier ones do not. At least one combination must
    be left, and few enough unless only some are taken (``cover: pairwise``).
    """
    levels = _levels(document, axes)
    exclusions = _read_exclusions(document, levels)
    valid: list[Exclusion] = []
    for index, exclusion in enumerate(exclusions):
        name_problems = tuple(_check_exclusion(document, index, exclusion, levels))
        yield from name_problems
        if not name_problems:
            # Earlier exclusions must allow some combination with its values, or it leaves out nothing more.
            if not _Exclusions(levels, valid).allow(exclusion):
                place = (*_EXCLUDE, index)
                yield validate.problem(document, place, "combinations that are left out already", "an exclusion of others", "remove it")
            valid.append(exclusion)
    if not _Exclusions(levels, valid).allow({}):  # no value is required: any combination counts
        yield validate.problem(document, _EXCLUDE, "every combination left out", "at least one that stays")
    count = math.prod(map(len, levels.values()))
    data: Any = document.data
    if count > _MOST_COMBINATIONS and data["matrix"].get("cover") != "pairwise":
        yield validate.problem(
            document, AXES, f"{count} combinations", f"at most {_MOST_COMBINATIONS}", "cover: pairwise takes few of them"
        )


def _check_exclusion(document: YamlDocument, index: int, exclusion: Exclusion, levels: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Yield a problem for each unknown axis or value of an exclusion.

    ``index`` is its place under ``exclude``.
    """
    for axis, value in exclusion.items():
        place: KeyPath = (*_EXCLUDE, index, axis)
        if axis not in levels:
            yield validate.problem(document, place, "no axis", f"one of {', '.join(levels)}", validate.nearest(axis, levels))
        elif value not in levels[axis]:
            hint = validate.nearest(value, levels[axis])
            yield validate.problem(document, place, f"{value!r}, no value of it", f"one of {', '.join(levels[axis])}", hint)


def expand(document: YamlDocument, axes: Sequence[Axis]) -> Matrix:
    """Return the matrix of a config without problems.

    Its groups, and the cells in each, are in the order of the file's values. With ``cover: pairwise`` it has few cells, enough for every
    allowed pair of values to stand together in one.
    """
    data: Any = document.data
    levels = _levels(document, axes)
    exclusions = _Exclusions(levels, _read_exclusions(document, levels))
    is_pairwise = data["matrix"].get("cover") == "pairwise"
    combinations = _cover_pairs(levels, exclusions) if is_pairwise else _combine_all(levels, exclusions)
    baseline_axes = [axis.name for axis in axes if axis.changes_baseline]
    variant_axes = [VARIANT, *(axis.name for axis in axes if not axis.changes_baseline)]

    # By baseline first: groupby joins only neighbours, and the cells of a group share a baseline.
    ordered = sorted(combinations, key=lambda row: (_sort_key(row, levels, baseline_axes), _sort_key(row, levels, variant_axes)))
    groups = (_group(axes, list(rows)) for _, rows in groupby(ordered, key=lambda row: _sort_key(row, levels, baseline_axes)))
    return Matrix(axes=levels, groups=tuple(groups))


def _combine_all(levels: Mapping[str, Sequence[str]], exclusions: _Exclusions) -> list[Mapping[str, str]]:
    """Return all allowed combinations, each a value by axis."""
    rows = (dict(zip(levels, values, strict=True)) for values in product(*levels.values()))
    return [row for row in rows if exclusions.allow(row)]


def _cover_pairs(levels: Mapping[str, Sequence[str]], exclusions: _Exclusions) -> list[Mapping[str, str]]:
    """Return few combinations that have every allowed pair of values."""

    # `pairwise` numbers the values of an axis from 0.
    def name_values(indices: Mapping[str, int]) -> dict[str, str]:
        return {axis: levels[axis][index] for axis, index in indices.items()}

    index_rows = pairwise({axis: len(values) for axis, values in levels.items()}, lambda indices: exclusions.allow(name_values(indices)))
    return [name_values(indices) for indices in index_rows]


def _levels(document: YamlDocument, axes: Sequence[Axis]) -> dict[str, tuple[str, ...]]:
    """Return the names of the values by axis, those of the variants last."""
    data: Any = document.data
    return {**{axis.name: tuple(value.name for value in axis.values) for axis in axes}, VARIANT: tuple(data["variants"])}


def _read_exclusions(document: YamlDocument, levels: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the exclusions, by axis the name of the value.

    The file may state the name, or the value itself.
    """
    data: Any = document.data
    return [
        {axis: str(value) if str(value) in levels.get(axis, ()) else value_name(value) for axis, value in exclusion.items()}
        for exclusion in data["matrix"].get("exclude", ())
    ]


class _Exclusions:
    """The exclusions as a test of whole and partial combinations."""

    def __init__(self, levels: Mapping[str, Sequence[str]], exclusions: Sequence[Exclusion]) -> None:
        self._exclusions = exclusions
        # Only axes that an exclusion names can make a part impossible.
        self._levels = {axis: levels[axis] for axis in levels if any(axis in exclusion for exclusion in exclusions)}
        self._can_complete = cache(self._search)

    def allow(self, part: Mapping[str, str]) -> bool:
        """Return True if some allowed combination has the values of ``part``."""
        return self._can_complete(tuple((axis, part[axis]) for axis in self._levels if axis in part))

    def _search(self, items: tuple[tuple[str, str], ...]) -> bool:
        """Return True if values of the other axes can complete ``items``.

        ``items`` are pairs of an axis and its value. No exclusion may leave the combination out. Only axes that some exclusion names
        (``_levels``) are completed, one by one: the values of others make no difference.
        """
        part = dict(items)
        if any(all(part.get(axis) == value for axis, value in exclusion.items()) for exclusion in self._exclusions):
            return False
        axis = next((name for name in self._levels if name not in part), None)
        return axis is None or any(self.allow({**part, axis: value}) for value in self._levels[axis])


def _sort_key(row: Mapping[str, str], levels: Mapping[str, Sequence[str]], axes: Sequence[str]) -> tuple[int, ...]:
    """Return a sort key: a combination's value index on each axis."""
    return tuple(levels[axis].index(row[axis]) for axis in axes)


def _group(axes: Sequence[Axis], rows: Sequence[Mapping[str, str]]) -> Group:
    """Return the group of combinations with the same baseline.

    It is named by the values that the baseline depends on, the same in all ``rows``; ``ALL`` if it depends on none.
    """
    name = SEPARATOR.join(axis.value(rows[0][axis.name]).label for axis in axes if axis.changes_baseline)
    cells = (
        Cell(
            name=SEPARATOR.join((row[VARIANT], *(axis.value(row[axis.name]).label for axis in axes))),
            variant=row[VARIANT],
            choices=row,
        )
        for row in rows
    )
    return Group(name=_shorten(name) or ALL, cells=tuple(cells))


def _shorten(name: str) -> str:
    """Return ``name`` short enough for a folder's name.

    A longer one is cut, with 8 digits of its hash at the end.
    """
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
