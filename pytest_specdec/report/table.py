"""The table of a run: a row per promise, a column per variant, a status and a few words in each cell.

A variant is a server with speculation, judged against one without. A family is a group of tests, such as greedy or speed. A judgement is
one test of a variant on a workload. Most have a verdict, whose promise is what it has measured. A waiver of the config expects a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.model.captured import CHAT_ROUTE, FeatureSupport
from pytest_specdec.model.promise import AcceptedLength, CheckedDocuments, DraftedTraffic, SampledTokens, Speedup
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import NOT_COUNTED, PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_specdec.model.captured import Capabilities
    from pytest_specdec.report.run import JudgementResult, Run


class Tone(StrEnum):
    """How a cell is to be taken."""

    GOOD = "good"
    UNSURE = "unsure"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellText:
    """Text and how it is to be taken."""

    text: str
    tone: Tone = Tone.PLAIN


EVIDENCE, DRAFTING, TRAFFIC = "   evidence against it", "drafting", "drafts for every kind of request"
"""Titles of the rows of sampling and speed that come after the row of the family's promise."""

_BADNESS = (PytestOutcome.PASSED, PytestOutcome.SKIPPED, PytestOutcome.WAIVED, PytestOutcome.FAILED, PytestOutcome.ERROR)
"""From good to bad. A fault of the engine is worse than all of them; of two equal outcomes the suspicious or undecided one is worse."""
_TONES = {
    PytestOutcome.PASSED: Tone.GOOD,
    PytestOutcome.SKIPPED: Tone.UNSURE,
    PytestOutcome.WAIVED: Tone.UNSURE,
    PytestOutcome.FAILED: Tone.BAD,
    PytestOutcome.ERROR: Tone.BAD,
}


def table(run: Run) -> tuple[tuple[CellText, ...], ...]:
    """Return the table of promises: a header and rows by family.

    The first column is the promise, and each further one a variant.
    """
    header = tuple(CellText(text=printable(name)) for name in ("", *run.pairs))
    return (header, *(row for family in families(run) for row in _family_rows(run, family)))


def families(run: Run) -> tuple[Family, ...]:
    """Return the families judged, in the order of the table."""
    return tuple(sorted(run.families, key=list(run.plan.rows).index))


def _family_rows(run: Run, family: Family) -> Iterator[tuple[CellText, ...]]:
    """Yield the rows of one family, without rows of empty cells.

    The speed family has three promises, so a row each: speedup, drafting and kinds of traffic. Sampling has a second row, for its evidence.
    """
    row = run.plan.rows[family]
    if family is Family.SPEED:
        for title in (row.promise, DRAFTING, TRAFFIC):
            yield from _fill_rows(title, run, partial(_speed_cell, run, title, row.promise), family)
        return
    yield from _fill_rows(row.promise or row.name, run, cell, family)
    if family is Family.SAMPLING:
        yield from _fill_rows(EVIDENCE, run, lambda results: _evidence_cell(run, results), family)


def _fill_rows(
    title: str, run: Run, make_cell: Callable[[tuple[JudgementResult, ...]], CellText], family: Family
) -> Iterator[tuple[CellText, ...]]:
    """Yield a row with a cell per variant, or nothing if empty.

    ``make_cell`` gets the judgements of one variant in ``family``; the row is empty if it returns ``-`` for all of them.
    """
    cells = tuple(make_cell(run.of(pair, family)) for pair in run.pairs)
    if any(filled.text != "-" for filled in cells):
        yield (CellText(text=printable(title)), *cells)


def _speed_cell(run: Run, title: str, speedup_title: str, judgements: tuple[JudgementResult, ...]) -> CellText:
    """Return one variant's cell in a row of the speed family.

    ``judgements`` are all of the variant's on speed, of which the row called ``title`` shows its own. ``speedup_title`` is the title of the
    row of speedups: unlike those of the other rows it is no constant, but the family's promise. If the variant has wrong tokens, the text
    is :data:`NOT_COUNTED`, unless the cell shows a failure.
    """
    results = tuple(judgement for judgement in judgements if _speed_row_title(judgement, speedup_title) == title)
    row_cell = cell(results)
    has_wrong_tokens = any(result.pair in run.not_counted for result in results)
    return CellText(text=NOT_COUNTED, tone=Tone.UNSURE) if has_wrong_tokens and row_cell.tone is not Tone.BAD else row_cell


