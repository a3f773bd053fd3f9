"""Lengths: answers end at the first stop, end of sequence or limit, wherever in a verify window it falls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings, end_ids, limits_of
from pytest_specdec.judge.length_rules import LengthFlaw, breach, cases, texts
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import messages, refusal, speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.verdict import Example, Outcome, Symptom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.length_rules import Breach, LengthCase
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_SHOWN = 50
_ENOUGH = 3
"""Answers that must end by what their requests ask for before a pass says something."""
_WITHOUT_IDS = 2
"""Answers that must break a law where no token ids show that they and the plain answer begin alike."""


def judge(captured: Captured) -> Verdict:
    """Return whether every answer ended where its own request says.

    Each arm is judged by its own answers. A law that a boot of the baseline breaks says nothing about the variant, and is named.
    """
    own = list(_cases(captured, captured.speculative))
    return (
        server_failure(captured)
        or refusal(captured)
        or _fail_lengths(captured, own)
        or check_endings(_without_stop_strings(captured))
        or speculating(captured, rejecting=False)
        or _unbound_limits(captured, own)
        or _pass_lengths(captured, own)
    )


def _cases(captured: Captured, arm: Transcript) -> list[LengthCase]:
    known = texts((captured.speculative, *captured.baseline_boots), captured.workload)
    return list(cases(captured.workload, arm, captured.baseline, end_ids(captured), known))


def _lawless(captured: Captured) -> frozenset[LengthFlaw]:
    """Return what the baseline's own boots do."""
    return frozenset(flawed.flaw for arm in captured.baseline_boots for case in _cases(captured, arm) if (flawed := breach(case)))


def _without_stop_strings(captured: Captured) -> Captured:
    """Leave out requests with stop strings: an engine may report token ids behind the stop, up to the end of the window."""
    requests = tuple(request for request in captured.workload.requests if not limits_of(request).stop_strings)
    return replace(captured, workload=replace(captured.workload, requests=requests, take={}))


def _fail_lengths(captured: Captured, own: Sequence[LengthCase]) -> Verdict | None:
    lawless = _lawless(captured)
    breaches = [flawed for case in own if (flawed := breach(case)) and flawed.flaw not in lawless]
    without_ids = sum(not flawed.case.choice.token_ids for flawed in breaches)
    if not breaches or without_ids == len(breaches) < _WITHOUT_IDS:
        return None
    counts = Counter(flawed.flaw for flawed in breaches)
    flaw = _explaining(counts)
    first = next(flawed for flawed in breaches if flawed.flaw is flaw)
    others = ", ".join(f"{other.value} ({number})" for other, number in counts.items() if other is not flaw)
    return say(
        captured,
        Outcome.FAIL,
        f"{flaw.value}: {counts[flaw]} of {len(own)} answers, none of the baseline's" + (f"; also {others}" if others else ""),
        short=(f"first        {first}", f"place        {_describe_place(first)}", *_of_baseline(first)),
        evidence=(*map(str, breaches[:_SHOWN]), *_left_out(lawless), *messages(captured.speculative.answers)),
        cell=f"{len(breaches)} wrong ends",
        names=flaw.value,
        example=Example(symptom=Symptom.ANSWER, request_id=first.case.answer.request_id, pass_index=first.case.answer.pass_index),
        figures={"answers": float(len(own)), "wrong_ends": float(len(breaches))},
    )


_FAMILY = (LengthFlaw.STRADDLED, LengthFlaw.MISSED, LengthFlaw.LIMIT_FIRST)
"""Flaws that show as one another: the first seen explains those behind it."""


def _explaining(counts: Counter[LengthFlaw]) -> LengthFlaw:
    flaw = counts.most_common(1)[0][0]
    return next(other for other in _FAMILY if counts[other]) if flaw in _FAMILY else flaw


def _describe_place(found: Breach) -> str:
    place = found.case.place
    return "unknown: no verify windows are known" if place is None else f"token {place.offset + 1} of {place.size} in its window"


def _of_baseline(found: Breach) -> tuple[str, ...]:
    twin = found.case.twin
    return () if twin is None else (f"baseline     {len(twin.token_ids)} tokens, finish_reason {twin.finish_reason!r}",)


def _left_out(lawless: frozenset[LengthFlaw]) -> tuple[str, ...]:
    return tuple(f"not judged, since the baseline does it too: {flaw.value}" for flaw in sorted(lawless))


def _unbound_limits(captured: Captured, own: Sequence[LengthCase]) -> Verdict | None:
    """Return INCONCLUSIVE where too few answers ended by what was asked, or none within a run of accepted drafts."""
    bound, places = _bound(own), [case.place for case in _bound(own)]
    known = [place for place in places if place is not None]
    headline = ""
    if len(bound) < _ENOUGH:
        headline = f"only {len(bound)} of {len(own)} answers ended by a stop, an end of sequence or a limit below the window's reach"
    elif known and not any(place.offset for place in known):
        headline = f"none of {len(known)} ends fell behind an accepted draft token of its window, so nothing was tried"
    if not headline:
        return None
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        headline,
        evidence=(*_left_out(_lawless(captured)), *messages(captured.speculative.answers)),
        settle="a draft that is accepted more often, or a greater depth",
        cell="did not bind",
    )


def _bound(own: Sequence[LengthCase]) -> list[LengthCase]:
    """Return the answers that something ended: those that have no more than the plain one's limit prove nothing."""
    return [case for case in own if case.stopped or case.limits.least or case.limits.ignores_eos or _short(case)]


def _short(case: LengthCase) -> bool:
    longest = len(case.plain.token_ids) if case.plain is not None else 0
    most = case.limits.most
    return case.choice.finish_reason == "length" and most is not None and (most < longest or not longest)


def _pass_lengths(captured: Captured, own: Sequence[LengthCase]) -> Verdict:
    bound = _bound(own)
    places = [place for case in bound if (place := case.place) is not None]
    offsets = Counter(place.offset for place in places)
    inside = sum(place.offset < place.size - 1 for place in places)
    seen = ", ".join(f"{count} at token {offset + 1}" for offset, count in sorted(offsets.items()))
    where = f"places in their windows: {seen}; {inside} with accepted tokens behind" if places else "places in windows unknown"
    return say(
        captured,
        Outcome.PASS,
        f"{len(bound)} of {len(own)} answers ended by a stop, an end or a limit, each at its first",
        rules_out=where,
        evidence=(*_left_out(_lawless(captured)), *messages(captured.speculative.answers)),
        cell=f"{len(bound)} ends",
        figures={"answers": float(len(own)), "ends": float(len(bound)), "ends_inside_a_window": float(inside)},
    )
