"""The summary on the terminal, in pieces with a tone; colour is the terminal's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import answer, environment, parameter_table, speed_table, table, upgrade
from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.next_steps import list_next_steps
from pytest_specdec.report.run import RunClass, count_outcomes
from pytest_specdec.report.table import CellText, Tone, reasons

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.report.run import Run

Line: TypeAlias = "tuple[CellText, ...]"

WIDTH = 120
"""Columns that a table may take; more variants than fit are shown below each other."""

REASON_LINES = 8
"""Reasons of skipped and missing judgements shown without ``-v``."""


def lines(run: Run) -> tuple[Line, ...]:
    """Return the lines of the summary.

    In order: safe or not, faults, the table, reasons, detectable faults, the families not tested, speed, notes.
    """
    return (
        *([(answer.correctness(run), CellText(text="     "), answer.speed(run))] if run.judgements else []),
        *((fault,) for fault in answer.faults(run)),
        *_baseline_lines(run),
        *((known,) for known in answer.waived_lines(run)),
        *_unsettled_lines(run),
        *([(), *_table_lines(table.table(run))] if run.judgements else []),
        *_reason_lines(run),
        _count_line(run),
        *_detectable_lines(run),
        *([_plain_line(untested)] if run.judgements and (untested := answer.not_tested(run)) else []),
        *_speed_lines(run),
        *_capability_lines(run),
        *(_plain_line(f"note: {note}") for note in run.notes if run.upgrade is None or note != run.upgrade.note),
    )


def upgrade_lines(run: Run) -> tuple[str, ...]:
    """Return the comparison with an earlier run; () without one."""
    if run.upgrade is None:
        return ()
    first, *more = upgrade.lines(run.upgrade, details=False)
    return (f"UPGRADE: {first}", *more)


def next_steps(run: Run) -> tuple[Line, ...]:
    """Return a line per command to type next.

    None where everything was captured and nothing is open.
    """
    tone = Tone.BAD if run.red else Tone.UNSURE
    return tuple((CellText(text=printable(f"Next: {step.text}"), tone=tone),) for step in list_next_steps(run))


_RESULTS = {
    RunClass.SETUP_INVALID: ": the baseline or the config, and no verdict on the variant",
    RunClass.INFRASTRUCTURE: ": a failure outside the engine; the same command may come to a verdict",
    RunClass.UNDECIDED: ": nothing wrong found, and not everything decided",
}
_RESULT_TONES = {RunClass.CLEAN: Tone.GOOD, RunClass.UNDECIDED: Tone.UNSURE}


def result(run: Run) -> Line:
    """Return the last line: the class of the run, with its first finding, or with what a clean run leaves out."""
    run_class = run.run_class
    limits = answer.limits_of_clean(run)
    clean = f": {limits}" if limits else ""
    what = _first_finding(run) if run_class is RunClass.FINDING else _RESULTS.get(run_class, clean)
    return (CellText(text=printable(f"RESULT: {run_class.value}{what}"), tone=_RESULT_TONES.get(run_class, Tone.BAD)),)


def _first_finding(run: Run) -> str:
    """Return the first finding and the number of others; of a run without one, how it is worse than the earlier run."""
    if not run.findings:
        return f": {run.upgrade.headline}" if run.upgrade else ""
    first, *others = run.findings
    more = f", and {len(others)} more" if others else ""
    return f": {', '.join(first.by_pair)}: {first.name}{more}"


def _unsettled_lines(run: Run) -> Iterator[Line]:
    """Yield lines on suspicious verdicts and undecided speeds."""
    for verdict in run.suspicious:
        subject = f"{verdict.pair} {verdict.family.value} ({verdict.workload})"
        yield (CellText(text=printable(f"SUSPICIOUS: {subject}: {verdict.headline}"), tone=Tone.UNSURE),)
    yield from ((line,) for line in answer.not_gated(run))


def _baseline_lines(run: Run) -> Iterator[Line]:
    """Yield what differs from the baseline files' environments, where a promise of speed is broken."""
    if any(judgement.family is Family.SPEED and judgement.has_fault for judgement in run.judgements):
        for difference in environment.baseline_differences(run):
            yield _plain_line(difference.headline)
            yield from (_plain_line(f"  {change}") for change in difference.changes)


def _plain_line(text: str) -> Line:
    return (CellText(text=printable(text)),)


