"""``matrix`` of a config: every allowed combination of values as a cell, and one ordinary config for the cells of each baseline.

An axis is a setting with several values; a value's overlay is laid over sections of the file. A cell is a variant under one value of each
axis. A group has all cells with the same baseline. In its config they are the variants. A place is the path of keys to a value; lines are
the file's, by place, for errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import load, matrix_axes, matrix_cells, validate, variables
from pytest_specdec.config.load import MATRIX
from pytest_specdec.config.matrix_cells import ALL, SEPARATOR
from pytest_specdec.errors import ConfigError
from pytest_specdec.files import yaml
from pytest_specdec.files.yaml import YamlDocument
from pytest_specdec.model.matrix import VARIANT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.matrix_axes import Axis
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath
    from pytest_specdec.model.matrix import Cell, Group, Matrix
    from pytest_specdec.model.workload import JSON

__all__ = ["MatrixConfig", "is_matrix", "load_matrix"]

_VARIANTS = "variants"
_WAIVERS = "waivers"
_LENGTH = "acceptance_length"
_GOLDEN_TESTS = ("gates", _LENGTH, "golden", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixConfig:
    """Everything that a config file with ``matrix`` says, with ``${VAR}`` as written."""

    name: str
    """The stem of the file."""
    path: Path
    text: str
    """The file as it was."""
    matrix: Matrix
    """The whole one."""
    document: YamlDocument = field(repr=False)
    axes: tuple[Axis, ...] = field(repr=False)

    def config(self, group: Group) -> Config:
        """Return the config of a group, with exactly its cells as variants.

        The group may have some of its cells only. A matrix without axes of the baseline has one group, ``ALL``, whose config keeps the
        file's name. Raises ConfigError with all problems of the settings that are laid over each other.
        """
        document = _group_document(self, group)
        comment = f"# Written by pytest-specdec: the config as the group {group.name} of {self.path.name} has it.\n"
        config = load.read(document, self.path, comment + yaml.dump(document.data))
        return replace(config, lines=document.lines, name=self.name if group.name == ALL else f"{self.name}{SEPARATOR}{group.name}")


def is_matrix(path: Path) -> bool:
    """Return True if the config file ``path`` has ``matrix``.

    Raises ConfigError if it cannot be read.
    """
    return load.has_matrix(yaml.load(load.read_config_text(path), str(path)))


def load_matrix(path: Path) -> MatrixConfig:
    """Return the matrix in the config file ``path``, with every ``${VAR}`` as written.

    Raises ConfigError without ``matrix``, and otherwise with all problems of the first step that has any: the file as it is written; its
    axes and exclusions; names of variants and cells; the configs of the groups, with settings laid over each other.
    """
    text = load.read_config_text(path)
    document = yaml.load(text, str(path))
    if not load.has_matrix(document):
        what, remedy = "this config has no matrix", "write axes under `matrix`, or use the config as one of ordinary pairs"
        raise ConfigError(what, where=str(path), found="no `matrix`", expected="a config with `matrix`", remedy=remedy)
    if problems := load.list_file_problems(document):
        raise validate.error(problems)
    axes = matrix_axes.read_axes(document)
    problems = (*_check_engines(document), *matrix_axes.find_problems(document, axes), *matrix_cells.find_problems(document, axes))
    if problems:
        raise validate.error(problems)
    matrix = matrix_cells.expand(document, axes)
    if problems := tuple(_check_pair_names(document, matrix)):
        raise validate.error(problems)
    config = MatrixConfig(name=path.stem, path=path, text=text, matrix=matrix, document=document, axes=axes)
    # A wrong setting is wrong in many cells; it is reported once.
    distinct_problems: dict[tuple[object, ...], Problem] = {}
    for group in matrix.groups:
        for problem in sorted(load.list_problems(_group_document(config, group)), key=lambda problem: problem.path):
            distinct_problems.setdefault((problem.line, problem.found, problem.expected), problem)
    if distinct_problems:
        raise validate.error(tuple(distinct_problems.values()))
    return config


def _check_engines(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for ``engines`` beside ``matrix``."""
    if isinstance(document.data, Mapping) and "engines" in document.data:
        hint = "make an axis of the two builds, or judge the upgrade by a config of its own"
        yield validate.problem(document, (MATRIX,), "`matrix` beside `engines`", "one of the two", hint)


