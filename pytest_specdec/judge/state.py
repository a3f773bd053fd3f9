"""State: answers to prompts that a server has seen before, in whole or in part, are what they would be on a fresh one.

Answers are judged whether or not the engine reports cached tokens, since it need not cache prefixes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_gap import scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import refusal
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge", "phase"]

SECOND_WRONG = "the second identical prompt is answered wrongly"
SECOND_EMPTY = "the second identical prompt is answered with nothing, or cut off"
PREFIX_WRONG = "an answer depends on what was asked before: a prompt that begins like an earlier one is answered wrongly"
LONG_WRONG = "an answer depends on what was asked before: a prompt behind a long one is answered wrongly"
LEFT_WRONG = "an answer depends on what was asked before: a prompt after a stream that its client left is answered wrongly"
DRAFTS_DIE = "drafts are no longer accepted when a prompt is asked again"
DRAFTS_DIE_LATER = "drafts are no longer accepted after a long request"
OVERCOUNT = "more cached tokens are reported than the prompt has"
DEFEATED = "speculation defeats the prefix cache, or cached tokens are not counted"
LOST = "speculation loses a part of the prefix cache"

_FRESH = frozenset({"cold", "long"})
"""Phases whose prompts share no beginning with an earlier one: a fault there is not one of state."""
_AFTER_LONG = "after-long"
_NAMED = {_AFTER_LONG: LONG_WRONG, "after-left": LEFT_WRONG}
"""By phase, the name of a fault whose wrong tokens are all in that phase."""
_SHORT, _LONG = 3, 8
"""Tokens up to which an answer is next to nothing, and from which on it is something."""
_HALF = 0.5
"""Fraction of the earlier acceptance below which drafts count as dead: an engine that rebuilds a cache loses less."""
_WELL_CACHED, _REPEATS = 48, 3
"""Cached tokens that the baseline must report for a request, and the number of such requests, before none on the variant is a fault:
engines compute the last cached block again if the drafter needs it."""
_BLOCK = 16
"""The least tokens that a cache block counts as, also for engines that cache single tokens."""


def phase(request_id: str) -> str:
    """Return the phase of a request by its id: ``warm`` for ``warm/code``."""
    return request_id.partition("/")[0]


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers to prompts seen before.

    Tokens are judged by scores, as at temperature 0 everywhere (judge/greedy.py). Acceptance is compared between equal answers to one
    prompt, by an exact test at the captured share of alpha, if it fell to half or less. Cached tokens may not exceed the prompt's, nor be
    missing or fewer by blocks if the baseline has some.
    """
    return server_failure(captured) or refusal(captured) or _check_emptied(captured) or _judge_state(captured)


def _judge_state(captured: Captured) -> Verdict:
    """Return greedy's verdict by phases, or a fault of drafts or caches.

    A phase is a group of requests, such as those of repeated prompts (:func:`phase`). Acceptance and caches are judged only if greedy's
    verdict is PASS or INCONCLUSIVE.
    """
    part = _greedy_part(captured)
    verdict = greedy.judge(part)
    if verdict.outcome is Outcome.FAIL:
        return _restate(captured, verdict, **_restate_by_phase(part, verdict))
    if verdict.outcome in {Outcome.PASS, Outcome.INCONCLUSIVE}:
        return (
            _check_drafts(captured)
            or _check_cache_counts(captured)
            or _check_cache_loss(captured)
            or _restate(captured, verdict, headline=_describe_pass(part, verdict))
        )
    return _restate(captured, verdict)


def _greedy_part(captured: Captured) -> Captured:
    """Return the run without its sampled requests, for the greedy judge.

    They are left by their client, but a server may end such an answer first. Its verdict is given to nobody but this judge.
    """
    greedy_ids = {request.id for request in captured.workload.requests if request.greedy}

    def keep(arm: Transcript) -> Transcript:
        return replace(arm, answers=tuple(answer for answer in arm.answers if answer.request_id in greedy_ids))

    return replace(
        captured,
        speculative=keep(captured.speculative),
        baseline=keep(captured.baseline),
        control=None if captured.control is None else keep(captured.control),
        repeats=tuple(map(_greedy_part, captured.repeats)),
        on_verdict=None,
    )