def _speed_row_title(judgement: JudgementResult, speedup_title: str) -> str:
    """Return the row title for a judgement of the speed family.

    It is DRAFTING for tokens per step, TRAFFIC for drafts by kind of request, and ``speedup_title`` for all others, also
    without a verdict.
    """
    promise = judgement.verdict.promise if judgement.verdict else None
    if isinstance(promise, DraftedTraffic):
        return TRAFFIC
    return DRAFTING if isinstance(promise, AcceptedLength) else speedup_title


def _evidence_cell(run: Run, judgements: tuple[JudgementResult, ...]) -> CellText:
    """Return the cell of a variant's highest evidence, with its alarm.

    ``judgements`` are those on sampling. Evidence is the wealth of bets against a correct sampler. Its alarm is at 1 / alpha, which chance
    reaches with a probability of alpha at most. Alpha is the judgement's share of the run's false-alarm budget.
    """
    alarms = {(p.pair, p.workload): 1.0 / p.alpha for p in run.plan.judgements if p.family is Family.SAMPLING and p.alpha}
    by_wealth = [(j.verdict.promise.log10_wealth, j) for j in judgements if j.verdict and isinstance(j.verdict.promise, SampledTokens)]
    if not by_wealth:
        return CellText(text="-")
    highest, judgement = max(by_wealth, key=lambda entry: entry[0])
    wealth = f"{10.0**highest:,.1f}" if highest < _AS_POWER_FROM else f"10^{highest:.0f}"
    alarm = alarms.get((judgement.pair, judgement.workload))
    indent = " " * 5  # below the words of the cell above, which follow its status and a space
    return CellText(text=f"{indent}{wealth}" + (f" (alarm at {alarm:,.0f})" if alarm else ""))


_AS_POWER_FROM = 6.0
"""Power of ten from which on evidence is written as a power."""


def cell(judgements: tuple[JudgementResult, ...]) -> CellText:
    """Return a family's cell, with the words of its worst judgement.

    ``judgements`` are one variant's in the family, on several workloads. If all passed and were decided, their counts are added up;
    otherwise the number that passed follows in brackets. ``-`` without a judgement.
    """
    if not judgements:
        return CellText(text="-")
    worst = max(judgements, key=_badness)
    passed = sum(j.result is PytestOutcome.PASSED for j in judgements)
    if passed == len(judgements) and not _is_open(worst):
        return CellText(text=printable(_describe_all_passed(judgements)), tone=Tone.GOOD)
    passed_note = f" ({passed} of {len(judgements)} passed)" if len(judgements) > 1 else ""
    return CellText(text=printable(words(worst) + passed_note), tone=Tone.UNSURE if _is_open(worst) else _TONES[worst.result])


def _describe_all_passed(judgements: tuple[JudgementResult, ...]) -> str:
    """Return the words for a cell of passed judgements only.

    Of several, sampled tokens or valid documents are added up; without such a count, the first one's words stand for all.
    """
    if len(judgements) == 1:
        return words(judgements[0])
    promises = [j.verdict.promise for j in judgements if j.verdict]
    tokens = sum(promise.tokens for promise in promises if isinstance(promise, SampledTokens))
    documents = [promise for promise in promises if isinstance(promise, CheckedDocuments)]
    if tokens:
        return f"ok   {tokens:,} tokens ({len(judgements)} of {len(judgements)})"
    if total := sum(checked.documents for checked in documents):
        return f"ok   {total - sum(checked.invalid for checked in documents):,} of {total:,}"
    return f"{words(judgements[0])} ({len(judgements)} of {len(judgements)})"


