"""State: answers to prompts that a server has seen before, in whole or in part, are what they would be on a fresh one.

Answers are judged whether or not the engine reports cached tokens, since it need not cache prefixes. A repeat is a first and a later answer
of one arm to the same request. A phase is a group of requests by the prompts sent before. ``baseline_boots`` are the server without
speculation and, booted again, the control; ``speculative`` is the arm under judgement.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import refusal
from pytest_specdec.judge.repeats import (
    OVERCOUNT,
    cached_tokens,
    count_by_phase,
    describe_cache,
    describe_overcounts,
    fail_drop,
    phase,
    repeats,
    tolerated_loss,
)
from pytest_specdec.judge.verdicts import restate, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge", "select_requests"]

SECOND_WRONG = "the second identical prompt is answered wrongly"
SECOND_EMPTY = "the second identical prompt is answered with nothing, or cut off"
PREFIX_WRONG = "an answer depends on what was asked before: a prompt that begins like an earlier one is answered wrongly"
LONG_WRONG = "an answer depends on what was asked before: a prompt after a long one is answered wrongly"
LEFT_WRONG = "an answer depends on what was asked before: a prompt after a stream that its client left is answered wrongly"
DRAFTS_DIE = "drafts are no longer accepted when a prompt is asked again"
DRAFTS_DIE_LATER = "drafts are no longer accepted after a long request"
DEFEATED = "speculation defeats the prefix cache, or cached tokens are not counted"
LOST = "speculation loses a part of the prefix cache"

_FRESH = frozenset({"cold", "long"})
"""Phases whose prompts share no beginning with an earlier one: a fault there is not one of state."""
_AFTER_LONG = "after-long"
_NAMED = {_AFTER_LONG: LONG_WRONG, "after-left": LEFT_WRONG}
"""By phase, the name of a fault whose wrong tokens are all in that phase."""
_SHORT, _LONG = 3, 8
"""Tokens up to which an answer is next to nothing, and from which on it is something."""
_WELL_CACHED, _REPEATS = 48, 3
"""Cached tokens that the baseline must report for a request, and the number of such requests, before none on the variant is a fault:
engines compute the last cached block again if the drafter needs it."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers to prompts seen before.

    Server failures and refusals come first, then FAIL for repeated prompts with next to no answer. Then tokens are judged by scores, as at
    temperature 0 everywhere (judge/greedy.py). Acceptance is compared between equal answers to one prompt, by an exact test at the captured
    share of alpha, if it fell to half or less. Cached tokens may not exceed the prompt's, nor be missing or fewer by blocks if the baseline
    has some.
    """
    return server_failure(captured) or refusal(captured) or _check_emptied(captured) or _judge_state(captured)


def _judge_state(captured: Captured) -> Verdict:
    """Return greedy's verdict by phases, or a fault of drafts or caches.

    Greedy judges tokens at temperature 0. Its failure is restated with the counts of each phase. Acceptance and caches are judged only if
    its verdict is PASS or INCONCLUSIVE.
    """
    # A sampled request is a stream that its client leaves. Its answer may end earlier, and is not judged then either.
    part = select_requests(captured, [request.id for request in captured.workload.requests if request.greedy])
    verdict = greedy.judge(part)
    if verdict.outcome is Outcome.FAIL:
        return restate(captured, verdict, **_restate_by_phase(part, verdict))
    if verdict.outcome in {Outcome.PASS, Outcome.INCONCLUSIVE}:
        return (
            _check_drafts(captured)
            or _check_cache_counts(captured)
            or _check_cache_loss(captured)
            or restate(captured, verdict, headline=_describe_pass(part, verdict))
        )
    return restate(captured, verdict)


def select_requests(captured: Captured, ids: Iterable[str]) -> Captured:
    """Return the answers to some requests, for the judge of a part.

    The workload stays whole, and so do counters and scores. The verdict on the part is not reported to ``on_verdict``: it is for the judge
    that selects the part alone.
    """
    selected = frozenset(ids)

    def keep(arm: Transcript) -> Transcript:
        return replace(arm, answers=tuple(answer for answer in arm.answers if answer.request_id in selected))

    return replace(
        captured,
        speculative=keep(captured.speculative),
        baseline=keep(captured.baseline),
        control=None if captured.control is None else keep(captured.control),
        repeats=tuple(select_requests(repeat, selected) for repeat in captured.repeats),
        on_verdict=None,
    )


def _length(answer: Answer) -> int:
    """Return an answer's number of tokens; of words if nothing counts tokens."""
    return len(answer.choice.written.split()) if answer.tokens is None else answer.tokens