def _table_lines(rows: Sequence[Sequence[CellText]], gap: int = 2) -> Iterator[Line]:
    """Yield the rows, in groups of columns within ``WIDTH``.

    A group is as many columns as fit. An empty line follows each group.
    """
    widths = [max(len(row[column].text) for row in rows) + gap for column in range(len(rows[0]))]
    for group in _column_groups(widths):
        yield from (_align_row(row, widths, (0, *group)) for row in rows if any(row[column].text != "-" for column in group))
        yield ()


def _column_groups(widths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield groups of columns, each fitting beside the first column."""
    group: tuple[int, ...] = ()
    for column in range(1, len(widths)):
        if group and widths[0] + sum(widths[i] for i in (*group, column)) > WIDTH:
            yield group
            group = ()
        group = (*group, column)
    yield group


def _align_row(row: Sequence[CellText], widths: Sequence[int], columns: Sequence[int]) -> Line:
    """Return the row's cells padded to the widths."""
    last = columns[-1]
    return tuple(CellText(text=row[i].text if i == last else row[i].text.ljust(widths[i]), tone=row[i].tone) for i in columns)


def _reason_lines(run: Run) -> Iterator[Line]:
    """Yield the reasons, only the first few without ``-v``."""
    all_reasons = reasons(run)
    shown = all_reasons if run.verbose else all_reasons[:REASON_LINES]
    yield from ((CellText(text=f"  {line}", tone=Tone.UNSURE),) for line in shown)
    if len(shown) < len(all_reasons):
        yield _plain_line(f"  … and {len(all_reasons) - len(shown)} more with -v")
    if all_reasons:
        yield ()


def _count_line(run: Run) -> Line:
    """Return a line counting the judgements by outcome."""
    counts = ", ".join(f"{count} {name}" for name, count in count_outcomes(run.judgements).items()) or "no verdict"
    caveat = "" if run.judged else " - nothing could be judged"
    judgements = f"{len(run.judgements)} judgement{'s' * (len(run.judgements) != 1)}"
    tone = Tone.BAD if run.red else Tone.UNSURE if run.suspicious else Tone.GOOD
    what = f"{run.plan.config} ({environment.describe_served(run)}), {run.plan.depth.value}"
    return (CellText(text=printable(f"{what}: {judgements}: {counts}{caveat}"), tone=tone),)


def _detectable_lines(run: Run) -> Iterator[Line]:
    """Yield the detectable faults: a line per pair.

    All lines with ``-v``.
    """
    rows = answer.detectable(run) if run.verbose else answer.detectable_in_short(run)
    if rows:
        yield _plain_line("Would have been caught:")
        yield from (_plain_line(f"  {pairs}: {text}") for pairs, text in rows)
    if len(rows) < len(answer.detectable(run)):
        yield _plain_line("  … by workload: -v, or report.md")


def _speed_lines(run: Run) -> Iterator[Line]:
    """Yield a table and a sentence per verdict on speed."""
    for verdict, speedup in speed_table.speeds(run):
        rows = [
            (f"speed of {verdict.pair}, {verdict.workload}", *speed_table.HEADER[1:]),
            *((f"  {row[0]}", *row[1:]) for row in speed_table.rows(speedup)),
        ]
        yield from _right_aligned_lines(rows)
        yield _plain_line(f"  {speed_table.sentence(run, verdict)}")


def _right_aligned_lines(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    """Yield the rows with numbers aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        numbers = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        yield _plain_line("   ".join([first.ljust(widths[0]), *numbers]))


def _capability_lines(run: Run) -> Iterator[Line]:
    """Yield the capabilities and parameters; details with ``-v``."""
    refused = any(j.verdict and j.verdict.outcome is Outcome.REFUSED for j in run.judgements)
    rows = table.capability_rows(run)
    if rows and (refused or run.verbose):
        yield _plain_line("capabilities:")
        yield from _table_lines(rows)
    parameters = parameter_table.rows(run)
    if parameters and run.verbose:
        yield _plain_line("parameters:")
        yield from _table_lines([[CellText(text=text) for text in row] for row in parameters])
    elif lacking := parameter_table.not_honoured(parameter_table.effects(run)):
        yield _plain_line(f"parameters not honoured: {lacking}")


FORMAT = ReportFormat(name="terminal", target="terminal", when=When.SUMMARY, render=lines)
