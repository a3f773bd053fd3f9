"""Thinking budgets: reasoning ends at its budget, and all tokens are the baseline's under the same one.

A thought is the reasoning of an answer under a budget; ``free`` is without one. A server counts its tokens of reasoning in the usage, with
marks and closing words or without them. vLLM counts none where the prompt opens the reasoning; the end is then learned from the baseline,
as the token at the same distance after every budget. So is the excess, how far a count may lie above the budget. The tokens that a budget
forces are not the model's choice: a place after the budget at which the baseline's own boots emit the same unlikely token counts as
certain. A budget that is ignored needs no count: the answer has the tokens of the one without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge import greedy
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.parameter_effects import ParameterEffect
from pytest_specdec.judge.prerequisites import describe_refusals, own_refusals, refusal, unscorable
from pytest_specdec.judge.state import select_requests
from pytest_specdec.judge.verdicts import number_of, restate, say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import Position
from pytest_specdec.model.verdict import Example, Outcome, Symptom

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Score, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["FIELD", "judge", "limits_reasoning"]

FIELD: Final = "thinking_token_budget"
OVERRUN: Final = f"{FIELD} is overrun"
EARLY: Final = f"{FIELD} ends the reasoning early"
_UNLIKELY: Final = 1.0
"""Nats below the best token from which on the baseline's own token at temperature 0 was forced."""
_BUDGETS: Final = 2
"""Different budgets that must end at a token before it counts as the end: after one budget any token may follow."""
_SHOWN: Final = 30


def limits_reasoning(request: Request) -> bool:
    """Return True if the request has a budget for its reasoning."""
    return isinstance(request.body.get(FIELD), int)


