"""Between: after an event, such as sleep or a reload of the weights, a server answers the same requests, and accepts drafts, as before.

The requests before the first event, and those after each one, form a phase: a request's id begins with its name (:func:`phase`). Events
are done to the judged arm's server, which speculates, and to every boot of the baseline, which does not; each may do, refuse or fail them.
A drafter that an event loses leaves the text right. Only its drafts, asked for again, show it. An update by other weights is not judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import RESUME, refusal
from pytest_specdec.judge.repeats import (
    LEAST_BLOCK,
    OVERCOUNT,
    acceptance_drop,
    cached_tokens,
    count_by_phase,
    describe_cache,
    describe_overcounts,
    describe_windows,
    phase,
    repeats,
    tolerated_loss,
)
from pytest_specdec.judge.verdicts import quote, restate, say
from pytest_specdec.model.event import BEFORE, EventName
from pytest_specdec.model.server_failure import FailureKind
from pytest_specdec.model.verdict import Outcome, SharedCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.event import Event, EventOutcome
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

WRONG = "answers are wrong after"
DRAFTS_DIE = "drafts are no longer accepted after"
COMPUTED_AGAIN = "a restored slot is computed again"
LOST = "cached tokens are lost by"
SURVIVES = "cached tokens survive"
_VERB = {FailureKind.DIED: "dies in", FailureKind.HUNG: "hangs in", FailureKind.ERROR: "answers 5xx to"}
_BESIDE = "+"
"""How ids end of requests that are sent beside others."""
_PROMPTS = 2
"""Prompts of one event from which on a difference of cached tokens is a fault."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers before and after each event.

    Events that failed come first, then other server failures, refused requests, and REFUSED if no event is served. Tokens are judged by
    scores, as at temperature 0 everywhere (judge/greedy.py), and wrong ones are named by the event that they come after. Acceptance is
    compared between equal answers before the first event and after each, by Fisher's exact test, at the captured share of alpha split
    evenly over the events, if it fell to half or less. Cached tokens after an event are held against those of every boot of the baseline,
    which had the same event. INVALID if an event failed on the baseline.
    """
    return (
        _check_failed_events(captured)
        or _check_server(captured)
        or refusal(captured)
        or _check_refused_events(captured)
        or _judge_by_events(captured)
    )


def _judge_by_events(captured: Captured) -> Verdict:
    """Return greedy's verdict by events, or a fault of drafts or caches.

    The greedy judge decides whether tokens are wrong; its FAIL is named by the event. Drafts and caches are judged only if its verdict is
    PASS or INCONCLUSIVE.
    """
    quiet = replace(captured, on_verdict=None)  # greedy's verdict is not reported itself, only the one made of it
    verdict = greedy.judge(quiet)
    if verdict.outcome is Outcome.FAIL:
        return restate(captured, verdict, **_name_by_event(captured, verdict))
    if verdict.outcome in {Outcome.PASS, Outcome.INCONCLUSIVE}:
        return _check_drafts(captured) or _check_caches(captured) or restate(captured, verdict, **_describe_pass(captured, verdict))
    return restate(captured, verdict, evidence=(*verdict.evidence, *_list_events(captured)))


def _outcomes(transcript: Transcript) -> Mapping[str, EventOutcome]:
    return {outcome.name: outcome for outcome in transcript.events}


def _check_failed_events(captured: Captured) -> Verdict | None:
    """Return a verdict if an event failed on a server; None otherwise.

    The judged arm's events come first, in their order (:func:`_judge_failed_event`). INVALID if one failed on a boot of the baseline alone:
    a resumed run tries it again, unless it has failed on a fresh server too (``recurred``).
    """
    outcomes = _outcomes(captured.speculative)
    for event in captured.workload.events:
        if event.name in outcomes and _has_failed(outcomes[event.name]):
            return _judge_failed_event(captured, event, outcomes[event.name])
    for boot in captured.baseline_boots:
        for name, outcome in _outcomes(boot).items():
            if _has_failed(outcome):
                headline = f"the {boot.arm} itself fails in {name}: {outcome}"
                return _judge_nothing(captured, headline, transient=not outcome.recurred)
    return None


def _has_failed(outcome: EventOutcome) -> bool:
    """Return True if an event failed on a server, though it may not have failed again.

    If a fresh server may be started, the event is tried again, and ``outcome`` is that of the second try, with ``recurred`` set.
    """
    return outcome.ending is not None or outcome.recurred is not None


def _judge_failed_event(captured: Captured, event: Event, outcome: EventOutcome) -> Verdict:
    """Return the verdict on an event that failed on the judged arm.

    ``outcome`` is that of the last try: its ``ending`` is None if the event then succeeded, and ``recurred`` says whether it failed again
    on a fresh server, None if that was not tried. FAIL if it failed again, and every boot of the baseline has survived it, else INVALID.
    """
    words = _describe_failure(event, outcome)
    if outcome.ending is None or not outcome.recurred:
        headline = f"{words}, once{'' if outcome.recurred is None else ', but not again on a fresh server'}: {outcome}"
        return _judge_nothing(captured, headline, transient=True)
    peers = [_outcomes(boot) for boot in captured.baseline_boots]
    if not all(event.name in peer and peer[event.name].is_done for peer in peers):
        return _judge_nothing(captured, f"the baseline does not survive {event.words} either, so it cannot judge: {outcome}")
    return say(
        captured,
        Outcome.FAIL,
        f"{words}, on a fresh server too; the baseline survives it",
        short=(f"event        {quote(str(outcome), 120)}",),
        evidence=_list_events(captured),
        cell=event.name,
        names=words,
        check=SharedCheck.SERVER,
        figures={"failed_events": 1.0},
    )


def _describe_failure(event: Event, outcome: EventOutcome) -> str:
    """Return a clause on a failed event, by how it failed at the last try.

    It says that the server dies, hangs or answers 5xx, or that a command fails, which a config may give for an event.
    """
    if outcome.ending is None:  # the second try succeeded, so that it is unknown how the first one failed
        return f"{event.words} fails"
    if outcome.ending is FailureKind.ERROR and outcome.status is None:  # no reply of a server: a command's failure counts as an ERROR too
        return f"the command of {event.words} fails"
    return f"the server {_VERB.get(outcome.ending, 'fails in')} {event.words}"


def _judge_nothing(captured: Captured, headline: str, *, transient: bool = False) -> Verdict:
    """Return INVALID; a ``transient`` cause may be gone when the run is resumed."""
    settle = RESUME if transient else ""
    return say(captured, Outcome.INVALID, headline, evidence=_list_events(captured), settle=settle, transient=transient)


def _check_server(captured: Captured) -> Verdict | None:
    """Return the verdict on a server that failed a request, by its event.

    A FAIL gets the event in name and headline if the first request that failed again on a fresh server came after one. Any other verdict
    stays as it is. None for a server without a failure.
    """
    verdict = server_failure(replace(captured, on_verdict=None))  # only the verdict that ``restate`` returns is reported
    if verdict is None:
        return None
    recurring = next((failure for failure in captured.speculative.server_failures if failure.recurred), None)
    event = None if recurring is None else _event_of(captured, recurring.request_id)
    if verdict.outcome is not Outcome.FAIL or event is None:
        return restate(captured, verdict)
    # An example would send the request without the event, and so not show the fault.
    return restate(
        captured,
        verdict,
        headline=f"after {event.words} {verdict.headline}",
        names=f"{verdict.names} after {event.words}",
        evidence=(*verdict.evidence, *_list_events(captured)),
        example=None,
    )


def _event_of(captured: Captured, request_id: str) -> Event | None:
    """Return the event that a request came after; None before the first."""
    return next((event for event in captured.workload.events if event.name == phase(request_id)), None)


def _check_refused_events(captured: Captured) -> Verdict | None:
    """Return REFUSED if the judged arm's server refuses all events, else None."""
    outcomes = captured.speculative.events
    if not outcomes or not all(outcome.refused for outcome in outcomes):
        return None
    first = outcomes[0]
    headline = f"no event is served here: {first.name} was refused with {first.status}: {quote(first.error, 100)}"
    served = sum(outcome.is_done for outcome in captured.baseline.events)
    beside = f"the baseline serves {served} of them" if served else "the baseline refuses them too"
    return say(captured, Outcome.REFUSED, f"{headline}; {beside}", evidence=_list_events(captured), cell=f"{first.status}")


