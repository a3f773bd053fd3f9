"""Prerequisites of a judgement: requests accepted, drafts made, tokens that can be scored.

An arm is one server. The judged arm is the variant, which speculates, or the control, the baseline booted again, which does not. A lack is
what speculation should show and the judged answers do not: nothing drafted, accepted or rejected. A verify window is the tokens that one
verify step emits. Each check returns a verdict, or None if nothing stands against a judgement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.bursts import describe_bursts, uncounted_bursts
from pytest_specdec.judge.verdicts import number_of, quote, say
from pytest_specdec.model.pair import BASELINE, SCORER, DraftKind
from pytest_specdec.model.verdict import Outcome, SharedCheck
from pytest_specdec.stats.draft_distribution import Lookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.captured import Capabilities, Captured
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["RESUME", "describe_refusals", "equal_answers", "is_refusal", "own_refusals", "refusal", "speculating", "unscorable"]


RESUME = "the same command with --specdec-resume RUN, which sends this workload again"
"""The remedy for answers that are missing for a reason outside the engine."""
_NO_ROUTE = {404, 405}
"""Statuses that refuse a route: on a route that the arm answered before, they mean that access to the server was lost."""


def is_refusal(answer: Answer) -> bool:
    """Return True if the server refused an unsupported request.

    A 401 or 429 is no refusal: it is about a key or a quota.
    """
    return answer.refused


def refusal(captured: Captured) -> Verdict | None:
    """Return a verdict if requests were refused or misdirected, else None.

    INVALID if access to a server was lost, or if the baseline's server answered requests to the variant's. Otherwise REFUSED if the judged
    arm refused every request.
    """
    if lost := _check_access(captured) or _check_misdirected(captured):
        return lost
    answers = captured.speculative.answers
    if not answers or not all(map(is_refusal, answers)):
        return None
    first = answers[0]
    return say(
        captured,
        Outcome.REFUSED,
        f"all {len(answers)} requests were refused with {first.status}: {quote(first.error or '', 100)}; {_describe_baseline(captured)}",
        evidence=describe_refusals(answers),
        cell=f"{first.status}",
        figures={"refused_requests": len(answers)},
    )


def _check_access(captured: Captured) -> Verdict | None:
    """Return INVALID if access to an arm's server was lost, else None.

    One of three signs is enough: a 4xx that refuses no feature, such as 401 (``denied``); a 404 or 405 on a route that answered other
    requests of the arm; refusals on a route that refused everything of this arm and answers another arm, as if a proxy blocked it.
    """
    routes = {request.id: request.route for request in captured.workload.requests}
    arms = (captured.speculative, *captured.baseline_boots)
    for arm in arms:
        served = {routes.get(answer.request_id) for answer in arm.answers if answer.ok}
        lost_routes = arm.lost_routes((*arms, *captured.beside))
        lost = [
            answer
            for answer in arm.answers
            if answer.denied
            or (answer.status in _NO_ROUTE and routes.get(answer.request_id) in served)
            or (answer.refused and routes.get(answer.request_id) in lost_routes)
        ]
        if lost:
            first = f"{lost[0].status}: {quote(lost[0].error or '', 100)}"
            headline = f"access to {arm.arm} was lost: {len(lost)} of {len(arm.answers)} requests got no answer, first {lost[0].request_id}"
            figures = {"denied_requests": len(lost)}
            is_blocked = all(answer.refused and routes.get(answer.request_id) in lost_routes for answer in lost)
            ask_first = f"ask the server itself, past any proxy: if it refuses too, {arm.arm} does not serve this route; if not, "
            settle = f"{ask_first if is_blocked else ''}{RESUME}"
            return say(captured, Outcome.INVALID, f"{headline}, {first}", settle=settle, transient=True, figures=figures)
    return None


def _check_misdirected(captured: Captured) -> Verdict | None:
    """Return INVALID if the baseline's server answered for the variant's, else None."""
    if not captured.speculative.elsewhere:
        return None
    headline = f"some answers of {captured.arm} are of the baseline's server: {captured.speculative.elsewhere}"
    settle = "give the variant the address of its server, not that of a load balancer in front of both"
    return say(captured, Outcome.INVALID, headline, settle=settle)


def own_refusals(captured: Captured) -> tuple[Answer, ...]:
    """Return the judged arm's refusals of requests that every boot of the baseline answers."""
    answered = [{answer.key for answer in boot.answers if answer.ok} for boot in captured.baseline_boots]
    return tuple(a for a in captured.speculative.answers if is_refusal(a) and all(a.key in keys for keys in answered))