def _is_open(judgement: JudgementResult) -> bool:
    """Return True if it passed because nothing could be decided."""
    return judgement.result is PytestOutcome.PASSED and judgement.verdict is not None and judgement.verdict.outcome is Outcome.NOT_DECIDED


_STATUS = {
    Outcome.PASS: "ok",
    Outcome.FAIL: "FAIL",
    Outcome.NOT_SPECULATING: "NOT SPECULATING",
    Outcome.INVALID: "INVALID",
    Outcome.SUSPICIOUS: "SUSPICIOUS",
    Outcome.INCONCLUSIVE: "inconclusive",
    Outcome.REFUSED: "refused",
    Outcome.NOT_DECIDED: "not decided",
}


def _badness(judgement: JudgementResult) -> float:
    """Return a judgement's rank by badness, the worst highest.

    A failure that the engine is at fault for is the worst. Else pytest's outcome decides, and among equal ones a suspicious or undecided
    verdict ranks above the others.
    """
    verdict, result = judgement.verdict, judgement.result
    if result is PytestOutcome.FAILED and verdict is not None and verdict.red:
        return float(len(_BADNESS))
    return _BADNESS.index(result) + (0.5 if verdict is not None and verdict.outcome in {Outcome.SUSPICIOUS, Outcome.NOT_DECIDED} else 0.0)


def words(judgement: JudgementResult) -> str:
    """Return a judgement's status and the few words of its verdict.

    Without a verdict, or if the words only repeat the status, it is the status alone.
    """
    verdict, status = judgement.verdict, status_word(judgement)
    if verdict is None:
        return status
    return status if verdict.cell.lower() == status.lower() else f"{status:<4} {verdict.cell}".strip()


def status_word(judgement: JudgementResult) -> str:
    """Return a judgement's status, a word or two on its outcome.

    It is in capitals if the test failed, and ``KNOWN`` if a waiver expects that. A test that fails with a passing verdict, as by a waiver
    no longer needed, is ``FAILED``.
    """
    verdict = judgement.verdict
    if verdict is None:
        return _status_without_verdict(judgement)
    if judgement.result is PytestOutcome.WAIVED:
        return "KNOWN"
    if judgement.result is PytestOutcome.FAILED:
        return "FAILED" if verdict.outcome is Outcome.PASS else _STATUS[verdict.outcome].upper()
    return _STATUS[verdict.outcome]


def short_cell(run: Run, pair: str, family: Family) -> CellText:
    """Return one variant's status in a family, by its worst judgement.

    Of equally bad ones a speedup is taken, and its figure added. ``-`` without a judgement. The speed of a variant with wrong tokens is not
    counted, unless it failed.
    """
    judgements = run.of(pair, family)
    if not judgements:
        return CellText(text="-")
    worst = max(judgements, key=lambda judgement: (_badness(judgement), _is_speedup(judgement)))
    tone = Tone.UNSURE if _is_open(worst) else _TONES[worst.result]
    if family is Family.SPEED and tone is not Tone.BAD and pair in run.not_counted:
        return CellText(text="not counted", tone=Tone.UNSURE)
    text = " ".join(words(worst).split()) if _is_speedup(worst) else status_word(worst)
    return CellText(text=printable(text), tone=tone)


def _is_speedup(judgement: JudgementResult) -> bool:
    return judgement.verdict is not None and isinstance(judgement.verdict.promise, Speedup)


def _status_without_verdict(judgement: JudgementResult) -> str:
    """Return the status of a judgement without a verdict.

    An error is INVALID or NOT CAPTURED if its text begins so, and else NOT JUDGED. A failure is FAILED, and any other test has pytest's own
    word.
    """
    if judgement.result is PytestOutcome.ERROR:
        return next((kind.upper() for kind in ("invalid", "not captured") if judgement.error.startswith(kind)), "NOT JUDGED")
    return "FAILED" if judgement.result is PytestOutcome.FAILED else judgement.result.value


