"""Prerequisites of a judgement: requests accepted, drafts made, tokens that can be scored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.bursts import describe_bursts, uncounted_bursts
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.pair import BASELINE, SCORER, DraftKind
from pytest_specdec.model.verdict import Outcome, SharedCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.captured import Capabilities, Captured
    from pytest_specdec.model.transcript import Answer, Choice, SpecCounters, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["RESUME", "equal_answers", "is_refusal", "messages", "refusal", "speculating", "unscorable"]


RESUME = "the same command with --specdec-resume RUN, which sends this workload again"
"""What settles a verdict on answers that are missing for a reason outside the engine."""
_NO_ROUTE = {404, 405}
"""They refuse a route, and so say something else of one that was answered."""


def is_refusal(answer: Answer) -> bool:
    """Whether the server refused what was asked: a 401 or 429, say, is no refusal."""
    return answer.refused


def refusal(captured: Captured) -> Verdict | None:
    """Return a verdict when access was lost, another server answered, or the judged arm refused every request; None otherwise."""
    if lost := _access_lost(captured) or _check_route(captured):
        return lost
    answers = captured.speculative.answers
    if not answers or not all(map(is_refusal, answers)):
        return None
    first = answers[0]
    return say(
        captured,
        Outcome.REFUSED,
        f"all {len(answers)} requests were refused with {first.status}: {quote(first.error or '', 100)}; {_baseline(captured)}",
        evidence=messages(answers),
        cell=f"{first.status}",
        figures={"refused_requests": len(answers)},
    )


def _access_lost(captured: Captured) -> Verdict | None:
    """Return INVALID where a request of some arm got a 4xx that refuses no request, or its route answers other arms alone."""
    routes = {request.id: request.route for request in captured.workload.requests}
    arms = (captured.speculative, *captured.baseline_boots)
    for arm in arms:
        served = {routes.get(answer.request_id) for answer in arm.answers if answer.ok}
        out = arm.lost_routes((*arms, *captured.beside))
        lost = [
            each
            for each in arm.answers
            if each.denied
            or (each.status in _NO_ROUTE and routes.get(each.request_id) in served)
            or (each.refused and routes.get(each.request_id) in out)
        ]
        if lost:
            words = f"{lost[0].status}: {quote(lost[0].error or '', 100)}"
            headline = f"access to {arm.arm} was lost: {len(lost)} of {len(arm.answers)} requests got no answer, first {lost[0].request_id}"
            figures = {"denied_requests": len(lost)}
            return say(captured, Outcome.INVALID, f"{headline}, {words}", settle=RESUME, transient=True, figures=figures)
    return None


def _check_route(captured: Captured) -> Verdict | None:
    """Return INVALID where the baseline's server gave answers that were asked of the variant's."""
    if not captured.speculative.elsewhere:
        return None
    headline = f"some answers of {captured.arm} are of the baseline's server: {captured.speculative.elsewhere}"
    settle = "give the variant the address of its server, not that of a load balancer in front of both"
    return say(captured, Outcome.INVALID, headline, settle=settle)


def messages(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Return a line per distinct refusal, with the requests it was given to."""
    refusals: dict[str, list[str]] = {}
    for answer in filter(is_refusal, answers):
        refusals.setdefault(f"{answer.status} {quote(answer.error or '', 200)}", []).append(answer.request_id)
    return tuple(f"refused with {text}: {len(ids)} requests, first {ids[0]}" for text, ids in refusals.items())


def _baseline(captured: Captured) -> str:
    honoured = sum(answer.ok for answer in captured.baseline.answers)
    if not honoured:
        return (
            "the baseline refuses them too"
            if any(map(is_refusal, captured.baseline.answers))
            else "the baseline does not answer them either"
        )
    return f"the baseline answers {honoured} of them"