def _check_emptied(captured: Captured) -> Verdict | None:
    """Return FAIL if a repeated prompt gets next to no answer, else None.

    That is 3 tokens or fewer, where its first answer has 8 or more, and the same request's answer on every boot of the baseline too.
    """
    short_keys = {answer.key for arm in captured.baseline_boots for answer in arm.answers if answer.ok and _length(answer) < _LONG}
    repeated = [repeat for repeat in repeats(captured, captured.speculative) if repeat.later.key not in short_keys]
    emptied = [repeat.later for repeat in repeated if _length(repeat.later) <= _SHORT and _length(repeat.first) >= _LONG]
    if not emptied:
        return None
    first = emptied[0]
    lines = [f"{answer.request_id}: {_length(answer)} tokens, finish reason {answer.choice.finish_reason}" for answer in emptied]
    return say(
        captured,
        Outcome.FAIL,
        f"{SECOND_EMPTY}: {len(emptied)} of {len(repeated)} prompts asked again; first: request {first.request_id}",
        short=lines[:4],
        evidence=lines,
        cell=f"{len(emptied)} empty",
        names=SECOND_EMPTY,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id, pass_index=first.pass_index),
        figures={"emptied_answers": float(len(emptied)), "repeated_prompts": float(len(repeated))},
    )


