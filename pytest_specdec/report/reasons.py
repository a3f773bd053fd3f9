"""Why a judgement did not come to pass or fail, in one line: with it, a cell of the table needs no other place to be understood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.matrix import words
from pytest_specdec.report.printable import printable
from pytest_specdec.report.run import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.report.run import Judgement, Run

__all__ = ["reasons"]

WIDEST = 300


def reasons(run: Run) -> tuple[str, ...]:
    """Return a line for each reason that something was skipped or not captured for, with the pairs and families that it holds for."""
    families: dict[tuple[str, str], dict[str, list[str]]] = {}
    for one in run.judgements:
        if one.result in {Result.SKIPPED, Result.ERROR}:
            families.setdefault((words(one), _why(one)), {}).setdefault(one.pair, []).append(one.family.value)
    return tuple(
        printable(f"{pairs} {named} {word}: {why}") for (word, why), by_pair in families.items() for pairs, named in _together(by_pair)
    )


def _together(families: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that have the same families, and these."""
    pairs: dict[str, list[str]] = {}
    for pair, names in families.items():
        pairs.setdefault(", ".join(dict.fromkeys(names)), []).append(pair)
    yield from ((", ".join(names), joined) for joined, names in pairs.items())


def _why(judgement: Judgement) -> str:
    verdict = judgement.verdict
    if verdict is None:
        text = _cause(judgement.error) or "the test skipped itself"
    else:
        text = verdict.headline + (f"; to settle it: {verdict.settle}" if verdict.settle else "")
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _cause(error: str) -> str:
    """Return what was found at the root of an error, or its first line: the rest of it stands where it was raised."""
    first, *rest = error.split("\n")
    found = [text.strip() for line in rest if (text := line.strip().removeprefix("found:")) != line.strip()]
    return "; ".join(found) or first
