"""The table of a run: a row per pair, a column per family, a few words and a tone in each cell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report.printable import printable
from pytest_specdec.report.run import Result

if TYPE_CHECKING:
    from pytest_specdec.report.run import Judgement, Run

__all__ = ["Shown", "Tone", "capability_rows", "cell", "table", "words"]


class Tone(StrEnum):
    """How a cell is to be taken."""

    GOOD = "good"
    UNSURE = "unsure"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Text and how it is to be taken."""

    text: str
    tone: Tone = Tone.PLAIN


_BADNESS = (Result.PASSED, Result.SKIPPED, Result.FAILED, Result.ERROR)
"""A finding about the engine outweighs all of them, and suspicion what else came to the same."""
_TONES = {Result.PASSED: Tone.GOOD, Result.SKIPPED: Tone.UNSURE, Result.FAILED: Tone.BAD, Result.ERROR: Tone.BAD}


def table(run: Run) -> tuple[tuple[Shown, ...], ...]:
    """Return the header row and one row per pair."""
    header = tuple(Shown(text=name) for name in ("pair", *(family.value for family in run.families)))
    return (header, *((Shown(text=printable(pair)), *(cell(run.of(pair, family)) for family in run.families)) for pair in run.pairs))


def cell(judgements: tuple[Judgement, ...]) -> Shown:
    """Return the worst of a family's judgements in few words, and how many of them passed where there are several."""
    if not judgements:
        return Shown(text="-")
    worst = max(judgements, key=lambda j: (_badness(j), _is_speedup(j)))
    passed = sum(j.result is Result.PASSED for j in judgements)
    of = f" ({passed} of {len(judgements)})" if len(judgements) > 1 else ""
    return Shown(text=printable(words(worst) + of), tone=Tone.UNSURE if _is_open(worst) else _TONES[worst.result])


def _is_speedup(judgement: Judgement) -> bool:
    """Whether it is the figure that people look for among equals: the speedup before the acceptance length."""
    return judgement.verdict is not None and "speedup" in judgement.verdict.figures


def _is_open(judgement: Judgement) -> bool:
    """Whether it passed because nothing could be decided."""
    return judgement.result is Result.PASSED and judgement.verdict is not None and judgement.verdict.outcome is Outcome.NOT_DECIDED


_LOUD = {
    Outcome.FAIL: "FAIL",
    Outcome.NOT_SPECULATING: "NOT SPECULATING",
    Outcome.INVALID: "INVALID",
    Outcome.SUSPICIOUS: "SUSPICIOUS",
}


def _badness(judgement: Judgement) -> float:
    verdict, result = judgement.verdict, judgement.result
    if result is Result.FAILED and verdict is not None and verdict.red:
        return float(len(_BADNESS))
    return _BADNESS.index(result) + (0.5 if verdict is not None and verdict.outcome in {Outcome.SUSPICIOUS, Outcome.NOT_DECIDED} else 0.0)


def words(judgement: Judgement) -> str:
    """Return what stands for a judgement in its cell."""
    verdict = judgement.verdict
    if verdict is None:
        return _bare(judgement)
    told = _LOUD.get(verdict.outcome, "")
    quiet = {Outcome.INCONCLUSIVE: "inconclusive", Outcome.REFUSED: "refused", Outcome.NOT_DECIDED: "not decided"}.get(verdict.outcome, "")
    shout = quiet.upper() if judgement.result is Result.FAILED else quiet
    failed_otherwise = "FAILED" if judgement.result is Result.FAILED and verdict.outcome is Outcome.PASS else ""
    word = told or shout or failed_otherwise
    return word if verdict.cell.lower() == word.lower() and word else f"{verdict.cell} {word}".strip() or "ok"


def _bare(judgement: Judgement) -> str:
    if judgement.result is Result.ERROR:
        return "INVALID" if judgement.error.startswith("invalid") else "NOT CAPTURED"
    return "FAILED" if judgement.result is Result.FAILED else judgement.result.value


def capability_rows(run: Run) -> tuple[tuple[Shown, ...], ...]:
    """Return the capability matrix, a row per feature and a column per arm; empty when no capability probe ran."""
    arms = sorted(run.capabilities)
    features = sorted({feature for arm in arms for feature in run.capabilities[arm].support})
    if not features:
        return ()
    header = tuple(Shown(text=printable(name)) for name in ("feature", *arms))
    return (header, *(_capability_row(run, feature, arms) for feature in features))


def _capability_row(run: Run, feature: str, arms: list[str]) -> tuple[Shown, ...]:
    found = [run.capabilities[arm].support.get(feature) for arm in arms]
    words = [str(support.value) if support else "-" for support in found]
    return tuple(Shown(text=printable(word)) for word in (feature, *words))