def _restate(captured: Captured, verdict: Verdict, **fields: object) -> Verdict:
    """Return greedy's verdict with other fields, and give it to ``captured.on_verdict``.

    The greedy judge itself was kept from that by :func:`_greedy_part`, since this judge may change its verdict.
    """
    restated = replace(verdict, **fields)  # type: ignore[arg-type]
    if captured.on_verdict is not None:
        captured.on_verdict(restated)
    return restated


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Two answers of one arm to the same request, in the order in which it was sent."""

    first: Answer
    later: Answer


def _repeats(captured: Captured, transcript: Transcript) -> Iterator[Repeat]:
    """Yield each answer to a repeated question with the first one.

    Both are of one arm, to requests that ask the same. Pairs with an unsuccessful answer are left out.
    """
    asks = {request.id: request.asks for request in captured.workload.requests}
    first: dict[str, Answer] = {}
    for answer in transcript.answers:
        earliest = first.setdefault(asks.get(answer.request_id, answer.request_id), answer)
        if earliest is not answer and earliest.ok and answer.ok:
            yield Repeat(first=earliest, later=answer)


def _length(answer: Answer) -> int:
    """Return an answer's number of tokens; of words if nothing counts tokens."""
    return len(answer.choice.written.split()) if answer.tokens is None else answer.tokens


def _check_emptied(captured: Captured) -> Verdict | None:
    """Return FAIL if a repeated prompt gets next to no answer.

    That is 3 tokens or fewer, where the first answer and those of all the baseline's boots have 8 or more. None otherwise.
    """
    short = {answer.key for arm in captured.baseline_boots for answer in arm.answers if answer.ok and _length(answer) < _LONG}
    repeats = [repeat for repeat in _repeats(captured, captured.speculative) if repeat.later.key not in short]
    emptied = [repeat.later for repeat in repeats if _length(repeat.later) <= _SHORT and _length(repeat.first) >= _LONG]
    if not emptied:
        return None
    first = emptied[0]
    lines = [f"{answer.request_id}: {_length(answer)} tokens, finish reason {answer.choice.finish_reason}" for answer in emptied]
    return say(
        captured,
        Outcome.FAIL,
        f"{SECOND_EMPTY}: {len(emptied)} of {len(repeats)} prompts asked again; first: request {first.request_id}",
        short=lines[:4],
        evidence=lines,
        cell=f"{len(emptied)} empty",
        names=SECOND_EMPTY,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id, pass_index=first.pass_index),
        figures={"emptied_answers": float(len(emptied)), "repeated_prompts": float(len(repeats))},
    )