def _check_pair_names(document: YamlDocument, matrix: Matrix) -> Iterator[Problem]:
    """Yield a problem for each waiver and golden test of an unknown pair.

    A waiver is a known failure; a golden test is the entry of a golden file for a variant. Each must name a variant or a cell.
    """
    data: Any = document.data
    names = (*matrix.axes[VARIANT], *(cell.name for cell in matrix.cells))
    entries = data.get(_WAIVERS, ())
    names_by_place: dict[KeyPath, str] = {(_WAIVERS, index, "variant"): entry["variant"] for index, entry in enumerate(entries)}
    names_by_place |= {(*_GOLDEN_TESTS, name): name for name in _golden_tests(data)}
    for place, name in names_by_place.items():
        if name not in names:
            expected = f"a variant ({', '.join(matrix.axes[VARIANT])}), which is all of its cells, or the id of a cell"
            yield validate.problem(document, place, repr(name), expected, validate.nearest(name, names))


def _group_document(config: MatrixConfig, group: Group) -> YamlDocument:
    """Return a group's config as a document, with the file's lines.

    Its variants are the cells of the group. Waivers and golden tests of a variant become those of its cells in the group, and ``public``
    has only variables that the group uses.
    """
    baseline: Any = _baseline_document(config, group)
    data = {**baseline.data, _VARIANTS: {cell.name: _cell_settings(config, cell) for cell in group.cells}}
    waivers = tuple(_cell_waivers(data.get(_WAIVERS, ()), group))
    rewritten_sections = {
        _WAIVERS: [{**data[_WAIVERS][waiver.index], "variant": waiver.cell} for waiver in waivers],
        "gates": _group_gates(data.get("gates", {}), group),
        "public": [name for name in data.get("public", ()) if name in variables.names(data)],
    }
    return YamlDocument(
        data={key: rewritten_sections.get(key, settings) for key, settings in data.items()},
        source=config.document.source,
        lines={**baseline.lines, **_cell_lines(config, group, waivers)},
    )


def _cell_lines(config: MatrixConfig, group: Group, waivers: Sequence[_CellWaiver]) -> Mapping[KeyPath, int]:
    """Return the file's lines for what a group's config has by cell.

    These are variants, waivers and golden tests, by their places in that config: errors there name the lines that they come from.
    """
    lines: dict[KeyPath, int] = {}
    for cell in group.cells:
        lines |= _variant_lines(config, cell)
    # A waiver of a variant stands once in the file, and once for each cell in the group's config.
    for position, waiver in enumerate(waivers):
        lines |= _lines_below(config.document, (_WAIVERS, waiver.index), (_WAIVERS, position))
    for name in _golden_tests(config.document.data):
        for cell_name in _cell_names(group, name):
            lines |= _lines_below(config.document, (*_GOLDEN_TESTS, name), (*_GOLDEN_TESTS, cell_name))
    return lines