def describe_refusals(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Return a line per distinct refusal, with its requests counted."""
    ids_by_refusal: dict[str, list[str]] = {}
    for answer in filter(is_refusal, answers):
        ids_by_refusal.setdefault(f"{answer.status} {quote(answer.error or '', 200)}", []).append(answer.request_id)
    return tuple(f"refused with {text}: {len(ids)} requests, first {ids[0]}" for text, ids in ids_by_refusal.items())


def _describe_baseline(captured: Captured) -> str:
    """Return a clause on the baseline's response to the requests, all of which the judged arm refuses."""
    honoured = sum(answer.ok for answer in captured.baseline.answers)
    if not honoured:
        return (
            "the baseline refuses them too"
            if any(map(is_refusal, captured.baseline.answers))
            else "the baseline does not answer them either"
        )
    return f"the baseline answers {honoured} of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lack:
    """Something that speculation shows and the judged answers do not."""

    what: str
    causes: str
    """Likely ones, in words."""
    by_chance: str = ""
    """The fault that a few drafts cannot tell from chance; empty if any number can."""


_NOTHING_DRAFTED = _Lack(
    what="nothing drafted",
    causes="the speculative setting was not applied, or these requests disable drafting (log-probabilities, grammar, temperature)",
)
_NOTHING_ACCEPTED = _Lack(
    what="no draft token accepted",
    causes="draft and target do not match (vocabulary, template, quantisation), or prompt lookup finds no match",
    by_chance="a drafter that never fits",
)
_FEW_DRAFTS = 32
"""Verify steps from which on no accepted token shows that none fits: a drafter whose first token is accepted in one step of five has none
accepted in 32 steps once in 1,260 runs (0.8^32). As many show that none is rejected, and as many matches that a lookup drafts nothing."""
_NOTHING_REJECTED = _Lack(
    what="no draft token rejected",
    causes="the draft is the target itself, the prompts are too easy, or the server accepts every draft token",
    by_chance="a server that accepts every draft token",
)
_UNKNOWN = _Lack(
    what="speculation unknown: no counters, no verify windows, no bursts in its streams",
    causes="the speculative setting was not applied, no draft is accepted, or a proxy collects the streams; "
    "switch on counters if there are any",
)


def speculating(captured: Captured, *, needs_rejections: bool = True) -> Verdict | None:
    """Return a verdict unless the judged answers exercise speculation.

    None if they do: draft tokens must have been accepted and, with ``needs_rejections``, also rejected. Families do without rejections if
    their finding does not depend on them, such as a valid document or a living server. Always None for the control, which does not draft.

    The verdict is NOT_SPECULATING; INCONCLUSIVE if the load, the texts or chance may explain the lack.
    """
    if captured.is_control:
        return None
    # None if counters or verify windows show the drafts. Without both, tokens that arrive together in the streams of a probe are enough:
    # nothing shows more.
    streams = uncounted_bursts(captured)
    if streams is not None and streams.drafting:
        return None
    counters = captured.speculative.counters
    lack = _find_lack_in_windows(captured) if counters is None else _find_lack_in_counters(counters)
    if lack is None or (lack is _NOTHING_REJECTED and not needs_rejections):
        return None
    counts = "no counters" if counters is None else _describe_counters(counters)
    if counters is None or counters.drafts <= 0:
        # Nothing may have been drafted: the variant's settings may say so for this load, or prompt lookup had no match in these texts.
        explained = _check_load(captured, f"{lack.what} ({counts})")
        # _UNKNOWN means no bursts in the probe's streams either, which are of other texts.
        if explained is None and lack is not _UNKNOWN:
            explained = _check_lookup(captured, f"{lack.what} ({counts})")
        if explained is not None:
            return explained
    # All drafts, if they are few, may be rejected or accepted by chance.
    steps = len(_windows(captured)) if counters is None else counters.drafts
    if lack.by_chance and steps < _FEW_DRAFTS:
        return _say_too_few(captured, f"{lack.what} in the judged requests ({counts}): too few to tell chance from {lack.by_chance}")
    return say(
        captured,
        Outcome.NOT_SPECULATING,
        f"{lack.what} in the judged requests ({counts})",
        short=(f"likely: {lack.causes}",),
        evidence=(f"counters over these answers: {counts}", *(() if lack is not _UNKNOWN else (describe_bursts(streams),))),
        cell="not speculating",
        check=SharedCheck.DRAFTING,
        figures={} if counters is None else {"drafts": counters.drafts, "accepted_tokens": counters.accepted_tokens},
    )


def _say_too_few(captured: Captured, headline: str) -> Verdict:
    """Return INCONCLUSIVE for so few drafts that all may be rejected, or accepted, by chance."""
    settle = f"{_FEW_DRAFTS} drafts or more: a greater depth, or prompts that repeat themselves for prompt lookup"
    return say(captured, Outcome.INCONCLUSIVE, headline, settle=settle, cell="few drafts")


def _check_load(captured: Captured, finding: str) -> Verdict | None:
    """Return INCONCLUSIVE if the load explains missing drafts, else None.

    The variant's settings say that it drafts only in batches of fewer requests than were in flight, or that drafting depends on load.
    ``finding`` says what is missing; it begins the headline.
    """
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
        f"{finding}: {why}",
        settle=f"let the variant draft in batches of {concurrency}, or name the family under allow_inconclusive",
        cell="no drafts under load",
    )


