"""The summary on the terminal, in pieces with a tone; colour is the terminal's business.

A line is a tuple of pieces, each a text with a tone: good, unsure, bad or plain. A judgement is one test of a variant, a server with
speculation, on a workload. Reports call a fault of the engine a finding.
"""

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
    """Return the lines of the terminal summary, each in toned pieces.

    In order: the answers on correctness and speed, faults, after a slow run what differs from the baseline file's environment, known
    failures, suspicious and undecided verdicts, the table of promises, reasons for missing verdicts, counts, detectable faults, untested
    families, speedups, capabilities, notes. The comparison with an earlier run is no part of it, nor is its note.
    """
    return (
        *([(answer.correctness(run), CellText(text="     "), answer.speed(run))] if run.judgements else []),
        *((fault,) for fault in answer.fault_lines(run)),
        *_baseline_lines(run),
        *((line,) for line in answer.waived_lines(run)),
        *_unsettled_lines(run),
        *([(), *table_lines(table.table(run))] if run.judgements else []),
        *_reason_lines(run),
        _count_line(run),
        *_detectable_lines(run),
        *([plain_line(untested)] if run.judgements and (untested := answer.not_tested(run)) else []),
        *_speed_lines(run),
        *_capability_lines(run),
        *(plain_line(f"note: {note}") for note in run.notes if run.upgrade is None or note != run.upgrade.note),
    )


def upgrade_lines(run: Run) -> tuple[str, ...]:
    """Return the comparison with an earlier run, line by line; () without one."""
    if run.upgrade is None:
        return ()
    first, *more = upgrade.lines(run.upgrade, details=False)
    return (f"UPGRADE: {first}", *more)


def next_steps(run: Run) -> tuple[Line, ...]:
    """Return a line per command to type next.

    () if everything was captured and nothing is red or suspicious.
    """
    tone = Tone.BAD if run.red else Tone.UNSURE
    return tuple((CellText(text=printable(f"Next: {step.text}"), tone=tone),) for step in list_next_steps(run))


_RESULTS = {
    RunClass.SETUP_INVALID: ": the baseline or the config, and no verdict on the variant",
    RunClass.INFRASTRUCTURE: ": a failure outside the engine; the same command may come to a verdict",
    RunClass.UNDECIDED: ": nothing wrong found, and not everything decided",
}
RESULT_TONES = {RunClass.CLEAN: Tone.GOOD, RunClass.UNDECIDED: Tone.UNSURE}


def result(run: Run) -> Line:
    """Return the last line: the run's class and its main reason.

    The reason of a finding is the first fault; that of a clean run, what limits this. Any other class has its meaning as reason.
    """
    run_class = run.run_class
    limits = answer.limits_of_clean(run)
    clean = f": {limits}" if limits else ""
    what = _first_finding(run) if run_class is RunClass.FINDING else _RESULTS.get(run_class, clean)
    return (CellText(text=printable(f"RESULT: {run_class.value}{what}"), tone=RESULT_TONES.get(run_class, Tone.BAD)),)


def _first_finding(run: Run) -> str:
    """Return a colon, the first finding and the number of others.

    A run may have no finding of its own and only be worse than an earlier one: then the headline of that comparison follows the colon.
    Empty without either.
    """
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
    yield from ((line,) for line in answer.undecided_speed_lines(run))


def _baseline_lines(run: Run) -> Iterator[Line]:
    """Yield what changed in the environment since stored figures of speed.

    Baseline files hold such figures. If a test of speed failed, a change of the machine or of a version may explain it. Nothing without
    such a failure.
    """
    if any(judgement.family is Family.SPEED and judgement.has_fault for judgement in run.judgements):
        for difference in environment.baseline_differences(run):
            yield plain_line(difference.headline)
            yield from (plain_line(f"  {change}") for change in difference.changes)


def plain_line(text: str) -> Line:
    """Return a line without a tone, made printable."""
    return (CellText(text=printable(text)),)


def table_lines(rows: Sequence[Sequence[CellText]], gap: int = 2) -> Iterator[Line]:
    """Yield a table as aligned lines, split to fit :data:`WIDTH`.

    Columns that do not fit beside the others are shown below, with the first column again. A row with nothing but ``-`` in a part is left
    out of it. An empty line follows each part. ``gap`` is the number of blanks between columns.
    """
    widths = [max(len(row[column].text) for row in rows) + gap for column in range(len(rows[0]))]
    for group in _column_groups(widths):
        yield from (_align_row(row, widths, (0, *group)) for row in rows if any(row[column].text != "-" for column in group))
        yield ()


