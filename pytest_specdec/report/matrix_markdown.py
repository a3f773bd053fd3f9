"""The report of a matrix as GitHub-flavoured Markdown, with links to the reports of its groups.

A cell is a variant under one value of each axis, such as dtype. Cells with one baseline are a group. A finding is one fault in its cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import escape
from pytest_specdec.report.markdown import SIGNS, fit_sections, fold_section, table_lines
from pytest_specdec.report.matrix_terminal import (
    class_tone,
    finding_text,
    headline,
    joint_pattern_text,
    missing_cells,
    open_groups,
    row,
    upgrades,
)
from pytest_specdec.report.table import CellText, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.report.matrix import MatrixFinding, MatrixReport

TARGET = "matrix.md"
_WHOLE = "matrix-report.json"
_ROWS = 25
"""Rows of one table, and lines of one list: a report too long for a comment is cut between tables."""


def render(report: MatrixReport) -> str:
    """Return the report, cut to the size of a comment by whole sections.

    Findings come first, then a line for each reason of groups that are not clean, or of missing cells. The missing cells one by one, all
    cells by family, and the groups follow.
    """
    missing_one_by_one = _fold_list("Missing cells", (f"{cell}: {reason}" for cell, reason in report.missing.items()))
    own_paragraph = "\n"  # an empty line before the last line of a list that is cut
    sections = [
        *(_finding(report, finding) for finding in report.findings),
        *_shorten_list(map(_render_bold, open_groups(report)), own_paragraph),
        *_shorten_list(map(_render_bold, missing_cells(report)), own_paragraph),
        *missing_one_by_one,
        *_tables(report),
        *_groups(report),
    ]
    return fit_sections("\n".join(_head(report)), sections, _WHOLE)


def _head(report: MatrixReport) -> Iterator[str]:
    """Yield the title, the counts, the results of upgrades and the joint pattern.

    An upgrade is the comparison of a group with an earlier run. The joint pattern is the axis values behind all findings together.
    """
    yield f"## {SIGNS[class_tone(report.run_class)]}specdec matrix: {escape(report.config)}: {report.run_class.value}"
    about = "Each cell is a variant against the baseline of its group, which is the same server without speculation."
    yield f"\n{escape(headline(report))}. {about}"
    yield from map(_render_bold, (*upgrades(report), *(CellText(text=text, tone=Tone.BAD) for text in joint_pattern_text(report))))


def _render_bold(line: CellText) -> str:
    return f"\n{SIGNS[line.tone]}**{escape(line.text)}**"


def _shorten_list(lines: Iterable[str], begin: str) -> Iterator[str]:
    """Yield the first :data:`_ROWS` lines, then the number of the others.

    ``begin`` is the beginning of that last line, such as the bullet of a list. It is left out if there are no others.
    """
    all_lines = tuple(lines)
    yield from all_lines[:_ROWS]
    if len(all_lines) > _ROWS:
        yield f"{begin}_and {len(all_lines) - _ROWS} more in {_WHOLE}_"


def _fold_list(title: str, items: Iterable[str]) -> tuple[str, ...]:
    """Return a folded list; () without items."""
    lines = [f"- {escape(item)}" for item in items]
    return fold_section(title, ["", *_shorten_list(lines, "- ")]) if lines else ()


def _finding(report: MatrixReport, finding: MatrixFinding) -> str:
    """Return a finding's section: its axis values, a link to the group with its leading failure, and its cells."""
    leader = finding.cause.leader
    evidence = f"Evidence: {_link(leader.pair, finding.directory)}"
    headline_text = f"{escape(leader.verdict.headline)}. " if leader.verdict else ""
    cells = "\n".join(_fold_list("Its cells", finding.pattern.red))
    return f"\n❌ **{escape(finding_text(report, finding))}**\n\n**{escape(finding.place)}.** {headline_text}{evidence}\n{cells}"


def _link(text: str, directory: str) -> str:
    return f"[{escape(text)}](groups/{directory}/report.md)"


def _tables(report: MatrixReport) -> Iterator[str]:
    """Yield the cells by family, in tables of :data:`_ROWS` rows."""
    header = ["cell", *map(escape, report.families)]
    rows = [
        [_link(name.text, group.directory), *(f"{SIGNS[status.tone]}{escape(status.text)}" for status in statuses)]
        for group in report.groups
        for name, *statuses in (row(report, result) for result in group.cells)
    ]
    for start in range(0, len(rows), _ROWS):
        yield "\n".join(["", *table_lines([header, *rows[start : start + _ROWS]])])


def _groups(report: MatrixReport) -> Iterator[str]:
    """Yield the folded table of the groups and their classes."""
    rows = [
        [_link(group.directory, group.directory), group.run_class.value, str(len(group.cells)), escape(group.reason)]
        for group in report.groups
    ]
    yield from fold_section("Groups", ["", *table_lines([["group", "class", "cells", "reason"], *rows])])