def _baseline_document(config: MatrixConfig, group: Group) -> YamlDocument:
    """Return the file without ``matrix``, under the group's baseline values.

    These values are laid over all sections but ``variants``, which is as in the file. A section that a value sets to null is left out.
    Lines of variants and waivers are left out (:func:`_cell_lines`).
    """
    document: Any = config.document
    data = {key: value for key, value in document.data.items() if key != MATRIX}
    lines = {place: line for place, line in document.lines.items() if place[0] not in {MATRIX, _VARIANTS, _WAIVERS}}
    cell = group.cells[0]  # any one: all agree in the axes that change the baseline
    for value in (axis.value(cell.choices[axis.name]) for axis in config.axes if axis.changes_baseline):
        lines |= {place: line for place, line in value.lines.items() if place[:1] != (_VARIANTS,)}
        for section, overlay in value.overlay.items():
            if section != _VARIANTS:
                data[section] = matrix_axes.lay_over(section, data.get(section), overlay)
    return YamlDocument(data={key: settings for key, settings in data.items() if settings is not None}, source=document.source, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CellWaiver:
    """A waiver of the file, for one cell of a group."""

    index: int
    """Index of the waiver in the file, from 0."""
    cell: str
    """The id of the cell."""


def _cell_waivers(entries: Sequence[Mapping[str, Any]], group: Group) -> Iterator[_CellWaiver]:
    """Yield the waivers that hold in a group, cell by cell."""
    for index, entry in enumerate(entries):
        yield from (_CellWaiver(index=index, cell=name) for name in _cell_names(group, entry["variant"]))


def _cell_settings(config: MatrixConfig, cell: Cell) -> JSON:
    """Return the settings of a cell's variant under the cell's values."""
    data: Any = config.document.data
    settings = data[_VARIANTS][cell.variant]
    for axis in config.axes:
        overlay = axis.value(cell.choices[axis.name]).overlay
        if _VARIANTS in overlay:
            settings = matrix_axes.lay_over(_VARIANTS, settings, overlay[_VARIANTS])
    return settings  # type: ignore[no-any-return]


def _variant_lines(config: MatrixConfig, cell: Cell) -> Mapping[KeyPath, int]:
    """Return the lines of a cell's settings, by their places in the group's config.

    A setting that a value of an axis brings has its line there. All others, and the cell itself, have the lines of the cell's variant.
    """
    lines = _lines_below(config.document, (_VARIANTS, cell.variant), (_VARIANTS, cell.name))
    for axis in config.axes:
        for place, line in axis.value(cell.choices[axis.name]).lines.items():
            # In an overlay `variants` has settings of every variant, without names between.
            if place[:1] == (_VARIANTS,) and len(place) > 1:
                lines[_VARIANTS, cell.name, *place[1:]] = line
    return lines


def _lines_below(document: YamlDocument, old: KeyPath, new: KeyPath) -> dict[KeyPath, int]:
    """Return the lines of ``old`` and everything below, by places under ``new``."""
    return {(*new, *place[len(old) :]): line for place, line in document.lines.items() if place[: len(old)] == old}


def _cell_names(group: Group, name: str) -> tuple[str, ...]:
    """Return the ids of a group's cells that ``name`` means.

    A cell's id means that cell, and a variant means all of its cells.
    """
    return tuple(cell.name for cell in group.cells if name in {cell.variant, cell.name})


def _group_gates(gates: Mapping[str, Any], group: Group) -> Mapping[str, JSON]:
    """Return the gates of a group, with golden tests for its cells alone.

    A golden file has published acceptance lengths by test, used as floors. In a group without any such test ``golden`` is left out, since
    its cells have no floor there, and so is the gate on the length if nothing else is in it.
    """
    stated_tests = _golden_tests({"gates": gates})  # it takes a whole config
    if not stated_tests:
        return gates
    # The file states a test for a cell, or for a variant, which is all of its cells.
    tests = {cell: test for cell_or_variant, test in stated_tests.items() for cell in _cell_names(group, cell_or_variant)}
    length_gate = {key: value for key, value in gates[_LENGTH].items() if key != "golden"}
    if tests:
        length_gate["golden"] = {**gates[_LENGTH]["golden"], "tests": tests}
    if length_gate:
        return {**gates, _LENGTH: length_gate}
    return {figure: gate for figure, gate in gates.items() if figure != _LENGTH}


def _golden_tests(data: JSON) -> Mapping[str, JSON]:
    """Return the tests of a config's golden file by variant or cell; empty without any."""
    for key in _GOLDEN_TESTS:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}
