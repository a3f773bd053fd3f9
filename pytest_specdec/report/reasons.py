"""Why a judgement did not come to pass or fail, in one line: with it, a cell of the table needs no other place to be understood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.matrix import words
from pytest_specdec.report.printable import printable
from pytest_specdec.report.run import Result

if TYPE_CHECKING:
    from pytest_specdec.report.run import Judgement, Run

__all__ = ["reasons"]

WIDEST = 300


def reasons(run: Run) -> tuple[str, ...]:
    """Return a line for each reason that something was skipped or not captured for, with the pairs that it holds for."""
    pairs: dict[tuple[str, str, str], list[str]] = {}
    for one in run.judgements:
        if one.result in {Result.SKIPPED, Result.ERROR}:
            pairs.setdefault((one.family.value, words(one), _why(one)), []).append(one.pair)
    return tuple(printable(f"{', '.join(dict.fromkeys(names))} {family} {word}: {why}") for (family, word, why), names in pairs.items())


def _why(judgement: Judgement) -> str:
    verdict = judgement.verdict
    if verdict is None:
        text = " ".join(judgement.error.split()) or "the test skipped itself"
    else:
        text = verdict.headline + (f"; to settle it: {verdict.settle}" if verdict.settle else "")
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