def _restate_by_phase(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return the verdict's fields to change in greedy's failure.

    If only prompts that begin like an earlier one, or come after a long one or an abandoned stream, have wrong tokens, the failure is one
    of state and gets its own fault name and headline. Otherwise its name stays. In both cases a line with the number of wrong answers in
    each phase is added.
    """
    peers = [answer for arm in captured.baseline_boots for answer in scored_answers(arm, captured.scores.get(arm.arm, ()))]
    allowed, scored = tolerance(captured, peers), scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
    wrong_answers = [answer.answer for answer in scored if any(gap > allowed.gap for gap in answer.gaps)]
    answers = Counter(phase(answer.answer.request_id) for answer in scored)
    wrong = Counter(phase(answer.request_id) for answer in wrong_answers)
    counted = ", ".join(f"{name} {wrong[name]} of {count}" for name, count in answers.items())
    line = f"phases       answers with a wrong token: {counted}"
    if not wrong or _FRESH & wrong.keys():
        return {"short": (*verdict.short[:4], line), "evidence": (*verdict.evidence, line)}
    again = {repeat.later.key for repeat in _repeats(captured, captured.speculative)}
    is_repeated = any(answer.key in again for answer in wrong_answers)
    general = SECOND_WRONG if is_repeated else PREFIX_WRONG
    name = _NAMED.get(next(iter(wrong)), general) if len(wrong) == 1 else general
    fresh = sum(answers[fresh] for fresh in _FRESH)
    headline = f"{name}: {wrong.total()} of {answers.total() - fresh} answers, none of {fresh} to prompts new to it; {verdict.headline}"
    return {"headline": headline, "names": name, "short": (*verdict.short[:4], line), "evidence": (*verdict.evidence, line)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDrafts:
    """Accepted and offered draft tokens."""

    accepted: int
    offered: int

    @property
    def rate(self) -> float:
        """Accepted over offered, 0 for none."""
        return self.accepted / self.offered if self.offered else 0.0

    def __str__(self) -> str:
        return f"{self.accepted} of {self.offered} draft tokens"


def _acceptance(answers: Sequence[Answer], draft: int) -> OfferedDrafts:
    """Return the accepted and offered draft tokens of whole verify steps.

    Each step counts as offering ``draft`` tokens.
    """
    windows = [window for answer in answers for window in answer.choice.steps]
    accepted = [min(window - 1, draft) for window in windows]
    return OfferedDrafts(accepted=sum(accepted), offered=draft * len(windows))


def _draft_tokens(captured: Captured, repeats: Sequence[Repeat]) -> int:
    """Return the length of a draft: the configured one or, if unknown, the longest accepted one.

    It is that of both answers of all pairs: where drafts die, the later ones alone show none.
    """
    windows = (window for repeat in repeats for answer in (repeat.first, repeat.later) for window in answer.choice.steps)
    return captured.pair.variant.draft.tokens or max(windows, default=1) - 1


def _check_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if acceptance fell by half between equal answers.

    Equal answers to one prompt differ in nothing but the server's state. Those after a long request are tested separately and have their
    own fault name. None otherwise, and for the control, which does not draft.
    """
    equal = [
        repeat
        for repeat in _repeats(captured, captured.speculative)
        if repeat.first.choice.windows and repeat.later.choice.windows and repeat.first.choice.token_ids == repeat.later.choice.token_ids
    ]
    by_phase = {
        DRAFTS_DIE: [repeat for repeat in equal if phase(repeat.later.request_id) != _AFTER_LONG],
        DRAFTS_DIE_LATER: [repeat for repeat in equal if phase(repeat.later.request_id) == _AFTER_LONG],
    }
    for name, repeats in () if captured.is_control else by_phase.items():
        if died := _check_acceptance(captured, name, repeats):
            return died
    return None


def _check_acceptance(captured: Captured, name: str, repeats: Sequence[Repeat]) -> Verdict | None:
    """Return FAIL if later answers accept fewer draft tokens, else None.

    ``repeats`` are pairs of equal answers, ``name`` is the fault's. The acceptance must have fallen to half or less, and Fisher's exact
    test must reject at the captured share of alpha.
    """
    draft = _draft_tokens(captured, repeats)
    before, after = (_acceptance(answers, draft) for answers in ([pair.first for pair in repeats], [pair.later for pair in repeats]))
    if not before.accepted or not after.offered or after.rate > _HALF * before.rate:
        return None
    p_value = proportions.greater_than_other(before.accepted, before.offered, after.accepted, after.offered)
    if p_value > captured.alpha:
        return None
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {after} accepted, {before} at first, for the same {len(repeats)} answers",
        short=(f"at first     {before.rate:.0%}", f"later        {after.rate:.0%}", f"by chance    p = {p_value:.2g}"),
        evidence=[f"{repeat.later.request_id} after {repeat.first.request_id}: {_windows(repeat)}" for repeat in repeats],
        cell=f"acceptance {before.rate:.0%} to {after.rate:.0%}",
        names=name,
        figures={"acceptance_at_first": before.rate, "acceptance_later": after.rate, "p_value": p_value},
    )


def _windows(repeat: Repeat) -> str:
    first, later = (" ".join(map(str, answer.choice.windows or ())) for answer in (repeat.first, repeat.later))
    return f"windows {first} at first, {later} later"


def _cached_tokens(answer: Answer) -> int:
    return (answer.usage.cached_tokens or 0) if answer.usage else 0