_NOTHING_DRAFTED = (
    "nothing drafted",
    "the speculative setting was not applied, or these requests disable drafting (log-probabilities, grammar, temperature)",
)
_NOTHING_ACCEPTED = (
    "no draft token accepted",
    "draft and target do not match (vocabulary, template, quantisation), or prompt lookup finds no match",
)
_FEW_DRAFTS = 32
"""Verify steps. In so many a drafter whose first token is accepted in one of five has none accepted once in 1,260 runs: 0.8^32."""
_NOTHING_REJECTED = (
    "no draft token rejected",
    "the draft is the target itself, the prompts are too easy, or the server accepts every draft token",
)
_UNKNOWN = (
    "speculation unknown: no counters, no verify windows, no bursts in its streams",
    "the speculative setting was not applied, no draft is accepted, or a proxy collects the streams; switch on counters if there are any",
)


def speculating(captured: Captured, *, rejecting: bool = True) -> Verdict | None:
    """Return a verdict unless drafts were both accepted and rejected in the judged answers; None then, and for the control.

    The server's counters decide; without them the windows of the answers. ``rejecting=False`` leaves the rejections to the families
    whose finding hangs on them: a document, a living server or a speedup is there whether or not a draft was refused on the way.
    Without either, bursts in the streams of a probe show that the server drafts; what it did in the judged requests stays unknown.
    """
    if captured.is_control:
        return None
    streams = uncounted_bursts(captured)
    if streams is not None and streams.drafting:
        return None
    counters = captured.speculative.counters
    missing = _by_windows(captured) if counters is None else _by_counters(counters)
    if missing is None or (missing is _NOTHING_REJECTED and not rejecting):
        return None
    what, causes = missing
    shown = "no counters" if counters is None else _describe_counters(counters)
    if counters is None or counters.drafts <= 0:
        loaded = _under_load(captured, f"{what} ({shown})")
        if loaded is not None:
            return loaded
    steps = len(_windows(captured)) if counters is None else counters.drafts
    if missing is _NOTHING_ACCEPTED and steps < _FEW_DRAFTS:
        return _too_few(captured, f"{what} in the judged requests ({shown})")
    return say(
        captured,
        Outcome.NOT_SPECULATING,
        f"{what} in the judged requests ({shown})",
        short=(f"likely: {causes}",),
        evidence=(f"counters over these answers: {shown}", *(() if missing is not _UNKNOWN else (describe_bursts(streams),))),
        cell="not speculating",
        check=SharedCheck.DRAFTING,
        figures={} if counters is None else {"drafts": counters.drafts, "accepted_tokens": counters.accepted_tokens},
    )


def _too_few(captured: Captured, found: str) -> Verdict:
    """Return INCONCLUSIVE: the server drafts, and so few drafts may all be rejected by chance."""
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{found}: too few to tell chance from a drafter that never fits",
        settle=f"{_FEW_DRAFTS} drafts or more: a greater depth, or prompts that repeat themselves for prompt lookup",
        cell="few drafts",
    )


def _under_load(captured: Captured, found: str) -> Verdict | None:
    """Return INCONCLUSIVE where the variant's settings explain that nothing is drafted with so many requests in flight."""
    draft, concurrency = captured.pair.variant.draft, captured.workload.concurrency
    if 0 < draft.most_requests < concurrency:
        why = f"by its config the variant drafts in batches of {draft.most_requests} at most, and {concurrency} requests were in flight"
    elif draft.depends_on_load and concurrency > 1:
        why = f"its config says that drafting depends on load, and {concurrency} requests were in flight"
    else:
        return None
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{found}: {why}",
        settle=f"let the variant draft in batches of {concurrency}, or name the family under allow_inconclusive",
        cell="no drafts under load",
    )


def _describe_counters(counters: SpecCounters) -> str:
    accepted, rejected = counters.accepted_tokens, counters.rejected_tokens
    return f"{counters.drafts:,} drafts, {accepted:,} draft tokens accepted, {rejected:,} rejected"