def capability_rows(run: Run) -> tuple[tuple[CellText, ...], ...]:
    """Return the table of probed features by arm, header first.

    Empty if no arm was probed.
    """
    arms = sorted(run.capabilities)
    features = sorted({feature for arm in arms for feature in run.capabilities[arm].support})
    if not features:
        return ()
    header = tuple(CellText(text=printable(name)) for name in ("feature", *arms))
    return (header, *(_capability_row(run, feature, arms) for feature in features))


_SCORING_FEATURES = frozenset({"prompt_logprobs", "continuations"})
"""Features whose probe compares the values that come: where they are not the server's own, it cannot score."""


def _capability_row(run: Run, feature: str, arms: list[str]) -> tuple[CellText, ...]:
    supports = [run.capabilities[arm].support.get(feature) for arm in arms]
    return tuple(CellText(text=printable(text)) for text in (feature, *(_support_words(feature, support) for support in supports)))


def _support_words(feature: str, support: FeatureSupport | None) -> str:
    """Return an arm's support of a feature in words; ``-`` if it was not probed.

    A server supports a feature for scoring only if the log-probabilities that it sends for given tokens are right. IGNORED is then also the
    result for one that sends wrong ones.
    """
    if support is FeatureSupport.IGNORED and feature in _SCORING_FEATURES:
        return "absent or wrong"
    return support.value if support else "-"


def untested_routes(capabilities: Mapping[str, Capabilities]) -> tuple[str, ...]:
    """Return a note on arms with an untested chat route.

    Their chat answers have no token ids, so that conversations went to the completions route, without the server's own chat template. ()
    without such an arm.
    """
    arms = [arm for arm in sorted(capabilities) if capabilities[arm].support.get(CHAT_ROUTE) is FeatureSupport.IGNORED]
    if not arms:
        return ()
    why = "whose answers hold token ids, which those of /v1/chat/completions do not"
    return (f"not tested: /v1/chat/completions and the chat template of {', '.join(arms)}; conversations went to /v1/completions, {why}",)


WIDEST = 300
"""Characters of a reason that are shown at most."""


def reasons(run: Run) -> tuple[str, ...]:
    """Return a line for each reason for a missing verdict.

    Missing are the verdicts of judgements that were skipped or had an error. A line names variants, families, status and reason; variants
    with the same families share it.
    """
    by_reason: dict[tuple[str, str], dict[str, list[str]]] = {}  # by words and reason, the families of each variant
    for judgement in run.judgements:
        if judgement.result in {PytestOutcome.SKIPPED, PytestOutcome.ERROR}:
            by_pair = by_reason.setdefault((words(judgement), _describe_reason(judgement)), {})
            by_pair.setdefault(judgement.pair, []).append(judgement.family.value)
    return tuple(
        printable(f"{pairs} {names} {word}: {why}") for (word, why), by_pair in by_reason.items() for pairs, names in _group_pairs(by_pair)
    )


def _group_pairs(by_pair: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the variants with the same families, then these families, as texts.

    ``by_pair`` has the families of each variant, in which a family may come twice.
    """
    pairs: dict[str, list[str]] = {}
    for pair, names in by_pair.items():
        pairs.setdefault(", ".join(dict.fromkeys(names)), []).append(pair)
    yield from ((", ".join(names), families_text) for families_text, names in pairs.items())


def _describe_reason(judgement: JudgementResult) -> str:
    """Return the reason for a skipped or erroneous judgement.

    It is the verdict's headline and remedy, or the cause of the error, cut to :data:`WIDEST` characters.
    """
    verdict = judgement.verdict
    if verdict is None:
        text = _cause_of_error(judgement.error) or "the test skipped itself"
    else:
        text = verdict.headline + (f"; to settle it: {verdict.settle}" if verdict.settle else "")
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _cause_of_error(error: str) -> str:
    """Return the ``found:`` lines of an error, or its first line.

    This package's errors have their cause in such lines. The error itself is shown in full elsewhere.
    """
    first, *rest = error.split("\n")
    # A line that stays the same without the prefix has none, and is left out.
    causes = [text.strip() for line in rest if (text := line.strip().removeprefix("found:")) != line.strip()]
    return "; ".join(causes) or first