def _reasoning_budget(request: Request) -> int:
    """Return the budget of a request that has one, in tokens."""
    return int(str(request.body[FIELD]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """The token that budgets force, as learned from the baseline."""

    token: int
    distance: int
    """Tokens between a budget and it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thought:
    """The reasoning of one answer to a request with a budget."""

    answer: Answer
    budget: int
    tokens: int
    """Tokens of reasoning by the server's count, or up to the end that the baseline shows."""
    free_tokens: int | None
    """Those of the same arm's answer to the same prompt without a budget, at temperature 0; None without one."""

    @property
    def excess(self) -> int:
        """Tokens beyond the budget; below 0 for less."""
        return self.tokens - self.budget

    @property
    def is_shortened(self) -> bool:
        """True if the budget made the reasoning shorter."""
        return self.free_tokens is not None and self.tokens < self.free_tokens


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers to requests with a budget for reasoning tokens.

    After failures and refusals: REFUSED if only the variant refuses the budget, wrong endings, INCONCLUSIVE if no effect on the baseline
    shows or its reasoning is not counted. FAIL for reasoning that is longer than the budget by more than any of the baseline's, or for an
    answer that goes on as without a budget where it ends the baseline's reasoning. Then the tokens at temperature 0 are judged as
    everywhere (judge/greedy.py), forced ones apart. A pass is INCONCLUSIVE if no effect is known on the variant.
    """
    return (
        server_failure(captured)
        or refusal(captured)
        or _refuse_budgets(captured)
        or check_endings(captured)
        or _check_effect(captured)
        or _fail_overrun(captured)
        or _fail_ignored(captured)
        or unscorable(captured)
        or _judge_tokens(captured)
    )


def _thoughts(captured: Captured, arm: Transcript) -> list[_Thought]:
    """Return the counted reasoning of an arm's answers under a budget.

    Left out is reasoning that nothing counts, and that of sampled answers if it may have ended by itself.
    """
    requests, end = captured.workload.by_id, _learn_end(captured)
    counts = {answer.request_id: _free_tokens(answer, end) for answer in arm.answers if answer.ok}
    free_requests = (request for request in requests.values() if request.greedy and not limits_reasoning(request))
    free_by_prompt = {request.prompt_key: counts.get(request.id) for request in free_requests}
    thoughts = []
    for answer in arm.answers:
        request = requests.get(answer.request_id)
        if not answer.ok or request is None or not limits_reasoning(request):
            continue
        budget, tokens = _reasoning_budget(request), _reasoning_tokens(answer, end)
        if tokens is None or (not request.greedy and _may_end_by_itself(answer, budget, end)):
            continue
        # Sampled answers to one prompt differ anyway: only at temperature 0 does the budget make the difference.
        free_tokens = free_by_prompt.get(request.prompt_key) if request.greedy else None
        thoughts.append(_Thought(answer=answer, budget=budget, tokens=tokens, free_tokens=free_tokens))
    return thoughts


def _may_end_by_itself(answer: Answer, budget: int, end: _End | None) -> bool:
    """Return True if an answer's reasoning may have ended by itself."""
    # Without ``end`` the usage counts the reasoning; without text it has not ended.
    if end is None or not answer.choice.text:
        return False
    # The budget ended it if the token is where budgets force it; at another place it may be a word of the text.
    forced_place = budget + end.distance
    return answer.choice.token_ids[forced_place : forced_place + 1] != (end.token,)


def _reasoning_tokens(answer: Answer, end: _End | None) -> int | None:
    """Return the tokens of an answer's reasoning, None if unknown.

    They are those of the usage, or with ``end`` those up to that token; all of an answer that was cut off before any text.
    """
    if end is None:
        return None if answer.usage is None else answer.usage.reasoning_tokens
    choice, ids = answer.choice, answer.choice.token_ids
    if end.token in ids:
        return ids.index(end.token) + 1
    return len(ids) if ids and choice.reasoning and not choice.text else None


def _free_tokens(answer: Answer, end: _End | None) -> int | None:
    """Return the tokens of reasoning without a budget, None if unknown.

    ``answer`` is one without a budget. Its reasoning may end with another token than the forced ``end``. All its tokens are then returned,
    the most that its reasoning can have.
    """
    tokens = _reasoning_tokens(answer, end)
    if tokens is None and end is not None:
        return len(answer.choice.token_ids)
    return tokens  # None if the usage has no count, or no end could be learned


def _free_ids(captured: Captured, arm: Transcript) -> dict[str, tuple[int, ...]]:
    """Return the tokens answered at temperature 0 without a budget, by prompt."""
    ids = {answer.request_id: answer.choice.token_ids for answer in arm.answers if answer.ok}
    free = (request for request in captured.workload.requests if request.greedy and not limits_reasoning(request))
    return {request.prompt_key: ids[request.id] for request in free if request.id in ids}


def _learn_end(captured: Captured) -> _End | None:
    """Return the token at which budgets end the baseline's reasoning, and where.

    It is the first one at the same distance after all budgets, and nowhere before that. Only answers at temperature 0 that a budget changes
    are looked at, of two different budgets or more. None if the usage counts reasoning tokens, which is surer, or without such a token.
    """
    requests, answers = captured.workload.by_id, {answer.request_id: answer for answer in captured.baseline.answers if answer.ok}
    if any(answer.usage is not None and answer.usage.reasoning_tokens for answer in answers.values()):
        return None
    free = _free_ids(captured, captured.baseline)
    budgeted = [
        (_reasoning_budget(requests[id_]), answer.choice.token_ids)
        for id_, answer in answers.items()
        if requests[id_].greedy and limits_reasoning(requests[id_]) and answer.choice.token_ids != free.get(requests[id_].prompt_key)
    ]
    if len({budget for budget, _ in budgeted}) < _BUDGETS:
        return None
    shortest_rest = min(len(ids) - budget for budget, ids in budgeted)
    for distance in range(shortest_rest):
        tokens = {ids[budget + distance] for budget, ids in budgeted}
        if len(tokens) == 1 and all(tokens.isdisjoint(ids[: budget + distance]) for budget, ids in budgeted):
            return _End(token=tokens.pop(), distance=distance)
    return None


def _learn_excess(captured: Captured) -> int | None:
    """Return the most tokens of the baseline's reasoning beyond its budget.

    Only budgets that shortened its reasoning count: others show no limit. None without any; 0 if none is exceeded.
    """
    shortened = [thought for arm in captured.baseline_boots for thought in _thoughts(captured, arm) if thought.is_shortened]
    return max(0, *(thought.excess for thought in shortened)) if shortened else None


def _refuse_budgets(captured: Captured) -> Verdict | None:
    """Return REFUSED if the variant refuses budgets that the baseline takes, else None."""
    refused = [answer for answer in own_refusals(captured) if limits_reasoning(captured.workload.by_id[answer.request_id])]
    if not refused:
        return None
    # None if no budget shortens the baseline's reasoning.
    effect = ParameterEffect.UNKNOWN if _learn_excess(captured) is None else ParameterEffect.HONOURED
    return say(
        captured,
        Outcome.REFUSED,
        f"{FIELD} refused with a 4xx in {len(refused)} requests that the baseline answers",
        evidence=describe_refusals(refused),
        cell=FIELD,
        figures={"refused_requests": float(len(refused))},
        parameters=_effects(captured, effect, ParameterEffect.REFUSED),
    )


def _check_effect(captured: Captured) -> Verdict | None:
    """Return INCONCLUSIVE if budgets have no effect on the baseline, else None.

    They have none if no boot has shorter reasoning with a budget than without. Nor do they if fewer answers are shortened than reason
    beyond their budget, exactly as long as without it: noise may shorten some.
    """
    thoughts = _thoughts(captured, captured.baseline)
    beyond = sum(thought.tokens == thought.free_tokens and thought.excess > 0 for thought in thoughts)
    is_ever_shortened = _learn_excess(captured) is not None
    if is_ever_shortened and beyond <= sum(thought.is_shortened for thought in thoughts):
        return None
    headline = (
        f"{FIELD} has no effect on the baseline: {beyond} of {len(thoughts)} answers reason beyond it as without it"
        if beyond
        else f"{FIELD} shortens none of the baseline's reasoning, counted in {len(thoughts)} answers"
    )
    effect = ParameterEffect.IGNORED if beyond else ParameterEffect.UNKNOWN
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        headline,
        settle=f"an engine that knows {FIELD} and counts reasoning tokens, and a model that reasons for more than a dozen",
        cell="no effect",
        figures={"counted_answers": float(len(thoughts))},
        parameters=_effects(captured, effect, ParameterEffect.UNKNOWN),
    )


def _fail_overrun(captured: Captured) -> Verdict | None:
    """Return FAIL for reasoning beyond its budget; None without.

    The limit is the most tokens by which the baseline exceeds a budget that shortens its reasoning. An answer counts only if every boot of
    the baseline keeps within it for the same request: reasoning that no budget shortens may exceed it on any server.
    """
    limit = _learn_excess(captured) or 0  # not None here: :func:`_check_effect` has shown that budgets shorten
    boots = [_thoughts(captured, arm) for arm in captured.baseline_boots]
    within = [{thought.answer.key for thought in thoughts if thought.excess <= limit} for thoughts in boots]
    judged = [thought for thought in _thoughts(captured, captured.speculative) if all(thought.answer.key in keys for keys in within)]
    over = [thought for thought in judged if thought.excess > limit]
    if not over:
        return None
    worst = max(over, key=lambda thought: thought.excess)
    lines = [f"{t.answer.request_id}: {t.tokens} tokens of reasoning for a budget of {t.budget}" for t in over]
    return say(
        captured,
        Outcome.FAIL,
        f"{OVERRUN}: {len(over)} of {len(judged)} answers, by up to {number_of(worst.excess - limit, 'token')} more than the baseline's",
        short=(f"worst        {lines[over.index(worst)]}",),
        evidence=(*lines[:_SHOWN], f"the baseline's count exceeds a budget by {limit} at most"),
        cell=number_of(len(over), "overrun"),
        names=OVERRUN,
        example=Example(symptom=Symptom.ANSWER, request_id=worst.answer.request_id, pass_index=worst.answer.pass_index),
        figures={"overruns": float(len(over)), "answers": float(len(judged)), "most_tokens_over": float(worst.excess - limit)},
        parameters=_effects(captured, ParameterEffect.HONOURED, ParameterEffect.IGNORED),
    )


def _fail_ignored(captured: Captured) -> Verdict | None:
    """Return FAIL for answers equal to those without a budget; None without.

    Judged are answers to requests whose budget shortens the reasoning on every boot of the baseline. The variant ignores the budget, and so
    overruns it, if its answer equals its own without one and begins like each boot's, through the first token that the budget changes
    there: it had to change this one too.
    """
    requests, free = captured.workload.by_id, _free_ids(captured, captured.speculative)
    boots = [_free_prefixes(captured, arm) for arm in captured.baseline_boots]
    judged = [answer for answer in captured.speculative.answers if answer.ok and all(answer.key in prefixes for prefixes in boots)]
    unchanged = [
        answer
        for answer in judged
        if (ids := answer.choice.token_ids) == free.get(requests[answer.request_id].prompt_key)
        if all(ids[: len(prefixes[answer.key])] == prefixes[answer.key] for prefixes in boots)
    ]
    if not unchanged:
        return None
    lines = [f"{a.request_id}: the {len(a.choice.token_ids)} tokens of the answer without a budget" for a in unchanged]
    return say(
        captured,
        Outcome.FAIL,
        f"{OVERRUN}: {len(unchanged)} of {len(judged)} answers whose reasoning it ends on the baseline are the same as without it",
        short=(f"first        {lines[0]}",),
        evidence=lines[:_SHOWN],
        cell=number_of(len(unchanged), "overrun"),
        names=OVERRUN,
        example=Example(symptom=Symptom.ANSWER, request_id=unchanged[0].request_id, pass_index=unchanged[0].pass_index),
        figures={"overruns": float(len(unchanged)), "answers": float(len(judged))},
        parameters=_effects(captured, ParameterEffect.HONOURED, ParameterEffect.IGNORED),
    )


def _free_prefixes(captured: Captured, arm: Transcript) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the tokens without a budget, through the first that a budget changes.

    They are by the key of the arm's answer to the same prompt whose reasoning the budget shortens.
    """
    requests, free = captured.workload.by_id, _free_ids(captured, arm)
    prefixes = {}
    for thought in _thoughts(captured, arm):
        free_ids = free.get(requests[thought.answer.request_id].prompt_key, ())
        pairs = enumerate(zip(free_ids, thought.answer.choice.token_ids, strict=False))
        changed = next((index for index, (free_token, token) in pairs if free_token != token), None)
        # A budget of n tokens cannot change the first n: answers that differ among these do so by noise.
        if thought.is_shortened and changed is not None and changed >= thought.budget:
            prefixes[thought.answer.key] = free_ids[: changed + 1]
    return prefixes


def _judge_tokens(captured: Captured) -> Verdict:
    """Return greedy's verdict on the tokens, forced ones counted as certain.

    Tokens are judged at temperature 0 alone. A failure by wrong tokens is named an early end if some reasoning ends below its budget and
    the baseline's goes on. A pass becomes INCONCLUSIVE if no budget is known to shorten the arm's reasoning.
    """
    greedy_part = select_requests(captured, [request.id for request in captured.workload.requests if request.greedy])
    verdict = greedy.judge_scores(_mark_forced_tokens(greedy_part))
    thoughts = _thoughts(captured, captured.speculative)
    by_tokens = verdict.outcome is Outcome.FAIL and greedy.is_by_wrong_tokens(verdict)
    if by_tokens and (early := _find_early(captured, thoughts)):
        headline = f"{EARLY}: {len(early)} of {len(thoughts)} answers; {verdict.headline}"
        lines = [f"{t.answer.request_id}: {t.tokens} tokens of reasoning for a budget of {t.budget}" for t in early[:_SHOWN]]
        return restate(
            captured,
            verdict,
            headline=headline,
            names=EARLY,
            short=(f"first        {lines[0]}", *verdict.short),
            evidence=(*lines, *verdict.evidence),
        )
    if verdict.outcome is not Outcome.PASS:
        return restate(captured, verdict)
    shortened = sum(thought.is_shortened for thought in thoughts)
    if not shortened:
        return _leave_open(captured, verdict, len(thoughts))
    return restate(  # :func:`_fail_overrun` comes first: none ends later than the baseline's
        captured,
        verdict,
        headline=f"{shortened} of {len(thoughts)} budgets end the reasoning, none later than the baseline's; {verdict.headline}",
        figures={**verdict.figures, "shortened_answers": float(shortened)},
        parameters=_effects(captured, ParameterEffect.HONOURED, ParameterEffect.HONOURED),
    )


def _leave_open(captured: Captured, verdict: Verdict, counted: int) -> Verdict:
    """Return INCONCLUSIVE: the tokens are right, but no reasoning is known to be shortened."""
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{FIELD} is not seen to shorten {captured.arm}'s reasoning, counted in {counted} answers; {verdict.headline}",
        evidence=verdict.evidence,
        settle="a server that counts reasoning tokens as the baseline does",
        cell="no effect",
        figures={**verdict.figures, "counted_answers": float(counted), "shortened_answers": 0.0},
        parameters=_effects(captured, ParameterEffect.HONOURED, ParameterEffect.UNKNOWN),
    )


def _find_early(captured: Captured, thoughts: Sequence[_Thought]) -> list[_Thought]:
    """Return the reasoning that ends below its budget where the baseline's goes on, after the same tokens."""
    baseline = {thought.answer.key: thought for thought in _thoughts(captured, captured.baseline)}
    pairs = ((thought, baseline[thought.answer.key]) for thought in thoughts if thought.answer.key in baseline)
    return [thought for thought, peer in pairs if thought.is_shortened and thought.tokens < peer.tokens and thought.excess < 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForcedToken:
    """A token that every budget forces at one place."""

    place: int
    """Tokens between the budget and it."""
    token_id: int


def _mark_forced_tokens(captured: Captured) -> Captured:
    """Return ``captured`` with forced tokens scored as certain, in repeats too."""
    forced, requests = _find_forced_tokens(captured), captured.workload.by_id
    scores = {
        arm: tuple(_mark_forced(score, requests.get(score.request_id), forced) for score in of_arm)
        for arm, of_arm in captured.scores.items()
    }
    return replace(captured, scores=scores, repeats=tuple(map(_mark_forced_tokens, captured.repeats)))


def _find_forced_tokens(captured: Captured) -> frozenset[_ForcedToken]:
    """Return the tokens that budgets force.

    They are the unlikely tokens from the budget on in answers of the baseline's boots that a budget shortens.
    """
    forced: set[_ForcedToken] = set()
    for arm in captured.baseline_boots:
        scores = {score.key: score.positions for score in captured.scores.get(arm.arm, ())}
        for thought in _thoughts(captured, arm):
            if thought.is_shortened:
                forced.update(_find_unlikely(scores.get(thought.answer.key, ()), thought.budget))
    return frozenset(forced)


def _find_unlikely(positions: Sequence[Position], budget: int) -> Iterator[_ForcedToken]:
    """Yield the unlikely or unlisted tokens after ``budget`` tokens."""
    for place, position in enumerate(positions[budget:]):
        if position.top_logprobs and (isnan(position.logprob) or position.top_logprobs[0] - position.logprob > _UNLIKELY):
            yield _ForcedToken(place=place, token_id=position.token_id)


def _mark_forced(score: Score, request: Request | None, forced: frozenset[_ForcedToken]) -> Score:
    """Return a score with the tokens that the request's budget forces as certain.

    ``forced`` has these tokens, by their distance from the budget. Reasoning begins with the first token of an answer.
    """
    if request is None or not limits_reasoning(request):
        return score
    budget = _reasoning_budget(request)
    positions = tuple(
        _make_certain(position) if _ForcedToken(place=index - budget, token_id=position.token_id) in forced else position
        for index, position in enumerate(score.positions)
    )
    return replace(score, positions=positions)


def _make_certain(position: Position) -> Position:
    return Position(token_id=position.token_id, logprob=0.0, top_ids=(position.token_id,), top_logprobs=(0.0,))


def _effects(captured: Captured, baseline: ParameterEffect, judged: ParameterEffect) -> Mapping[str, Mapping[str, str]]:
    """Return the effects by arm, as a verdict stores them."""
    return {BASELINE: {FIELD: baseline.value}, captured.arm: {FIELD: judged.value}}