def _column_groups(widths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield groups of column indices, each fitting beside the first column."""
    group: tuple[int, ...] = ()
    for column in range(1, len(widths)):
        if group and widths[0] + sum(widths[i] for i in (*group, column)) > WIDTH:
            yield group
            group = ()
        group = (*group, column)
    yield group


def _align_row(row: Sequence[CellText], widths: Sequence[int], columns: Sequence[int]) -> Line:
    """Return the cells of ``columns``, all but the last padded to their widths."""
    last = columns[-1]
    return tuple(CellText(text=row[i].text if i == last else row[i].text.ljust(widths[i]), tone=row[i].tone) for i in columns)


def _reason_lines(run: Run) -> Iterator[Line]:
    """Yield the reasons for missing verdicts, cut to a few.

    Without ``-v`` only the first :data:`REASON_LINES` are shown.
    """
    all_reasons = reasons(run)
    reasons_to_list = all_reasons if run.verbose else all_reasons[:REASON_LINES]
    yield from ((CellText(text=f"  {line}", tone=Tone.UNSURE),) for line in reasons_to_list)
    if len(reasons_to_list) < len(all_reasons):
        yield plain_line(f"  … and {len(all_reasons) - len(reasons_to_list)} more with -v")
    if all_reasons:
        yield ()


def _count_line(run: Run) -> Line:
    """Return the line on the run: config, servers, depth and counts."""
    counts = ", ".join(f"{count} {name}" for name, count in count_outcomes(run.judgements).items()) or "no verdict"
    caveat = "" if run.judged else " - nothing could be judged"
    judgements = f"{len(run.judgements)} judgement{'s' * (len(run.judgements) != 1)}"
    tone = Tone.BAD if run.red else Tone.UNSURE if run.suspicious else Tone.GOOD
    what = f"{run.plan.config} ({environment.describe_served(run)}), {run.plan.depth.value}"
    return (CellText(text=printable(f"{what}: {judgements}: {counts}{caveat}"), tone=tone),)


def _detectable_lines(run: Run) -> Iterator[Line]:
    """Yield lines on the faults ruled out by passing judgements.

    With ``-v`` there is a line for each of these judgements. Otherwise, of the judgements of one variant in one family of tests, the one of
    most tokens stands for all, and variants with the same text share a line. Then a last line says where all judgements are listed.
    """
    all_rows = answer.detectable(run)
    rows = all_rows if run.verbose else answer.detectable_in_short(run)
    if rows:
        yield plain_line("Would have been caught:")
        yield from (plain_line(f"  {pairs}: {text}") for pairs, text in rows)
    if len(rows) < len(all_rows):
        yield plain_line("  … by workload: -v, or report.md")


def _speed_lines(run: Run) -> Iterator[Line]:
    """Yield a table and a sentence per verdict on speed."""
    for verdict, speedup in speed_table.speeds(run):
        rows = [
            (f"speed of {verdict.pair}, {verdict.workload}", *speed_table.HEADER[1:]),
            *((f"  {row[0]}", *row[1:]) for row in speed_table.rows(speedup)),
        ]
        yield from _right_aligned_lines(rows)
        yield plain_line(f"  {speed_table.sentence(run, verdict)}")


def _right_aligned_lines(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    """Yield the rows with numbers aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        numbers = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        yield plain_line("   ".join([first.ljust(widths[0]), *numbers]))


def _capability_lines(run: Run) -> Iterator[Line]:
    """Yield the tables of capabilities and of sampling parameters.

    Without ``-v`` capabilities are shown only if a judgement was refused, and of the parameters only those not honoured.
    """
    refused = any(j.verdict and j.verdict.outcome is Outcome.REFUSED for j in run.judgements)
    rows = table.capability_rows(run)
    if rows and (refused or run.verbose):
        yield plain_line("capabilities:")
        yield from table_lines(rows)
    parameters = parameter_table.rows(run)
    if parameters and run.verbose:
        yield plain_line("parameters:")
        yield from table_lines([[CellText(text=text) for text in row] for row in parameters])
    elif lacking := parameter_table.not_honoured_line(parameter_table.effects(run)):
        yield plain_line(f"parameters not honoured: {lacking}")


FORMAT = ReportFormat(name="terminal", target="terminal", when=When.SUMMARY, render=lines)
