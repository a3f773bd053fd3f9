"""The files of a matrix's report: its results for machines, and a page in each format.

A cell is a variant under one value of each axis, such as dtype. Cells with one baseline are a group. A finding's pattern is axis values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_specdec import __version__
from pytest_specdec.files import codec
from pytest_specdec.report import matrix_markdown, matrix_page
from pytest_specdec.report.matrix_axes import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_specdec.model.matrix import Cell
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.matrix import CellResult, GroupResult, MatrixFinding, MatrixReport
    from pytest_specdec.report.matrix_axes import AxisPattern

__all__ = ["FORMATS", "SCHEMA", "document", "documents"]

SCHEMA = "pytest-specdec/matrix-report/1"
_RESULTS = "matrix-report.json"
FORMATS = {"md": (matrix_markdown.TARGET, matrix_markdown.render), "html": (matrix_page.TARGET, matrix_page.render)}
"""Of each format the file and what renders it."""


def documents(report: MatrixReport, formats: Iterable[str]) -> dict[str, str]:
    """Return the texts of the report's files, by file name.

    They are the results as JSON, and a page in each of the ``formats``. Formats that a matrix does not have, such as JUnit, are left out.
    """
    pages = {target: render(report) for target, render in (FORMATS[name] for name in dict.fromkeys(formats) if name in FORMATS)}
    return {_RESULTS: json.dumps(document(report), ensure_ascii=False, indent=1) + "\n", **pages}


def document(report: MatrixReport) -> JSON:
    """Return the report as JSON; ``together`` is the pattern of all findings, null without one."""
    cells, joint = {cell.name: cell for cell in report.cells}, report.joint_pattern
    return {
        "schema": SCHEMA,
        "version": __version__,
        "config": report.config,
        "depth": report.depth,
        "class": report.run_class.value,
        "red": report.red,
        "cells": [_cell_document(cells[result.name], group, result) for group in report.groups for result in group.cells],
        "missing": codec.encode(report.missing),
        "findings": [_finding_document(finding) for finding in report.findings],
        "together": {"place": describe(joint), **_pattern_document(joint)} if joint else None,
        "groups": [_group_document(group) for group in report.groups],
    }


def _group_document(group: GroupResult) -> JSON:
    """Return a group's class, and its comparison with an earlier run if any."""
    upgrade: JSON = None
    if group.upgrade is not None:
        upgrade = {"word": group.upgrade.word.value, "case": group.upgrade.case, "headline": group.upgrade.headline}
    names = {"directory": group.directory, "group": group.group}
    return {**names, "class": group.run_class.value, "red": group.red, "reason": group.reason, "upgrade": upgrade}


def _cell_document(cell: Cell, group: GroupResult, result: CellResult) -> JSON:
    """Return a cell's axis values and what it came to, by family."""
    return {
        "name": cell.name,
        "variant": cell.variant,
        "choices": codec.encode(cell.choices),
        "directory": group.directory,
        "statuses": {family: status.text for family, status in result.statuses.items()},
        "clean": [*sorted(result.clean)],
    }


def _finding_document(finding: MatrixFinding) -> JSON:
    """Return a finding with its failed tests by cell, and its axis values."""
    by_cell: dict[str, JSON] = {cell: [failure.nodeid for failure in cause.failures] for cell, cause in finding.cause.by_pair.items()}
    family = str(finding.cause.leader.family)
    return {"name": finding.cause.name, "family": family, "tests": by_cell, "place": finding.place, **_pattern_document(finding.pattern)}


def _pattern_document(pattern: AxisPattern) -> dict[str, JSON]:
    """Return the axis values of a finding: what separates its cells, and counts by value."""
    separations: list[JSON] = [
        {"values": {choice.axis: choice.value for choice in one.choices}, "red": not one.is_inverted} for one in pattern.separations
    ]
    counts: list[JSON] = [
        {"axis": count.choice.axis, "value": count.choice.value, "red": count.red, "cells": count.cells} for count in pattern.counts
    ]
    return {"separations": separations, "counts": counts, "clean": list(pattern.clean), "open": pattern.open}
