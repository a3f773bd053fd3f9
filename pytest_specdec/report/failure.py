"""A verdict in the words of a failed test: six lines for the summary, the evidence for who reads on.

A verdict is on one pair, the baseline and a variant with speculation, in one family of tests, such as greedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import JudgementResult

LINES = 6
"""The most lines that a failed test says in its own name."""

SECTION_LINES = 40
"""The most lines of evidence in the report section below that message."""


def headline(verdict: Verdict) -> str:
    """Return pair, family, outcome and headline; the outcome is left out if it is a plain failure."""
    outcome = "" if verdict.outcome is Outcome.FAIL else f" {verdict.outcome.value}"
    return printable(f"{verdict.pair} {verdict.family.value}{outcome}: {verdict.headline}")


def title(judgement: JudgementResult) -> str:
    """Return the headline of a failed judgement.

    Without a verdict it is made of pair, family and the first line of the error.
    """
    if judgement.verdict is not None:
        return headline(judgement.verdict)
    cause = judgement.error.partition("\n")[0] or "failed without a verdict"
    return printable(f"{judgement.pair} {judgement.family.value}: {cause}")


def short(verdict: Verdict, replay: str) -> str:
    """Return a failed test's message of at most :data:`LINES` lines.

    It has the headline, the verdict's short evidence as far as there is room, how to settle an undecided verdict, and ``replay``, the
    command that judges the same stored answers again.
    """
    settle = [f"to settle it: {verdict.settle}"] if verdict.settle else []
    room = LINES - 2 - len(settle)  # headline and replay are two lines
    lines = [*verdict.short[:room], *settle]
    return "\n".join([headline(verdict), *(f"  {printable(line)}" for line in lines), f"replay: {replay}"])


def section(verdict: Verdict) -> str:
    """Return the evidence, cut after :data:`SECTION_LINES` lines with a note."""
    lines = evidence(verdict).split("\n")
    left_out = [f"… and {len(lines) - SECTION_LINES} lines more in run.json"] if len(lines) > SECTION_LINES else []
    return "\n".join([*lines[:SECTION_LINES], *left_out])


def evidence(verdict: Verdict) -> str:
    """Return a verdict's whole evidence as lines of one text.

    The order is headline, named bug, short and long evidence, the faults that the test would have detected, and figures by name.
    """
    fault = [f"named: {verdict.names}"] if verdict.names else []
    sensitivity = [f"rules out: {verdict.rules_out}"] if verdict.rules_out else []
    figures = [f"{name} = {value:.6g}" for name, value in sorted(verdict.figures.items())]
    lines = [verdict.headline, *fault, *verdict.short, *verdict.evidence, *sensitivity, *figures]
    return "\n".join(printable(line) for line in lines)
