"""The report of a matrix as one HTML page: opens from disk, runs no script, asks no network, reads in light, dark and print.

A cell is a variant under one value of each axis, such as dtype. Cells with one baseline are a group. A cell with a finding is red.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.html import TITLES, whole_line
from pytest_specdec.report.html_page import Cells, page, table, text
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
from pytest_specdec.report.page_style import STYLE
from pytest_specdec.report.progress import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.report.matrix import MatrixFinding, MatrixReport
    from pytest_specdec.report.matrix_axes import AxisPattern

TARGET = "matrix.html"
_LINKS = "a { color: var(--mark); }\n"


def render(report: MatrixReport) -> str:
    """Return the HTML page of a matrix; equal reports give equal pages."""
    title = f"specdec matrix: {report.config}: {report.run_class.value}"
    return page(title, STYLE + _LINKS, (line for part in _parts(report) for line in part))


def _parts(report: MatrixReport) -> Iterator[Iterable[str]]:
    """Yield the lines of each part of the page, in order."""
    yield _head(report)
    yield _findings(report)
    yield _cells(report)
    yield _groups(report)


def _head(report: MatrixReport) -> Iterator[str]:
    """Yield the page's header: class, counts, and what is open or missing.

    After the counts there are the comparisons with an earlier run, and the axis values behind all findings together.
    """
    tone = class_tone(report.run_class)
    yield f'<header><p class="class {tone.value}">{text(TITLES[report.run_class])}</p>'
    size = f"{plural(len(report.cells), 'cell')} in {plural(len(report.groups), 'group')}"
    yield f"<h1>{text(f'{report.config}: {size}')}</h1>"
    yield f'<p class="answer {tone.value}">{text(headline(report))}</p>'
    yield from (f'<p class="answer {line.tone.value}">{text(line.text)}</p>' for line in upgrades(report))
    yield from (f'<p class="answer">{text(line)}</p>' for line in joint_pattern_text(report))
    yield '<p class="aside">A cell is a variant against the baseline of its group, which is the same server without speculation.</p>'
    yield from (f'<p class="{line.tone.value}">{text(line.text)}</p>' for line in (*open_groups(report), *missing_cells(report)))
    items = "".join(f"<li>{text(f'{cell}: {reason}')}</li>" for cell, reason in report.missing.items())
    if items:
        yield f"<details><summary>Missing cells</summary><ul>{items}</ul></details>"
    yield "</header>"


def _findings(report: MatrixReport) -> Iterator[str]:
    """Yield a section per finding: its axis values, its counts by value, its cells.

    The headline of its leading failure, and a link to the report of that failure's group, come before the counts.
    """
    if report.findings:
        yield f"<h2>{plural(len(report.findings), 'finding')}</h2>"
    for finding in report.findings:
        leader = finding.cause.leader
        yield f'<section class="finding"><h3>{text(finding_text(report, finding))}</h3>'
        yield f'<p class="answer">{text(finding.place)}</p>'
        if leader.verdict is not None:
            yield f"<p>{text(leader.verdict.headline)}</p>"
        yield f'<p class="aside">Evidence: {_link(leader.pair, finding.directory)}</p>'
        yield from _counts(finding.pattern)
        yield from _red_cells(report, finding)
        yield "</section>"


def _link(name: str, directory: str) -> str:
    return f'<a href="groups/{text(directory)}/report.html">{text(name)}</a>'


def _counts(pattern: AxisPattern) -> Iterator[str]:
    """Yield a folded table of the red cells with each value of each axis."""
    rows = [[whole_line(text(str(count.choice))), f"{count.red} of {count.cells}"] for count in pattern.counts]
    if rows:
        yield "<details><summary>Red cells by axis value</summary>"
        yield from table([["axis value", "red"], *rows], "Of the cells judged in this family", Cells.NUMBERS)
        yield "</details>"


def _red_cells(report: MatrixReport, finding: MatrixFinding) -> Iterator[str]:
    """Yield a folded list of a finding's cells."""
    directories = {result.name: group.directory for group in report.groups for result in group.cells}
    items = "".join(f"<li>{_link(cell, directories[cell])}</li>" for cell in finding.pattern.red)
    yield f"<details><summary>Its {plural(len(finding.pattern.red), 'cell')}</summary><ul>{items}</ul></details>"


def _cells(report: MatrixReport) -> Iterator[str]:
    """Yield the table of cells by family."""
    rows = [
        [
            whole_line(_link(name.text, group.directory)),
            *(f'<span class="whole-line {cell.tone.value}">{text(cell.text)}</span>' for cell in statuses),
        ]
        for group in report.groups
        for name, *statuses in (row(report, result) for result in group.cells)
    ]
    if rows:
        yield "<h2>Cells</h2>"
        yield from table([["cell", *map(text, report.families)], *rows], "Each family in each cell")


def _groups(report: MatrixReport) -> Iterator[str]:
    """Yield the table of groups with their classes."""
    rows = [
        [
            whole_line(_link(group.directory, group.directory)),
            f'<span class="{class_tone(group.run_class).value}">{group.run_class.value}</span>',
            str(len(group.cells)),
            text(group.reason),
        ]
        for group in report.groups
    ]
    yield "<h2>Groups</h2>"
    yield from table([["group", "class", "cells", "reason"], *rows], "Runs with a baseline of their own", Cells.PROSE)
    if report.directory:
        yield f"<footer><p>Run directory <code>{text(report.directory)}</code></p></footer>"