def _check_lookup(captured: Captured, finding: str) -> Verdict | None:
    """Return INCONCLUSIVE if a lookup had hardly anything to find, else None.

    Prompt lookup drafts at a token only if the ``ngram_min`` tokens before it occurred earlier in prompt or answer. None also for other
    drafters, and if the token ids are unknown. ``finding`` says what is missing; it begins the headline.
    """
    draft = captured.pair.variant.draft
    contexts = [
        (answer.prompt_token_ids, choice.token_ids) for answer in captured.speculative.answers if answer.ok for choice in answer.choices
    ]
    if draft.kind.every_step or draft.ngram_min <= 0 or not all(prompt and ids for prompt, ids in contexts):
        return None
    matches, tokens = sum(_lookup_matches(prompt, ids, draft.ngram_min) for prompt, ids in contexts), sum(len(ids) for _, ids in contexts)
    if matches >= _FEW_DRAFTS:
        return None
    repeated = f"{matches} of {tokens} tokens follow {number_of(draft.ngram_min, 'token')} that occurred before"
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{finding}: {repeated}, so a lookup may find nothing",
        settle=f"{_FEW_DRAFTS} such tokens: a greater depth, or prompts that repeat themselves",
        cell="nothing to look up",
    )


def _lookup_matches(prompt: Sequence[int], ids: Sequence[int], size: int) -> int:
    """Return the number of an answer's tokens for which a lookup finds a match.

    A match is an earlier occurrence of the ``size`` tokens before it. Nothing is looked up for the first token, which the prefill emits.
    """
    lookup, matches = Lookup((*prompt, *ids[:1]), shortest=size, longest=size), 0
    for token in ids[1:]:
        matches += bool(lookup.propose(1))
        lookup.append(token)
    return matches


def _describe_counters(counters: SpecCounters) -> str:
    accepted, rejected = counters.accepted_tokens, counters.rejected_tokens
    return f"{counters.drafts:,} drafts, {accepted:,} draft tokens accepted, {rejected:,} rejected"


def _find_lack_in_counters(counters: SpecCounters) -> _Lack | None:
    """Return the first lack that counters show: of drafts, accepted or rejected tokens."""
    if counters.drafts <= 0:
        return _NOTHING_DRAFTED
    if counters.accepted_tokens <= 0:
        return _NOTHING_ACCEPTED
    return _NOTHING_REJECTED if counters.rejected_tokens <= 0 else None


