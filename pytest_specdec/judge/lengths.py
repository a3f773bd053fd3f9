"""Lengths: answers end at the first stop, end of sequence or limit, wherever in a verify window it falls.

A verify window is the tokens that one verify step emits. A case is one answer with its request's limits. Its plain answer is the same arm's
to the same prompt without stops. A flaw is a kind of wrong end, and a breach is one answer that has it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge.answer_end import limits_of
from pytest_specdec.judge.ending import check_endings, describe_untested_ends, end_ids
from pytest_specdec.judge.length_cases import length_cases, texts_by_ids
from pytest_specdec.judge.length_rules import LengthFlaw, find_breaches
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, refusal, speculating
from pytest_specdec.judge.verdicts import number_of, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.length_cases import LengthCase
    from pytest_specdec.judge.length_rules import Breach
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_SHOWN = 50
_ENOUGH = 3
"""Answers that a stop, an end or a limit must have ended for a pass to say something."""
_WITHOUT_IDS = 2
"""Answers that must break a rule if no token ids show that they begin as the plain answer does."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on the ends of answers by their requests.

    Failures and refusals come first. The plain answer shows where a stop string stands. A rule that a boot of the baseline breaks says
    nothing about the variant: it is left out, and the evidence lists it. ``check_endings`` then applies the rules that every family checks,
    which do not fit requests with stop strings. What may still take a pass away comes last: missing drafts, and INCONCLUSIVE if too few
    answers were ended by a stop or a limit, or if none ended after an accepted draft token of its verify window.
    """
    cases = list(_cases(captured, captured.speculative))
    return (
        server_failure(captured)
        or refusal(captured)
        or _fail_lengths(captured, cases)
        or check_endings(_without_stop_strings(captured))
        or speculating(captured, needs_rejections=False)
        or _check_enough_ends(captured, cases)
        or _pass_lengths(captured, cases)
    )


def _cases(captured: Captured, arm: Transcript) -> list[LengthCase]:
    """Return the cases of one arm, with texts of token ids from the answers of all arms."""
    texts = texts_by_ids((captured.speculative, *captured.baseline_boots), captured.workload)
    return list(length_cases(captured.workload, arm, captured.baseline, end_ids(captured), texts))


def _baseline_flaws(captured: Captured) -> frozenset[LengthFlaw]:
    """Return the flaws of the baseline's own boots, which are no faults of the variant."""
    return frozenset(breach.flaw for arm in captured.baseline_boots for case in _cases(captured, arm) for breach in find_breaches(case))


def _without_stop_strings(captured: Captured) -> Captured:
    """Return ``captured`` without its requests with stop strings.

    The general rules of endings do not fit these: an engine may report token ids after the stop, up to the end of the window.
    """
    requests = tuple(request for request in captured.workload.requests if not limits_of(request).stop_strings)
    # ``take`` has numbers of requests by depth, which hold for all requests alone.
    return replace(captured, workload=replace(captured.workload, requests=requests, take={}))


def _fail_lengths(captured: Captured, cases: Sequence[LengthCase]) -> Verdict | None:
    """Return FAIL for length rules broken by the judged arm alone.

    Rules that a boot of the baseline breaks are left out; of several that an answer breaks, the first counts. The most frequent flaw gives
    the name, unless a related flaw of another answer explains it. Returns None if no rule is broken.
    """
    baseline_flaws = _baseline_flaws(captured)
    by_case = ([breach for breach in find_breaches(case) if breach.flaw not in baseline_flaws] for case in cases)
    # The rules come in an order in which the first broken one explains the later ones.
    breaches = [of_case[0] for of_case in by_case if of_case]
    # Without token ids nothing shows that an answer begins with the tokens of the plain one, by which it is judged: one is not enough.
    has_ids = any(breach.case.choice.token_ids for breach in breaches)
    if not breaches or (not has_ids and len(breaches) < _WITHOUT_IDS):
        return None
    counts = Counter(breach.flaw for breach in breaches)
    flaw = _choose_name(counts)
    first = next(breach for breach in breaches if breach.flaw is flaw)
    others = ", ".join(f"{other.value} ({number})" for other, number in counts.items() if other is not flaw)
    return say(
        captured,
        Outcome.FAIL,
        f"{flaw.value}: {counts[flaw]} of {len(cases)} answers, none of the baseline's" + (f"; also {others}" if others else ""),
        short=(f"first        {first}", f"place        {_describe_place(first)}", *_describe_baseline_end(first)),
        evidence=(*map(str, breaches[:_SHOWN]), *_list_excused(baseline_flaws), *describe_refusals(captured.speculative.answers)),
        cell=number_of(len(breaches), "wrong end"),
        names=flaw.value,
        example=Example(symptom=Symptom.ANSWER, request_id=first.case.answer.request_id, pass_index=first.case.answer.pass_index),
        figures={"answers": float(len(cases)), "wrong_ends": float(len(breaches))},
    )


