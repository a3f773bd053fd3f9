"""The report of a matrix on the terminal, in pieces with a tone.

A cell is a variant under one value of each axis, such as dtype. Cells with one baseline are a group, which has a run of its own. A finding
is one fault, in some of the cells, which are red. An upgrade is the comparison of a group with an earlier run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.report import answer
from pytest_specdec.report.escape import printable
from pytest_specdec.report.matrix_axes import describe
from pytest_specdec.report.next_steps import NextStep
from pytest_specdec.report.progress import plural
from pytest_specdec.report.run import RunClass
from pytest_specdec.report.table import CellText, Tone
from pytest_specdec.report.terminal import RESULT_TONES, Line, plain_line, table_lines
from pytest_specdec.report.upgrade import UpgradeWord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.report.matrix import CellResult, MatrixFinding, MatrixReport

UPGRADE_TONES = {UpgradeWord.WORSE: Tone.BAD, UpgradeWord.UNKNOWN: Tone.UNSURE, UpgradeWord.FINE: Tone.GOOD}
"""By what a comparison with an earlier run came to, the worst first."""
ROWS = 16
"""Cells up to which the table has all of them without ``-v``."""
MOST_ROWS = 40
"""Red cells that a longer table has."""
NAMES = 6
"""Cells that a line names."""


def lines(report: MatrixReport, *, verbose: bool = False) -> tuple[Line, ...]:
    """Return the lines of a matrix on the terminal, in toned pieces.

    They are its counts, comparisons with an earlier run, findings with their axis values, what is open or missing, and the table of cells
    by family. Without ``verbose`` the table of a matrix with more than :data:`ROWS` cells has only red ones, :data:`MOST_ROWS` at most.
    """
    return (
        (CellText(text=printable(headline(report)), tone=class_tone(report.run_class)),),
        *((replace(line, text=printable(line.text)),) for line in upgrades(report)),
        *((CellText(text=printable(text), tone=Tone.BAD),) for text in joint_pattern_text(report)),
        *(line for finding in report.findings for line in _finding_lines(report, finding)),
        *((replace(line, text=printable(line.text)),) for line in (*open_groups(report), *missing_cells(report))),
        *_table(report, verbose=verbose),
    )


def headline(report: MatrixReport) -> str:
    """Return the counts of a matrix in one line."""
    missing = [f"{len(report.missing)} missing"] if report.missing else []
    part = [f"{report.matrix_size - len(report.cells)} of the matrix not in this run"] if report.matrix_size > len(report.cells) else []
    cells = f"{report.judged} of {len(report.cells)} cells judged"
    return f"MATRIX: {report.config}, {report.depth}: {'; '.join((_count_findings(report), cells, *missing, *part))}"


def _count_findings(report: MatrixReport) -> str:
    """Return the number of findings and of their cells, in words.

    Without a finding it says that nothing could be judged, only an upgrade is worse, nothing is wrong, or not everything was judged.
    """
    if report.findings:
        red = {cell for finding in report.findings for cell in finding.pattern.red}
        return f"{plural(len(report.findings), 'finding')} in {len(red)} of {report.judged} cells"
    if not report.judged:
        return "nothing could be judged"
    if report.run_class is RunClass.FINDING:  # of an upgrade, which has lines of its own
        return "no finding in the cells"
    return "nothing wrong found" if report.run_class in {RunClass.CLEAN, RunClass.UNDECIDED} else "no finding in what was judged"


def class_tone(run_class: RunClass) -> Tone:
    """Return the tone of a class in every format, bad by default."""
    return RESULT_TONES.get(run_class, Tone.BAD)


def finding_text(report: MatrixReport, finding: MatrixFinding) -> str:
    """Return the sentence on one finding, without its place."""
    return answer.fault_line(finding.cause, f"{len(finding.pattern.red)} of {report.judged} cells").text


def _finding_lines(report: MatrixReport, finding: MatrixFinding) -> Iterator[Line]:
    """Yield a finding's sentence, its axis values and its evidence's place."""
    yield (CellText(text=finding_text(report, finding), tone=Tone.BAD),)
    yield (CellText(text=printable(f"  {finding.place}"), tone=Tone.BAD),)
    folder = f"{report.directory}/" if report.directory else ""
    yield plain_line(f"  evidence: {finding.cause.leader.pair} in {folder}groups/{finding.directory}")


def joint_pattern_text(report: MatrixReport) -> Iterator[str]:
    """Yield a line on the axis values behind all findings together.

    Nothing if one finding has all failing cells by itself, or if no values separate these from the clean cells.
    """
    if report.joint_pattern is not None:
        yield f"ALL {len(report.findings)} FINDINGS: {describe(report.joint_pattern)}"


def upgrades(report: MatrixReport) -> Iterator[CellText]:
    """Yield a line for each result of comparing groups with an earlier run.

    Groups with the same word (worse, unknown, fine) and kind of headline share a line, with the headline of the first of them. The worst
    comes first. The groups are named unless they are all that were compared.
    """
    compared = [(group.directory, group.upgrade) for group in report.groups if group.upgrade is not None]
    by_case: dict[tuple[UpgradeWord, str], list[tuple[str, str]]] = {}
    for directory, upgrade in compared:
        by_case.setdefault((upgrade.word, upgrade.case or upgrade.headline), []).append((directory, upgrade.headline))
    worst_first = list(UPGRADE_TONES)
    for (word, _), same_result in sorted(by_case.items(), key=lambda entry: worst_first.index(entry[0][0])):
        names = f" ({_list_names([directory for directory, _ in same_result])})" if len(same_result) < len(compared) else ""
        _, first_headline = same_result[0]
        headline_text = f"; the first: {first_headline}" if len(same_result) > 1 else f": {first_headline}"
        what = f"{len(same_result)} of {plural(len(compared), 'group')}{names}: {word.value}{headline_text}"
        yield CellText(text=f"UPGRADE: {what}", tone=UPGRADE_TONES[word])


def open_groups(report: MatrixReport) -> Iterator[CellText]:
    """Yield a line for each class and reason of groups with results, with their names.

    A group has no reason if it is clean or has a finding, or if its upgrade alone is to blame.
    """
    by_reason: dict[tuple[RunClass, str], list[str]] = {}
    for group in report.groups:
        if group.reason and group.cells:
            by_reason.setdefault((group.run_class, group.reason), []).append(group.directory)
    for (run_class, reason), names in by_reason.items():
        yield CellText(text=f"{run_class.value.upper()}: {_list_names(names)}: {reason}", tone=class_tone(run_class))


def missing_cells(report: MatrixReport) -> Iterator[CellText]:
    """Yield a line for each reason of cells without results."""
    by_reason: dict[str, list[str]] = {}
    for cell, reason in report.missing.items():
        by_reason.setdefault(reason, []).append(cell)
    for reason, names in by_reason.items():
        text = f"MISSING: {plural(len(names), 'cell')} ({_list_names(names)}): {reason}"
        yield CellText(text=text, tone=class_tone(RunClass.INFRASTRUCTURE))


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _table(report: MatrixReport, *, verbose: bool) -> Iterator[Line]:
    """Yield the table of cells by family, an empty line first.

    Without ``verbose`` a table of more than :data:`ROWS` cells has only red ones, :data:`MOST_ROWS` at most. A last line counts the rest.
    """
    results = report.results
    is_cut = not verbose and len(results) > ROWS
    in_table = tuple(result for result in results if result.tone is Tone.BAD)[:MOST_ROWS] if is_cut else results
    if in_table:
        header = tuple(CellText(text=printable(name)) for name in ("", *report.families))
        yield ()
        yield from table_lines((header, *(row(report, result) for result in in_table)))
    left_out = Counter(result.tone for result in results) - Counter(result.tone for result in in_table)
    texts = [f"{left_out[tone]} {word}" for tone, word in _WORDS.items() if left_out[tone]]
    if texts:
        yield plain_line(f"not in the table: {', '.join(texts)}; -v, or a page of the report, shows all")


_WORDS = {Tone.BAD: "red", Tone.UNSURE: "with something open", Tone.GOOD: "in which all is ok"}


def row(report: MatrixReport, result: CellResult) -> tuple[CellText, ...]:
    """Return a cell's row: its name, then its status in each family."""
    none = CellText(text="-")
    return (CellText(text=printable(result.name)), *(result.statuses.get(family, none) for family in report.families))


