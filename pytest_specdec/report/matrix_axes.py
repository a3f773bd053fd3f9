"""The axis values that a finding goes with: exact separations of its cells by one value or two, else counts by value.

A cell of a matrix is one variant under one value of each axis, such as dtype. For one finding a cell is red if it has it, clean if the
finding's family was judged there with nothing wrong, and else open. A value, or a pair of values, separates if the red cells are exactly
those with it. A single value separates too if the clean cells are exactly those with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_specdec.model.matrix import VARIANT
from pytest_specdec.report.progress import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.model.matrix import Cell

__all__ = ["AxisPattern", "Choice", "Separation", "ValueCount", "describe", "find_pattern"]

_MOST_OTHERS = 3
"""Further separations of the same cells that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One value of one axis."""

    axis: str
    value: str

    def __str__(self) -> str:
        return f"{self.axis}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """One value, or two of different axes, that separate the red cells from the clean ones."""

    choices: tuple[Choice, ...]
    cells: int
    """Cells with all of the choices."""
    others: int
    """Cells without."""
    other_value: str = ""
    """The value of all the others; empty where they have several, and for two choices."""
    is_inverted: bool = False
    """Whether the cells with the choice are the clean ones."""

    @property
    def phrase(self) -> str:
        """The red cells in words: ``with async=on and dtype=fp8``, or ``without variant=ngram``."""
        return f"{'without' if self.is_inverted else 'with'} {' and '.join(map(str, self.choices))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCount:
    """The red ones among the cells with one value."""

    choice: Choice
    red: int
    cells: int
    """Cells that are red or clean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPattern:
    """The cells with a finding, by the values of the axes."""

    red: tuple[str, ...]
    """Names of the cells with the finding, in the order of the matrix."""
    clean: tuple[str, ...]
    """Names of the cells in which the finding's family was judged and nothing is wrong."""
    open: int
    """The number of all other cells: those that are missing, undecided, waived, or red in the same family by another fault."""
    choices: tuple[Choice, ...]
    """Those of the only red cell; empty where several cells are red."""
    separations: tuple[Separation, ...]
    """Empty where no value or pair separates the cells, and where one cell or every cell is red."""
    counts: tuple[ValueCount, ...]
    """For each value of each axis with two values or more among the red and clean cells."""


def find_pattern(red: Collection[str], clean: Collection[str], cells: Sequence[Cell]) -> AxisPattern:
    """Return the pattern of the red cells, by the values of the axes.

    ``red`` and ``clean`` are names of ``cells``, which are all cells of the matrix; those in neither are only counted. A single red cell
    has its values listed. Separations are looked for if several cells are red and at least one is clean.
    """
    red_or_clean = [cell for cell in cells if cell.name in red or cell.name in clean]
    red_names = tuple(cell.name for cell in red_or_clean if cell.name in red)
    by_choice = _cells_by_choice(red_or_clean)
    return AxisPattern(
        red=red_names,
        clean=tuple(cell.name for cell in red_or_clean if cell.name not in red),
        open=len(cells) - len(red_or_clean),
        choices=tuple(_choices(next(cell for cell in red_or_clean if cell.name in red))) if len(red_names) == 1 else (),
        separations=_find_separations(frozenset(red_names), by_choice, len(red_or_clean)) if 1 < len(red_names) < len(red_or_clean) else (),
        counts=tuple(
            ValueCount(choice=choice, red=len(names & frozenset(red_names)), cells=len(names)) for choice, names in by_choice.items()
        ),
    )


def _choices(cell: Cell) -> Iterator[Choice]:
    """Yield a cell's value of each axis, the variant last."""
    yield from (Choice(axis=axis, value=value) for axis, value in cell.choices.items() if axis != VARIANT)
    yield Choice(axis=VARIANT, value=cell.variant)


def _cells_by_choice(cells: Iterable[Cell]) -> dict[Choice, frozenset[str]]:
    """Return the names of the cells with each value, axis by axis.

    Axes with the same value in all of the cells are left out.
    """
    by_axis: dict[str, dict[Choice, set[str]]] = {}
    for cell in cells:
        for choice in _choices(cell):
            by_axis.setdefault(choice.axis, {}).setdefault(choice, set()).add(cell.name)
    return {choice: frozenset(names) for of_axis in by_axis.values() if len(of_axis) > 1 for choice, names in of_axis.items()}


