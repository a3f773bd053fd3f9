"""Expressions over the cells of a matrix: ``async=on and not kv-cache-dtype=fp8 or eagle3-*``.

A cell is a variant under one value of each axis, a setting with several values. A group has the cells with the same baseline. A condition
is a function that tells if a cell is selected.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.config.matrix_axes import value_name
from pytest_specdec.config.validate import nearest
from pytest_specdec.errors import ConfigError
from pytest_specdec.files import yaml
from pytest_specdec.model.matrix import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_specdec.model.matrix import Cell, Matrix

    Condition: TypeAlias = Callable[[Cell], bool]

__all__ = ["select"]

_WORD = re.compile(r"\s*([()]|[^\s()=]+(?:\s*=\s*[^\s()=]*)?|\S)")
_SHAPE = "AXIS=VALUE, group=NAME or a pattern of cell names, joined by and, or, not and parentheses"


def select(matrix: Matrix, expression: str, *, option: str = "--specdec-only") -> Matrix:
    """Return ``matrix`` with only the cells selected by ``expression``.

    They stay in their groups, groups without any are left out, and axes stay whole. A condition is ``axis=value``, ``group=name``, or a
    pattern of ids; all take ``*`` and ``?``. ``not`` binds before ``and``, and that before ``or``. Raises ConfigError, with the ``option``
    as its place, for an expression that cannot be read, that names no axis, value or cell, or that selects no cell.
    """
    is_selected = _Parser(matrix, expression, option).parse()
    groups = (replace(group, cells=tuple(cell for cell in group.cells if is_selected(cell))) for group in matrix.groups)
    selected_groups = tuple(group for group in groups if group.cells)
    if not selected_groups:
        what, expected = "the expression selects no cell", f"one that holds for any of the {len(matrix.cells)} cells"
        remedy = f"ask for less, such as {matrix.cells[0].name}"
        raise ConfigError(what, where=option, found=expression, expected=expected, remedy=remedy)
    return replace(matrix, groups=selected_groups)


class _Parser:
    """Reads an expression by recursive descent; ``_words`` are those not read yet."""

    def __init__(self, matrix: Matrix, expression: str, option: str) -> None:
        self._matrix = matrix
        self._option = option
        self._expression = expression
        self._words = _WORD.findall(expression)

    def parse(self) -> Condition:
        """Return the condition of the whole expression."""
        condition = self._parse_alternatives()
        if self._words:
            actual = f"{self._words[0]!r} after a condition"
            raise self._error(actual, "`and` or `or` between two conditions")
        return condition

    def _parse_alternatives(self) -> Condition:
        """Return the condition of the next conjunctions, joined by ``or``."""
        conditions = [self._parse_conjunction()]
        while self._take("or"):
            conditions.append(self._parse_conjunction())
        return lambda cell: any(condition(cell) for condition in conditions)

    def _parse_conjunction(self) -> Condition:
        """Return the condition of the next negations, joined by ``and``."""
        conditions = [self._parse_negation()]
        while self._take("and"):
            conditions.append(self._parse_negation())
        return lambda cell: all(condition(cell) for condition in conditions)

    def _parse_negation(self) -> Condition:
        """Return the next condition, which may follow ``not`` or stand in parentheses.

        Raises ConfigError if a parenthesis stays open.
        """
        if self._take("not"):
            condition = self._parse_negation()
            return lambda cell: not condition(cell)
        if self._take("("):
            condition = self._parse_alternatives()
            if not self._take(")"):
                actual = "an open parenthesis"
                raise self._error(actual, "a closing one")
            return condition
        return self._parse_condition()

    def _take(self, word: str) -> bool:
        """Take the next word if it is this one; return whether it is."""
        if self._words[:1] == [word]:
            del self._words[0]
            return True
        return False

    def _parse_condition(self) -> Condition:
        """Take the next word and return the condition that it states.

        Raises ConfigError for a word that is none, or that matches nothing in the matrix.
        """
        if not self._words or self._words[0] in {"and", "or", ")"}:
            raise self._error(repr(self._words[0]) if self._words else "its end", "a condition")
        word = self._words.pop(0)
        axis, equals, value = (part.strip() for part in word.partition("="))
        if equals:
            return self._parse_value(axis, value)
        if not any(fnmatchcase(cell.name, word) for cell in self._matrix.cells):
            raise self._unknown(word, "no cell", (cell.name for cell in self._matrix.cells))
        return lambda cell: fnmatchcase(cell.name, word)

    def _parse_value(self, axis: str, pattern: str) -> Condition:
        """Return the condition that a cell has a value of ``axis``.

        ``pattern`` matches names of its values, or else is a value as the config has it, such as ``-1`` for the name ``minus-1``. Raises
        ConfigError for an unknown axis or value.
        """
        if axis == GROUP:
            return self._parse_group(pattern)
        if axis not in self._matrix.axes:
            raise self._unknown(axis, "no axis", self._matrix.axes, _join(self._matrix.axes))
        names = self._matrix.axes[axis]
        values = [name for name in names if fnmatchcase(name, pattern)] or [name for name in names if name == _yaml_value_name(pattern)]
        if not values:
            raise self._unknown(pattern, f"no value of {axis}", names, _join(names))
        return lambda cell: cell.choices[axis] in values

    def _parse_group(self, pattern: str) -> Condition:
        """Return the condition that a cell is in a matching group.

        Raises ConfigError if no group matches ``pattern``.
        """
        names = tuple(group.name for group in self._matrix.groups)
        cells = frozenset(cell for group in self._matrix.groups if fnmatchcase(group.name, pattern) for cell in group.cell_names)
        if not cells:
            raise self._unknown(pattern, "no group", names, _join(names))
        return lambda cell: cell.name in cells

    def _unknown(self, name: str, what: str, names: Iterable[str], expected: str = _SHAPE) -> ConfigError:
        """Return the error for an unknown ``name``, with the nearest of ``names``."""
        hint = nearest(name, names)
        return self._error(f"{name!r}, which is {what}", expected, hint or "python -m pytest_specdec matrix CONFIG lists axes and cells")

    def _error(self, found: str, expected: str, remedy: str = "") -> ConfigError:
        what = f"the expression cannot be used: {self._expression}"
        return ConfigError(what, where=self._option, found=found, expected=expected, remedy=remedy or f"write {_SHAPE}")


def _yaml_value_name(text: str) -> str:
    """Return the name in a matrix of a value that ``text`` states as a config does.

    An expression may have the value instead of the name: ``-1``, a number in YAML, for the name ``minus-1``. Empty if ``text`` is no YAML.
    """
    try:
        return value_name(yaml.load(text, "").data) if text else ""
    except ConfigError:
        return ""


def _join(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"