def _check_cache_counts(captured: Captured) -> Verdict | None:
    """Return FAIL if reported cached tokens are too many or missing.

    Too many are more than the prompt has. They are missing if the variant reports none for three or more repeated prompts, where every boot
    of the baseline reports 48 or more for each: of fewer nothing may be left, since engines compute the last cached block again if the
    drafter needs it. None otherwise, and if a boot of the baseline itself reports more than the prompt has.
    """
    if any(_exceeds_prompt(answer) for arm in captured.baseline_boots for answer in arm.answers):
        return None
    beyond = [answer for answer in captured.speculative.answers if _exceeds_prompt(answer)]
    if beyond:
        first, usage = beyond[0], beyond[0].usage
        counts = f"{usage.cached_tokens} of {usage.prompt_tokens}" if usage else ""
        return _fail_counts(captured, OVERCOUNT, f"{len(beyond)} answers; first: request {first.request_id}, {counts}")
    well_cached = set.intersection(*({a.key for a in arm.answers if _cached_tokens(a) >= _WELL_CACHED} for arm in captured.baseline_boots))
    repeated = {repeat.later.key for repeat in _repeats(captured, captured.speculative)}
    uncached = [answer for answer in captured.speculative.answers if answer.key in well_cached & repeated]
    if len(uncached) < _REPEATS or any(map(_cached_tokens, uncached)):
        return None
    return _fail_counts(
        captured, DEFEATED, f"none in {len(uncached)} prompts asked again, of each of which the baseline caches {_WELL_CACHED} or more"
    )


def _check_cache_loss(captured: Captured) -> Verdict | None:
    """Return FAIL if fewer tokens of repeated prompts are cached than by the baseline.

    Three or more prompts must lack more than :func:`_tolerated_loss` of the tokens that every boot of the baseline reports. None otherwise,
    and if an arm reports none.
    """
    reported = [Counter({answer.key: _cached_tokens(answer) for answer in arm.answers}) for arm in captured.baseline_boots]
    repeated = {repeat.later.key: repeat.later for repeat in _repeats(captured, captured.speculative)}
    lacking = {
        key: min(counts[key] for counts in reported) - _cached_tokens(answer)
        for key, answer in repeated.items()
        if answer.usage is not None and answer.usage.cached_tokens is not None
    }
    tolerated = _tolerated_loss(captured)
    beyond = {key: lack for key, lack in lacking.items() if lack > tolerated}
    if len(beyond) < _REPEATS:
        return None
    (request_id, _), most = max(beyond.items(), key=lambda item: item[1])
    return _fail_counts(
        captured,
        LOST,
        f"{len(beyond)} of {len(lacking)} prompts asked again have over {tolerated} cached tokens fewer than with the baseline; "
        f"most: request {request_id}, {most} fewer",
    )


def _tolerated_loss(captured: Captured) -> int:
    """Return the cached tokens of a prompt that a correct variant may lack.

    They are those of one block, whose last tokens a drafter may not have been fed yet, and of two where heads draft: vLLM drops the last
    matching block then, to compute the hidden states that a head needs. A block is the greatest divisor of all reported counts.
    """
    arms = (captured.speculative, *captured.baseline_boots)
    block = max(_BLOCK, gcd(*(_cached_tokens(answer) for arm in arms for answer in arm.answers)))
    return block * (1 if captured.pair.variant.draft.kind in {DraftKind.MODEL, DraftKind.NGRAM} else 2)


def _exceeds_prompt(answer: Answer) -> bool:
    return answer.usage is not None and _cached_tokens(answer) > answer.usage.prompt_tokens


def _fail_counts(captured: Captured, name: str, details: str) -> Verdict:
    arms = (captured.speculative, *captured.baseline_boots)
    lines = [f"{arm.arm}: {_describe_cache(arm)}" for arm in arms]
    return say(captured, Outcome.FAIL, f"{name}: {details}", short=lines, evidence=lines, cell="cached tokens", names=name)


def _describe_cache(arm: Transcript) -> str:
    usages = [answer.usage for answer in arm.answers if answer.usage is not None]
    cached = sum(usage.cached_tokens or 0 for usage in usages)
    return f"{cached:,} of {sum(usage.prompt_tokens for usage in usages):,} prompt tokens reported as cached"


def _describe_pass(captured: Captured, verdict: Verdict) -> str:
    """Return greedy's headline, with the repeated prompts and cached tokens."""
    repeats = sum(1 for _ in _repeats(captured, captured.speculative))
    reports_cache = any(map(_cached_tokens, captured.baseline.answers))
    cached = (
        _describe_cache(captured.speculative) if reports_cache else "the server reports no cached tokens, so its prefix cache may be off"
    )
    return f"{verdict.headline}; {repeats} of {len(captured.speculative.answers)} prompts asked again; {cached}"