def _find_separations(red: frozenset[str], by_choice: Mapping[Choice, frozenset[str]], judged: int) -> tuple[Separation, ...]:
    """Return all separations by one value; if there are none, those by two.

    ``by_choice`` has the red and clean cells with each value, ``judged`` is their number. Two values of different axes separate if the
    cells with both are the red ones.
    """
    single = tuple(_separations_by_value(red, by_choice, judged))
    if single:
        return single
    pairs = combinations(by_choice.items(), 2)
    return tuple(
        Separation(choices=(one, other), cells=len(red), others=judged - len(red))
        for (one, with_one), (other, with_other) in pairs
        if one.axis != other.axis and with_one & with_other == red
    )


def _separations_by_value(red: frozenset[str], by_choice: Mapping[Choice, frozenset[str]], judged: int) -> Iterator[Separation]:
    """Yield the values whose cells are exactly the red ones, or exactly the clean ones.

    If an axis has two values, both separate the cells: only the one of the red cells is yielded, with the other one named. ``by_choice``
    has the red and clean cells with each value and no others; ``judged`` is the number of all of them.
    """
    for choice, names in by_choice.items():
        other_values = [other.value for other in by_choice if other.axis == choice.axis and other != choice]
        other_value = other_values[0] if len(other_values) == 1 else ""
        are_the_clean_ones = not names & red and len(names) + len(red) == judged  # no red cell, and every other cell
        if names == red:
            yield Separation(choices=(choice,), cells=len(names), others=judged - len(names), other_value=other_value)
        elif are_the_clean_ones and not other_value:
            yield Separation(choices=(choice,), cells=len(names), others=len(red), is_inverted=True)


def describe(pattern: AxisPattern) -> str:
    """Return where a finding is red, as a clause without a full stop."""
    more = f" ({plural(pattern.open, 'other cell')} count{'s' * (pattern.open == 1)} neither way)" if pattern.open else ""
    return _describe_place(pattern) + more


def _describe_place(pattern: AxisPattern) -> str:
    """Return the red cells among the red and clean ones, as a clause.

    It names the axis values of a single red cell, or those that separate several from the clean ones, or counts red cells by value. Of
    several separations the first is described, and up to :data:`_MOST_OTHERS` further ones are named.
    """
    red, total = len(pattern.red), len(pattern.red) + len(pattern.clean)
    if red == total:
        return f"red {_all_cells(red)} judged"
    if pattern.choices:
        return f"red in 1 of {total} cells: {', '.join(map(str, pattern.choices))}"
    if not pattern.separations:
        return "; ".join((f"red in {red} of {total} cells", *_describe_counts(pattern.counts)))
    first, *others = pattern.separations
    phrases = [separation.phrase for separation in others[:_MOST_OTHERS]]
    more = [f"{len(others) - _MOST_OTHERS} more"] if len(others) > _MOST_OTHERS else []
    same = f"; the same cells are those {', and those '.join([*phrases, *more])}" if others else ""
    return _describe_separation(first) + same


def _describe_separation(separation: Separation) -> str:
    """Return one separation as a clause: the cells with its values (the clean ones if inverted), then the others.

    The others are called by their value where they all have the same one, since the axis has two values.
    """
    text, others = " and ".join(map(str, separation.choices)), separation.others
    if separation.is_inverted:
        red_others = f"in all the other {others} cells" if others > 1 else "in the one other cell"
        return f"red {_no_cell(separation.cells)} with {text}, {red_others}"
    place = f"red {_all_cells(separation.cells)} with {text}"
    if separation.other_value:
        other_choice = Choice(axis=separation.choices[0].axis, value=separation.other_value)
        return f"{place}, {f'in none of the {others}' if others > 1 else 'not in the one cell'} with {other_choice}"
    return f"{place}, {f'in none of the other {others} cells' if others > 1 else 'not in the one other cell'}"


def _all_cells(count: int) -> str:
    return f"in all {count} cells" if count > 1 else "in the one cell"


def _no_cell(count: int) -> str:
    return f"in none of the {count} cells" if count > 1 else "not in the one cell"


def _describe_counts(counts: Iterable[ValueCount]) -> list[str]:
    """Return a text for each axis: ``async: on 4 of 6, off 1 of 6``."""
    by_axis: dict[str, list[str]] = {}
    for count in counts:
        by_axis.setdefault(count.choice.axis, []).append(f"{count.choice.value} {count.red} of {count.cells}")
    return [f"{axis}: {', '.join(texts)}" for axis, texts in by_axis.items()]