_RELATED = (LengthFlaw.STRADDLED, LengthFlaw.MISSED, LengthFlaw.LIMIT_FIRST)
"""Flaws that may show as one another, the one that explains the others first."""


def _choose_name(counts: Counter[LengthFlaw]) -> LengthFlaw:
    """Return the flaw that names the verdict, by the number of each.

    It is the most frequent one. If that is one of ``_RELATED``, it is the first of these that occurs, since it explains the others.
    """
    most_frequent = counts.most_common(1)[0][0]
    return next(related for related in _RELATED if counts[related]) if most_frequent in _RELATED else most_frequent


def _describe_place(breach: Breach) -> str:
    place = breach.case.place
    return "unknown: no verify windows are known" if place is None else f"token {place.offset + 1} of {place.size} in its window"


def _describe_baseline_end(breach: Breach) -> tuple[str, ...]:
    peer = breach.case.peer
    return () if peer is None else (f"baseline     {len(peer.token_ids)} tokens, finish_reason {peer.finish_reason!r}",)


def _list_excused(baseline_flaws: frozenset[LengthFlaw]) -> tuple[str, ...]:
    return tuple(f"not judged, since the baseline does it too: {flaw.value}" for flaw in sorted(baseline_flaws))


def _check_enough_ends(captured: Captured, cases: Sequence[LengthCase]) -> Verdict | None:
    """Return INCONCLUSIVE if too few ends test speculation, else None.

    Too few answers are able to break a rule: one that just runs up to the limit of its plain answer is not (:func:`_select_tested`). Or the
    ends have known places in their verify windows, and none fell after an accepted draft token.
    """
    tested = _select_tested(cases)
    places = [place for case in tested if (place := case.place) is not None]
    headline = ""
    if len(tested) < _ENOUGH:
        headline = f"only {len(tested)} of {len(cases)} answers ended by a stop, an end of sequence or a limit below the window's reach"
    elif places and all(place.offset == 0 for place in places):  # each at its window's first token, where no draft was accepted before
        headline = f"none of {len(places)} ends fell behind an accepted draft token of its window, so nothing was tried"
    if not headline:
        return None
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        headline,
        evidence=(*_list_excused(_baseline_flaws(captured)), *describe_refusals(captured.speculative.answers)),
        settle="a draft that is accepted more often, or a greater depth",
        cell="did not bind",
    )


def _select_tested(cases: Sequence[LengthCase]) -> list[LengthCase]:
    """Return the cases of answers able to break a rule.

    These end by a stop or a lower limit, or have min_tokens or ignore_eos. Others run up to the same limit as the plain answer, and so
    prove nothing.
    """
    return [case for case in cases if case.has_stopped or case.limits.least or case.limits.ignores_eos or _is_cut_by_limit(case)]


def _is_cut_by_limit(case: LengthCase) -> bool:
    """Return True if a limit ended the answer before its plain answer's end.

    The plain answer is the arm's longest one to the same prompt without stops. Any limit counts if there is none.
    """
    longest = len(case.plain.token_ids) if case.plain is not None else 0
    most = case.limits.most
    return case.choice.finish_reason == "length" and most is not None and (most < longest or not longest)


def _pass_lengths(captured: Captured, cases: Sequence[LengthCase]) -> Verdict:
    """Return PASS, with the places of the ends in their verify windows."""
    tested = _select_tested(cases)  # the answers able to break a rule: each ended at its first stop, end or limit
    places = [place for case in tested if (place := case.place) is not None]
    offsets = Counter(place.offset for place in places)
    inside = sum(place.offset < place.size - 1 for place in places)
    counted = ", ".join(f"{count} at token {offset + 1}" for offset, count in sorted(offsets.items()))
    where = f"places in their windows: {counted}; {inside} with accepted tokens after" if places else "places in windows unknown"
    return say(
        captured,
        Outcome.PASS,
        f"{len(tested)} of {len(cases)} answers ended by a stop, an end or a limit, each at its first",
        rules_out=where + describe_untested_ends(_without_stop_strings(captured)),  # what ``check_endings`` could not test
        evidence=(*_list_excused(_baseline_flaws(captured)), *describe_refusals(captured.speculative.answers)),
        cell=f"{len(tested)} ends",
        figures={"answers": float(len(cases)), "ends": float(len(tested)), "ends_inside_a_window": float(inside)},
    )