def next_steps(report: MatrixReport) -> tuple[Line, ...]:
    """Return a line per command to type next.

    A capture that can be resumed comes first. Else they are the steps of one group: that with the first finding, or the first with any.
    """
    leading = report.findings[0].directory if report.findings else ""
    leading_first = sorted(report.groups, key=lambda group: group.directory != leading)
    steps = next((group.next_steps for group in leading_first if group.next_steps), ())
    resume_step = (NextStep(what="resume the incomplete capture", command=report.resume),)
    tone = Tone.BAD if report.red else Tone.UNSURE
    return tuple((CellText(text=printable(f"Next: {step.text}"), tone=tone),) for step in (resume_step if report.resume else steps))


_MEANINGS = {
    RunClass.SETUP_INVALID: ": the baseline or the config of a group, and no verdict on its cells",
    RunClass.INFRASTRUCTURE: ": cells are missing or failed outside the engine; the same command may come to a verdict",
    RunClass.UNDECIDED: ": nothing wrong found, and not everything decided",
}


def result(report: MatrixReport) -> Line:
    """Return the last line: the class of the whole, and the first finding with its place.

    The place is that of all findings together if they have one. Without a finding, the line has the meaning of the class or, if an upgrade
    is worse, the worst comparison with an earlier run.
    """
    run_class = report.run_class
    meaning = _MEANINGS.get(run_class, "")
    if run_class is RunClass.FINDING and report.findings:
        first, *others = report.findings
        if report.joint_pattern is not None:
            meaning = f": {first.cause.name}, and {len(others)} more: {describe(report.joint_pattern)}"
        else:
            meaning = f": {first.cause.name}: {first.place}" + (f"; and {len(others)} more" if others else "")
    elif run_class is RunClass.FINDING:
        meaning = next((f": {line.text}" for line in upgrades(report)), meaning)
    return (CellText(text=printable(f"RESULT: {run_class.value}{meaning}"), tone=class_tone(run_class)),)