def _by_counters(counters: SpecCounters) -> tuple[str, str] | None:
    if counters.drafts <= 0:
        return _NOTHING_DRAFTED
    if counters.accepted_tokens <= 0:
        return _NOTHING_ACCEPTED
    return _NOTHING_REJECTED if counters.rejected_tokens <= 0 else None


def _by_windows(captured: Captured) -> tuple[str, str] | None:
    """Read acceptance and rejection off the windows; prompt lookup may draft nothing, so its windows of one token show no rejection."""
    choices = [choice for answer in captured.speculative.answers for choice in answer.choices]
    if all(choice.windows is None for choice in choices):
        return _UNKNOWN
    windows = _windows(captured)
    draft = captured.pair.variant.draft
    least = 2 if draft.kind is DraftKind.NGRAM and draft.tokens > 1 else 1
    if all(window <= 1 for window in windows):
        return _NOTHING_ACCEPTED
    most = draft.tokens or max(windows) - 1
    return None if any(least <= window <= most for window in windows) else _NOTHING_REJECTED


def _windows(captured: Captured) -> list[int]:
    return [window for answer in captured.speculative.answers for choice in answer.choices for window in choice.steps]


ROUTES = "serve prompt log-probabilities, or log-probabilities of one-token continuations of token ids"
"""The remedy where the engine's adapter knows no option."""


def unscorable(captured: Captured, *, rejecting: bool = True) -> Verdict | None:
    """Return INCONCLUSIVE where the baseline's capability probe found no route to scores and there are none; None otherwise.

    Scores that are missing although the engine gives them, or that no probe tried, are another matter. Answers at temperature 0 are
    counted that equal the baseline's. That decides nothing: ties part healthy servers, and equal text says nothing of a distribution.
    """
    known = captured.scoring
    reason = "" if known is None else _reason(captured, known)
    if known is None or not reason or any(score.positions for scores in captured.scores.values() for score in scores):
        return None
    equal = equal_answers(captured, captured.speculative)
    counted = f"{sum(equal)} of {len(equal)} answers equal the baseline's; " if equal else ""
    return speculating(captured, rejecting=rejecting) or say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{counted}no token can be scored: {reason}",
        evidence=_of_control(captured),
        settle=(known.scored_with or ROUTES) if known.unscorable else "serve answers with token ids",
        cell="not scored",
        figures={"answers": float(len(equal)), "answers_equal": float(sum(equal))} if equal else {},
    )


def _reason(captured: Captured, known: Capabilities) -> str:
    """Return why no token can be scored; empty where some can."""
    if known.unscorable:
        return f"{_scoring_server(captured)} serves no log-probabilities of given tokens ({known.unscorable})"
    answers = (*captured.baseline.answers, *captured.speculative.answers)
    if known.lacks_ids and not any(choice.token_ids for answer in answers for choice in answer.choices):
        return "the engine gives these answers as text, without token ids"
    return ""


def _scoring_server(captured: Captured) -> str:
    return f"the {SCORER if SCORER in captured.capabilities else BASELINE}"


def equal_answers(captured: Captured, arm: Transcript) -> tuple[bool, ...]:
    """Return of every request at temperature 0 that both answered whether ``arm`` answered as the baseline, in ids, reasoning and text."""
    greedy = {request.id for request in captured.workload.requests if request.greedy}
    own = {answer.key: answer.choice for answer in captured.baseline.answers if answer.ok and answer.request_id in greedy}
    both = ((answer.choice, own[answer.key]) for answer in arm.answers if answer.ok and answer.key in own)
    return tuple(_same(mine, theirs) for mine, theirs in both)


def _same(mine: Choice, theirs: Choice) -> bool:
    return (mine.token_ids, mine.reasoning, mine.text) == (theirs.token_ids, theirs.reasoning, theirs.text)


def _of_control(captured: Captured) -> tuple[str, ...]:
    equal = [same for control in captured.baseline_boots[1:] for same in equal_answers(captured, control)]
    return (f"{sum(equal)} of {len(equal)} of the control's answers equal the baseline's",) if equal else ()