def _find_lack_in_windows(captured: Captured) -> _Lack | None:
    """Return the lack of accepted or rejected draft tokens, or None.

    A window has one token more than it has accepted draft tokens. So one of several tokens shows an accepted draft token, and one of no
    more tokens than were drafted shows a rejected one. The lack is _UNKNOWN without windows.
    """
    choices = [choice for answer in captured.speculative.answers for choice in answer.choices]
    if all(choice.windows is None for choice in choices):
        return _UNKNOWN
    windows = _windows(captured)
    if all(window <= 1 for window in windows):
        return _NOTHING_ACCEPTED
    draft = captured.pair.variant.draft
    # Prompt lookup may draft nothing at a step, so that its windows of one token show no rejection. With one draft token a step they are
    # taken all the same: no other window can show one.
    shortest = 2 if draft.kind is DraftKind.NGRAM and draft.tokens > 1 else 1
    # The draft's length: without a configured one, that of the longest window, as if its draft was accepted in full.
    drafted = draft.tokens or max(windows) - 1
    return None if any(shortest <= window <= drafted for window in windows) else _NOTHING_REJECTED


def _windows(captured: Captured) -> list[int]:
    return [window for answer in captured.speculative.answers for choice in answer.choices for window in choice.steps]


ROUTES = "serve prompt log-probabilities, or log-probabilities of one-token continuations of token ids"
"""The remedy if the engine's adapter knows no option for scoring."""


def unscorable(captured: Captured, *, needs_rejections: bool = True) -> Verdict | None:
    """Return INCONCLUSIVE if the engine cannot score tokens, else None.

    That is so if there are no scores, and the capability probe found no way to score tokens or the answers have no token ids. None if
    scores are missing although the engine gives them, and for an engine that was not probed. If tokens cannot be scored, missing drafts
    come first, and with ``needs_rejections`` a lack of rejected ones (:func:`speculating`).

    The headline counts the answers at temperature 0 that equal the baseline's. The count decides nothing: correct servers differ at
    near-ties, and equal text says nothing about a distribution.
    """
    capabilities = captured.scoring  # of the server that scores, by the capability probe
    if capabilities is None or any(score.positions for scores in captured.scores.values() for score in scores):
        return None
    reason = _unscorable_reason(captured, capabilities)
    if not reason:
        return None
    equal = equal_answers(captured, captured.speculative)
    counted = f"{sum(equal)} of {len(equal)} answers equal the baseline's; " if equal else ""
    return speculating(captured, needs_rejections=needs_rejections) or say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{counted}no token can be scored: {reason}",
        evidence=_describe_control(captured),
        # ``unscorable`` names the features missing for scores; without it only the answers' token ids are.
        settle=(capabilities.scored_with or ROUTES) if capabilities.unscorable else "serve answers with token ids",
        cell="not scored",
        figures={"answers": float(len(equal)), "answers_equal": float(sum(equal))} if equal else {},
    )


def _unscorable_reason(captured: Captured, capabilities: Capabilities) -> str:
    """Return the reason against scoring; empty if tokens can be scored."""
    if capabilities.unscorable:
        return f"{_scoring_server(captured)} serves no log-probabilities of given tokens ({capabilities.unscorable})"
    answers = (*captured.baseline.answers, *captured.speculative.answers)
    if capabilities.lacks_ids and not any(choice.token_ids for answer in answers for choice in answer.choices):
        return "the engine gives these answers as text, without token ids"
    return ""


def _scoring_server(captured: Captured) -> str:
    return f"the {SCORER if SCORER in captured.capabilities else BASELINE}"


def equal_answers(captured: Captured, arm: Transcript) -> tuple[bool, ...]:
    """Return which of an arm's answers equal the baseline's at temperature 0.

    There is one item per request that both answered: True for equal token ids, reasoning and text.
    """
    greedy = {request.id for request in captured.workload.requests if request.greedy}
    baseline = {answer.key: answer.choice for answer in captured.baseline.answers if answer.ok and answer.request_id in greedy}
    return tuple(_is_equal(answer.choice, baseline[answer.key]) for answer in arm.answers if answer.ok and answer.key in baseline)


def _is_equal(choice: Choice, baseline: Choice) -> bool:
    return (choice.token_ids, choice.reasoning, choice.text) == (baseline.token_ids, baseline.reasoning, baseline.text)


def _describe_control(captured: Captured) -> tuple[str, ...]:
    equal = [same for control in captured.baseline_boots[1:] for same in equal_answers(captured, control)]
    return (f"{sum(equal)} of {len(equal)} of the control's answers equal the baseline's",) if equal else ()