def _name_by_event(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return this family's replacements for fields of the greedy judge's FAIL.

    They get a line with the number of wrong answers after each event. If an event explains the failure, it is also named by that, and loses
    its example: a client would ask without the event, and not see the fault.
    """
    counts = count_by_phase(captured)
    line = f"phases       answers with a wrong token: {counts}"
    short = (*verdict.short[:3], line)  # a failed test's message has room for four lines
    fields = {"short": short, "evidence": (*verdict.evidence, line, *_list_events(captured))}
    # An event explains wrong tokens alone, and not where answers before the first event have some too.
    if counts.wrong.get(BEFORE) or not greedy.is_by_wrong_tokens(verdict):
        return fields
    event = next((event for event in captured.workload.events if counts.wrong.get(event.name)), None)
    if event is None or event not in _done_events(captured, [captured.speculative]):  # one that the server refused changed nothing
        return fields
    name, wrong, answers = f"{WRONG} {event.words}", counts.wrong[event.name], counts.answers[event.name]
    headline = f"{name}: {wrong} of {answers} answers, none of {counts.answers.get(BEFORE, 0)} before; {verdict.headline}"
    return {**fields, "headline": headline, "names": name, "example": None}


def _check_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL for the first event after which acceptance fell to half or less.

    Compared are equal answers to one request before the first event and after this one: they differ in nothing but the server's state. The
    test is :func:`acceptance_drop` at an even part of ``captured.alpha``, the share of the false-alarm budget, per event. None otherwise,
    and for the control, which does not draft.
    """
    pairs = [repeat for repeat in repeats(captured, captured.speculative) if phase(repeat.first.request_id) == BEFORE]
    events = () if captured.is_control else _done_events(captured, [captured.speculative])
    for event in events:
        repeated = [repeat for repeat in pairs if phase(repeat.later.request_id) == event.name]
        drop = acceptance_drop(captured, repeated, captured.alpha / len(events))
        if drop is not None:
            name = f"{DRAFTS_DIE} {event.words}"
            return say(
                captured,
                Outcome.FAIL,
                f"{name}: {drop.after} accepted, {drop.before} before, for the same answers",
                short=(*drop.lines, _describe_event(captured, event)),
                evidence=(*map(describe_windows, repeated), *_list_events(captured)),
                cell=drop.cell,
                names=name,
                figures=drop.figures,
            )
    return None


def _check_caches(captured: Captured) -> Verdict | None:
    """Return FAIL if cached tokens are not those of the baseline after an event.

    Cached tokens are a prompt's tokens that the server reports as taken from its prefix cache. OVERCOUNT if they are more than the prompt
    has. Else tokens are lost if at least two prompts sent right after an event lack more than :func:`tolerated_loss` of those that every
    boot of the baseline reports there. They survive if at least two have ``LEAST_BLOCK`` tokens or more where no boot reports any: there
    the event emptied the cache. Prompts that are sent together are left out, and so are events that an arm refused. None otherwise, and if
    an arm never reports cached tokens.
    """
    arms = (captured.speculative, *captured.baseline_boots)
    if beyond := describe_overcounts(captured):
        return _fail_caches(captured, OVERCOUNT, beyond)
    if not all(any(map(cached_tokens, arm.answers)) for arm in arms):
        return None  # servers leave out a count of 0, so that one that never reports any may not count at all
    tolerated = tolerated_loss(captured)
    for event in _done_events(captured, arms):
        answers = [answer for answer in captured.speculative.answers if _is_first_after(event, answer)]
        reported = {answer.key: [_cached_by(boot, answer) for boot in captured.baseline_boots] for answer in answers}
        lost = [answer for answer in answers if min(reported[answer.key]) - cached_tokens(answer) > tolerated]
        surviving = [answer for answer in answers if max(reported[answer.key]) == 0 and cached_tokens(answer) >= LEAST_BLOCK]
        for name, unlike_baseline in ((_name_loss(event), lost), (f"{SURVIVES} {event.words}", surviving)):
            if len(unlike_baseline) >= _PROMPTS:
                first = unlike_baseline[0]
                counts = f"{cached_tokens(first)} of {first.prompt_tokens}, where the baseline has {reported[first.key][0]}"
                details = f"{len(unlike_baseline)} of {len(answers)} prompts; first: request {first.request_id}, {counts}"
                return _fail_caches(captured, name, details)
    return None


def _done_events(captured: Captured, arms: Iterable[Transcript]) -> list[Event]:
    """Return the events that were done to the servers of all ``arms``: one may refuse what another serves."""
    outcomes = [_outcomes(arm) for arm in arms]
    return [event for event in captured.workload.events if all(event.name in arm and arm[event.name].is_done for arm in outcomes)]


def _is_first_after(event: Event, answer: Answer) -> bool:
    """Return True if an answer is the first to its prompt after ``event``.

    Requests sent beside others, with ids of their own ending, ask the same prompts again and find them cached.
    """
    return answer.ok and phase(answer.request_id) == event.name and not answer.request_id.endswith(_BESIDE)


def _cached_by(boot: Transcript, answer: Answer) -> int:
    """Return the cached tokens that a boot of the baseline reports for the same request."""
    return next((cached_tokens(other) for other in boot.answers if other.key == answer.key), 0)


def _name_loss(event: Event) -> str:
    return COMPUTED_AGAIN if event.name == EventName.SLOT else f"{LOST} {event.words}"


def _fail_caches(captured: Captured, name: str, details: str) -> Verdict:
    lines = [f"{arm.arm}: {describe_cache(arm)}" for arm in (captured.speculative, *captured.baseline_boots)]
    evidence = (*lines, *_list_events(captured))
    return say(captured, Outcome.FAIL, f"{name}: {details}", short=lines, evidence=evidence, cell="cached tokens", names=name)


def _describe_pass(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return this family's replacements for fields of the greedy judge's pass.

    The headline gets the events that were done, and those that were refused; the evidence a line per event and arm.
    """
    outcomes = _outcomes(captured.speculative)
    happened = [event.words for event in captured.workload.events if event.name in outcomes and outcomes[event.name].is_done]
    refused = [f"{name} ({outcome.status})" for name, outcome in outcomes.items() if outcome.refused]
    elsewhere = f"; not served here: {', '.join(refused)}" if refused else ""
    headline = f"{verdict.headline}; as before after {', '.join(happened)}{elsewhere}"
    return {"headline": headline, "evidence": (*verdict.evidence, *_list_events(captured))}


def _describe_event(captured: Captured, event: Event) -> str:
    outcome = _outcomes(captured.speculative).get(event.name)
    return f"event        {event.name}: {'not sent' if outcome is None else quote(str(outcome), 120)}"


def _list_events(captured: Captured) -> Sequence[str]:
    """Return a line per event and arm, with its steps, seconds and error."""
    arms = (captured.speculative, *captured.baseline_boots)
    return [f"event        {arm.arm}: {outcome.name}: {outcome}" for arm in arms for outcome in arm.events]