def _restate_by_phase(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return the fields to change in greedy's failure.

    A line with the number of wrong answers in each phase is added. If it fails by wrong tokens, and prompts of the phases _FRESH, which are
    new to the server, have none, the failure is one of state and gets its own fault name and headline. The name is that of the only phase
    with wrong tokens, if _NAMED has one. Else it is SECOND_WRONG if a repeated prompt has any, and PREFIX_WRONG if not.
    """
    counts = count_by_phase(captured)
    wrong = counts.wrong
    phase_line = f"phases       answers with a wrong token: {counts}"
    lines = {"short": (*verdict.short[:3], phase_line), "evidence": (*verdict.evidence, phase_line)}  # ``short`` has four lines at most
    is_by_state = bool(wrong) and not _FRESH & wrong.keys()
    if not is_by_state or not greedy.is_by_wrong_tokens(verdict):
        return lines
    repeated_keys = {repeat.later.key for repeat in repeats(captured, captured.speculative)}
    is_repeated = any(answer.key in repeated_keys for answer in counts.wrong_answers)
    general = SECOND_WRONG if is_repeated else PREFIX_WRONG
    name = _NAMED.get(next(iter(wrong)), general) if len(wrong) == 1 else general
    fresh = sum(counts.answers.get(fresh_phase, 0) for fresh_phase in _FRESH)
    asked_later = sum(counts.answers.values()) - fresh
    headline = f"{name}: {sum(wrong.values())} of {asked_later} answers, none of {fresh} to prompts new to it; {verdict.headline}"
    return {"headline": headline, "names": name, **lines}


def _check_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if acceptance fell to half or less between equal answers.

    Equal answers to one prompt differ in nothing but the server's state. Those after a long request are tested separately and have their
    own fault name. None otherwise, and for the control, which does not draft.
    """
    if captured.is_control:
        return None
    pairs = list(repeats(captured, captured.speculative))
    by_fault = {
        DRAFTS_DIE: [repeat for repeat in pairs if phase(repeat.later.request_id) != _AFTER_LONG],
        DRAFTS_DIE_LATER: [repeat for repeat in pairs if phase(repeat.later.request_id) == _AFTER_LONG],
    }
    drops = (fail_drop(captured, name, repeated, captured.alpha) for name, repeated in by_fault.items())
    return next((drop for drop in drops if drop), None)


def _check_cache_counts(captured: Captured) -> Verdict | None:
    """Return FAIL if reported cached tokens are too many or missing, else None.

    Too many are more than the prompt has, unless a boot of the baseline itself reports that. They are missing if the variant reports none
    at all for three or more repeated prompts, for each of which every boot of the baseline reports 48 or more. With fewer than 48 a variant
    may rightly report none: engines compute the last cached block again if the drafter needs it.
    """
    if beyond := describe_overcounts(captured):
        return _fail_counts(captured, OVERCOUNT, beyond)
    well_cached = set.intersection(*({a.key for a in arm.answers if cached_tokens(a) >= _WELL_CACHED} for arm in captured.baseline_boots))
    repeated = {repeat.later.key for repeat in repeats(captured, captured.speculative)}
    expected = [answer for answer in captured.speculative.answers if answer.key in well_cached & repeated]
    # Cached tokens of a single answer show that the variant caches and counts.
    if len(expected) < _REPEATS or any(map(cached_tokens, expected)):
        return None
    return _fail_counts(
        captured, DEFEATED, f"none in {len(expected)} prompts asked again, of each of which the baseline caches {_WELL_CACHED} or more"
    )


def _check_cache_loss(captured: Captured) -> Verdict | None:
    """Return FAIL if fewer tokens of repeated prompts are cached than by the baseline.

    Three or more prompts must lack more than :func:`tolerated_loss` of the tokens that every boot of the baseline reports. None otherwise.
    Answers that report no number of cached tokens are left out.
    """
    baseline_counts = [Counter({answer.key: cached_tokens(answer) for answer in arm.answers}) for arm in captured.baseline_boots]
    repeated = {repeat.later.key: repeat.later for repeat in repeats(captured, captured.speculative)}
    lacking = {
        key: min(counts[key] for counts in baseline_counts) - cached_tokens(answer)
        for key, answer in repeated.items()
        if answer.usage is not None and answer.usage.cached_tokens is not None
    }
    tolerated = tolerated_loss(captured)
    excessive = {key: lack for key, lack in lacking.items() if lack > tolerated}
    if len(excessive) < _REPEATS:
        return None
    (request_id, _), most = max(excessive.items(), key=lambda item: item[1])
    return _fail_counts(
        captured,
        LOST,
        f"{len(excessive)} of {len(lacking)} prompts asked again have over {tolerated} cached tokens fewer than with the baseline; "
        f"most: request {request_id}, {most} fewer",
    )


def _fail_counts(captured: Captured, name: str, details: str) -> Verdict:
    """Return FAIL for a fault of cached tokens, with a line on each arm's."""
    arms = (captured.speculative, *captured.baseline_boots)
    lines = [f"{arm.arm}: {describe_cache(arm)}" for arm in arms]
    return say(captured, Outcome.FAIL, f"{name}: {details}", short=lines, evidence=lines, cell="cached tokens", names=name)


def _describe_pass(captured: Captured, verdict: Verdict) -> str:
    """Return greedy's headline, with the repeated prompts and cached tokens."""
    repeated = sum(1 for _ in repeats(captured, captured.speculative))
    reports_cache = any(map(cached_tokens, captured.baseline.answers))
    cached = (
        describe_cache(captured.speculative) if reports_cache else "the server reports no cached tokens, so its prefix cache may be off"
    )
    return f"{verdict.headline}; {repeated} of {len(captured.speculative.answers)} prompts asked again; {cached}"
