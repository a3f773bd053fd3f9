"""What a session says at its end, in pieces with a tone; colour is the terminal's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import answer, speed_table, table
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import PytestOutcome, counted
from pytest_specdec.report.table import CellText, Tone, reasons

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.report.run import JudgementResult, Run

__all__ = ["Line", "lines"]

Line: TypeAlias = "tuple[CellText, ...]"

REASON_LINES = 8
"""Reasons for what was skipped or not captured shown without ``-v``."""

RULED_OUT_LINES = 12
"""Sensitivity lines shown without ``-v``."""


def lines(run: Run, *, artifacts: Sequence[str], remedy: str, further: str, verbose: bool) -> tuple[Line, ...]:
    """Return the summary: the answer, what is wrong, the table, reasons, what would have been caught, speed, notes, and what to type next.

    ``further`` is the command that takes the run further.
    """
    return (
        *([(answer.correctness(run), CellText(text="     "), answer.speed(run))] if run.judgements else []),
        *((shown,) for shown in answer.wrong(run)),
        *_suspicions(run, further),
        *((CellText(text=printable(line), tone=Tone.UNSURE),) for line in speed_table.not_gated(run)),
        *([(), *_grid(table.table(run)), ()] if run.judgements else []),
        *_reasons(run, verbose=verbose),
        _counts(run),
        *_ruled_out(run, verbose=verbose),
        *([_plain(untested)] if run.judgements and (untested := answer.not_tested(run)) else []),
        *_speed(run),
        *_capabilities(run, verbose=verbose),
        *(_plain(f"note: {note}") for note in run.notes),
        *(_plain(line) for line in artifacts),
        *([(CellText(text=printable(remedy), tone=Tone.BAD),)] if run.red else []),
    )


def _suspicions(run: Run, further: str) -> Iterator[Line]:
    """Yield what must not be overlooked, before everything else."""
    for verdict in run.suspicious:
        about = f"{verdict.pair} {verdict.family.value} ({verdict.workload})"
        yield (CellText(text=printable(f"SUSPICIOUS: {about} {verdict.headline}"), tone=Tone.UNSURE),)
    if any(verdict.family is Family.SAMPLING for verdict in run.suspicious):
        yield (CellText(text=printable(f"  take it further, under the same share of false alarms: {further}"), tone=Tone.UNSURE),)


def _plain(text: str) -> Line:
    return (CellText(text=printable(text)),)


def _grid(rows: Sequence[Sequence[CellText]], gap: int = 3) -> Iterator[Line]:
    widths = [max(len(row[column].text) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        last = len(row) - 1
        yield tuple(
            CellText(text=shown.text if column == last else shown.text.ljust(widths[column] + gap), tone=shown.tone)
            for column, shown in enumerate(row)
        )


def _reasons(run: Run, *, verbose: bool) -> Iterator[Line]:
    found = reasons(run)
    shown = found if verbose else found[:REASON_LINES]
    for line in shown:
        yield (CellText(text=f"  {line}", tone=Tone.UNSURE),)
    if len(shown) < len(found):
        yield _plain(f"  … and {len(found) - len(shown)} more with -v")
    if found:
        yield ()


def _counts(run: Run) -> Line:
    counts = ", ".join(f"{name}: {count}" for name, count in counted(run.judgements).items()) or "no verdict"
    nothing = "" if run.judged else " - nothing could be judged"
    judgements = f"{len(run.judgements)} judgement{'s' * (len(run.judgements) != 1)}"
    return (
        CellText(
            text=printable(f"{run.plan.config}, {run.plan.depth.value}: {judgements}; {counts}{nothing}"),
            tone=Tone.BAD if run.red else Tone.UNSURE if run.suspicious else Tone.GOOD,
        ),
    )


def _ruled_out(run: Run, *, verbose: bool) -> Iterator[Line]:
    said = [j for j in run.judgements if _says_what_it_ruled_out(j)]
    shown = said if verbose else said[:RULED_OUT_LINES]
    for pair in run.pairs:
        mine = [j for j in shown if j.pair == pair]
        if mine:
            yield _plain(f"Would have been caught in {pair}:")
            yield from (_plain(f"  {j.workload}: {j.verdict.rules_out}") for j in mine if j.verdict)
    if len(shown) < len(said):
        yield _plain(f"  … and {len(said) - len(shown)} more with -v")


def _says_what_it_ruled_out(judgement: JudgementResult) -> bool:
    verdict = judgement.verdict
    return judgement.result is PytestOutcome.PASSED and verdict is not None and verdict.outcome is Outcome.PASS and bool(verdict.rules_out)


def _speed(run: Run) -> Iterator[Line]:
    for verdict in speed_table.verdicts(run):
        rows = [
            (f"speed of {verdict.pair}", *speed_table.HEADER[1:]),
            *((f"  {row[0]}", *row[1:]) for row in speed_table.rows(verdict.figures)),
        ]
        yield from _right_aligned(rows)
        yield _plain(f"  {verdict.headline}")


def _right_aligned(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        numbers = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        yield _plain("   ".join([first.ljust(widths[0]), *numbers]))


def _capabilities(run: Run, *, verbose: bool) -> Iterator[Line]:
    refused = any(j.verdict and j.verdict.outcome is Outcome.REFUSED for j in run.judgements)
    rows = table.capability_rows(run)
    if rows and (refused or verbose):
        yield _plain("capabilities:")
        yield from ((CellText(text="  "), *line) for line in _grid(rows))
