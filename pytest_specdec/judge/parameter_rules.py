"""The laws of sampling parameters: rules by which a request's fields forbid tokens, given the baseline's scores of the answer.

A law is about an answer's own tokens and prefixes, so that two servers which part at a near-tie may both obey it. Bans, biases of 100
nats and allowed ids are exact. Greedy choices are held to the tolerance of scores, cuts of the distribution to the margins of
``stats/token_distribution.py``. A repetition penalty scales logits, which scores do not give. But above 1 it only lowers tokens that
occurred before, so that no new token may be passed over for one with a lower score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge.divergence import compare_prefixes
from pytest_specdec.judge.penalised_scores import penalise
from pytest_specdec.stats.request_params import NONE, penalties, sampling_params
from pytest_specdec.stats.token_distribution import NOISE, raw_distribution, requested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position, Transcript
    from pytest_specdec.model.workload import JSON

__all__ = ["PARAMETERS", "LawToken", "Laws", "first_departures", "laws", "set_parameters", "suppressed_tokens", "tokens"]

PARAMETERS: Final = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("bad_words", "allowed_token_ids"),
)
"""Those with a law, in the order of the matrix."""
_DECISIVE: Final = 50.0
"""Nats of a bias that forces or bans a token whatever the model says."""
_COLD: Final = 0.02
"""Temperature up to which a token one tolerance below the best one is never drawn."""
_SHARP: Final = 1e-3
"""Value of top_p up to which the nucleus is the most probable token alone."""
_UNSURE: Final = 0.8
"""Probability of the best token below which a draw would often take another."""
_NEUTRAL: Final[Mapping[str, tuple[JSON, ...]]] = {
    "top_k": (0, -1), "top_p": (1,), "min_p": (0,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LawToken:
    """One token of one answer, judged by one law."""

    parameter: str
    """The parameter of the law, or several, with commas, that share one law."""
    answer: Answer
    index: int
    broken: bool
    binds: bool
    """Whether the law makes a difference here: the choice without the parameter would have broken it, or a draw often would."""
    warmed: bool = False
    """Whether a temperature other than 1 is applied before the cut."""
    chance: float = 0.0
    """Probability that the law is broken without a fault; 0 if it never is."""
    detail: str = ""


def set_parameters(body: Mapping[str, JSON]) -> tuple[str, ...]:
    """Return the parameters that a body sets to non-neutral values."""
    return tuple(name for name in PARAMETERS if body.get(name) is not None and body[name] not in _NEUTRAL.get(name, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """The laws of one request."""

    allowed: frozenset[int] | None
    """The ids that ``allowed_token_ids`` lists; None for all."""
    banned: frozenset[int]
    """The ids of a decisive bias against them."""
    forced: frozenset[int]
    words: bool
    """Whether the request has bad_words; a judge has no tokenizer, so their token ids are unknown."""
    greedy: tuple[str, ...]
    """The parameters that allow the best token only; empty if more than one may be drawn."""
    cuts: tuple[str, ...]
    """The parameters that cut the distribution; empty if only the best token is allowed."""
    repetition: float
    moves: tuple[str, ...]
    """The parameters that change logits, but by too little to force or ban a token."""

    def permits(self, token: int) -> bool:
        """Return True if allowed ids and decisive biases permit a token."""
        return (self.allowed is None or token in self.allowed) and token not in self.banned and (not self.forced or token in self.forced)


def laws(body: Mapping[str, JSON]) -> Laws:
    """Return the laws that follow from a request's body."""
    request_penalties, bias = penalties(body), penalties(body).bias
    listed = body.get("allowed_token_ids")
    greedy = _greedy_parameters(body)
    small = any(0 < abs(value) < _DECISIVE for value in bias.values())
    return Laws(
        allowed=frozenset(i for i in listed if isinstance(i, int)) if isinstance(listed, (list, tuple)) else None,
        banned=frozenset(token for token, value in bias.items() if value <= -_DECISIVE),
        forced=frozenset(token for token, value in bias.items() if value >= _DECISIVE),
        words=bool(body.get("bad_words")),
        greedy=greedy,
        cuts=() if greedy else tuple(name for name in ("top_k", "top_p", "min_p") if name in set_parameters(body)),
        repetition=request_penalties.repetition,
        moves=(
            *(("presence_penalty",) if request_penalties.presence else ()),
            *(("frequency_penalty",) if request_penalties.frequency else ()),
            *(("logit_bias",) if small else ()),
        ),
    )


def _greedy_parameters(body: Mapping[str, JSON]) -> tuple[str, ...]:
    """Return the parameters that alone allow only the best token."""
    temperature, top_p, min_p = (_number(body.get(name), default) for name, default in (("temperature", 1.0), ("top_p", 1.0), ("min_p", 0)))
    by_name = {"temperature": temperature <= _COLD, "top_k": body.get("top_k") == 1, "top_p": top_p <= _SHARP, "min_p": min_p >= 1.0}
    return tuple(name for name, alone in by_name.items() if alone)


def _number(value: JSON, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """One answer with its request, its laws and its scores."""

    body: Mapping[str, JSON]
    own: Laws
    answer: Answer
    positions: tuple[Position, ...]
    """One per token; empty unless every token has a score."""
    prompt: tuple[int, ...]


def tokens(captured: Captured, arm: Transcript, tolerance: float, noise: float = NOISE, jumps: float = 0.0) -> tuple[LawToken, ...]:
    """Judge every token of an arm by its request's laws.

    Only first choices are judged, since no others are scored. ``noise`` is that of the scores, in nats; ``jumps`` is the rate at which
    tokens exceed the ``tolerance`` without a fault.
    """
    law_tokens: list[LawToken] = []
    for each in _align_scores(captured, arm):
        law_tokens += _judge_exact(each.own, each.answer, each.positions)
        if each.positions:
            law_tokens += _judge_choices(captured, each, tolerance, jumps)
            law_tokens += _judge_cuts(captured, each, noise)
    return tuple(law_tokens)


def _align_scores(captured: Captured, arm: Transcript) -> Iterator[_Scored]:
    """Yield the answers with token ids, with their laws and scores.

    Scores that do not cover every token are dropped.
    """
    bodies = {request.id: request.body for request in captured.workload.requests}
    scores = {score.key: score for score in captured.scores.get(arm.arm, ())}
    for answer in arm.answers:
        body, score = bodies.get(answer.request_id), scores.get(answer.key)
        if body is None or not answer.ok or not answer.choice.token_ids:
            continue
        whole = score is not None and len(score.positions) == len(answer.choice.token_ids)
        positions = score.positions if score is not None and whole else ()
        prompt = answer.prompt_token_ids or (score.prompt_token_ids if score is not None else ())
        yield _Scored(body=body, own=laws(body), answer=answer, positions=positions, prompt=prompt)


def _judge_exact(own: Laws, answer: Answer, positions: Sequence[Position]) -> Iterator[LawToken]:
    """Yield an answer's tokens under allowed ids and decisive biases.

    These laws need no scores. Scores only show whether a law binds: it does if it forbids the model's best token.
    """
    for name, breaks in (("allowed_token_ids", _find_disallowed(own)), ("logit_bias", _find_banned(own))):
        for index, token in enumerate(answer.choice.token_ids if breaks else ()):
            best = positions[index].top_ids[:1] if positions else ()
            yield LawToken(
                parameter=name,
                answer=answer,
                index=index,
                broken=token in breaks if breaks is not None else False,
                binds=bool(best) and breaks is not None and best[0] in breaks,
                detail=f"id {token}",
            )


@dataclass(frozen=True, slots=True)
class _Complement:
    """The set of all ids except ``ids``."""

    ids: frozenset[int]

    def __contains__(self, token: int) -> bool:
        return token not in self.ids


def _find_disallowed(own: Laws) -> _Complement | None:
    return None if own.allowed is None else _Complement(own.allowed)


def _find_banned(own: Laws) -> _Complement | frozenset[int] | None:
    """Return the ids that decisive biases forbid; None if there are none.

    Forced ids forbid all others, unless none of them is among the allowed ids.
    """
    possible = own.forced if own.allowed is None else own.forced & own.allowed
    if possible:
        return _Complement(possible)
    return own.banned or None


def _judge_choices(captured: Captured, each: _Scored, tolerance: float, jumps: float) -> Iterator[LawToken]:
    """Yield the tokens of a request that allows only the best one.

    A token is wrong if a permitted rival, after biases and penalties, is better by more than the tolerance. Nothing is yielded under
    bad_words, since their unknown ids may forbid the best token, nor if a penalty counts a prompt without ids. The law binds if biases and
    penalties change the best token or, without any, if a draw would often take another one.
    """
    own, answer, positions, prompt = each.own, each.answer, each.positions, each.prompt
    window, request_penalties = captured.penalty_window, penalties(each.body)
    if not own.greedy or own.words or (request_penalties.count_prompt(window) and not prompt):
        return
    moved = penalise(positions, replace(request_penalties, repetition=1.0), window, prompt)
    seen = set(prompt) if window.repetition_prompt else set()
    names = blame_parameters(own)
    for index, (position, raw) in enumerate(zip(moved, positions, strict=True)):
        rivals = [
            logprob
            for token, logprob in zip(position.top_ids, position.top_logprobs, strict=True)
            if own.permits(token) and _comparable(own, token, position.token_id, seen)
        ]
        gap = max(rivals, default=-math.inf) - position.logprob
        best = raw.top_ids[0] if raw.top_ids else raw.token_id
        yield LawToken(
            parameter=names,
            answer=answer,
            index=index,
            broken=gap > tolerance and own.permits(position.token_id) and not math.isnan(gap),
            binds=best != position.token_id if own.moves or own.repetition != 1.0 else raw.top_logprobs[0] < math.log(_UNSURE),
            chance=jumps,
            detail=f"id {position.token_id}, {gap:.3g} nats below the best one",
        )
        seen.add(position.token_id)


def _comparable(own: Laws, rival: int, emitted: int, seen: set[int]) -> bool:
    """Return True if a repetition penalty cannot favour the emitted token over the rival.

    Only then do the scores, which lack that penalty, show that the rival is better.
    """
    if own.repetition == 1.0:
        return True
    # Above 1 it lowers tokens that occurred before; below 1 it raises them.
    return rival not in seen if own.repetition > 1.0 else emitted not in seen


def blame_parameters(own: Laws) -> str:
    """Return the parameters blamed for a choice below the best token.

    They are those that change logits; without any, the first that allows the best token only.
    """
    if own.repetition != 1.0:
        return ", ".join((*own.moves, "repetition_penalty"))
    return ", ".join(own.moves or own.greedy[:1])


def _judge_cuts(captured: Captured, each: _Scored, noise: float) -> Iterator[LawToken]:
    """Yield the tokens of a request that cuts the distribution.

    Nothing is yielded if the request also has penalties, biases or fields whose effect on the distribution is not modelled.
    """
    own, answer, positions = each.own, each.answer, each.positions
    params = sampling_params(each.body)
    if not own.cuts or params.unmodelled or params.penalties != NONE:
        return
    raw = raw_distribution(positions, captured.workload.top_tokens, captured.vocabulary)
    distribution = requested(raw, params.processing(len(positions)), noise)
    names = ", ".join(own.cuts)
    for index, outcome in enumerate(distribution.outcome.tolist()):
        yield LawToken(
            parameter=names,
            answer=answer,
            index=index,
            broken=bool(distribution.violation[index, outcome]),
            binds=bool(distribution.raw[index][distribution.violation[index]].sum() > 1.0 - _UNSURE),
            warmed=params.temperature != 1.0,
            chance=float(distribution.violation_bound[index]),
            detail=f"id {positions[index].token_id}",
        )


def first_departures(captured: Captured, arm: Transcript, tolerance: float, jumps: float = 0.0) -> tuple[LawToken, ...]:
    """Return first differences from the baseline under bad_words or repetition penalties.

    After the same tokens both servers choose from the same distribution. Under bad_words, a token likelier than the baseline's was banned
    there, and a less likely one is the wrong choice: both break the law. Under a repetition penalty above 1, only a likelier token breaks
    it that occurred before, if the baseline's did not: a server without the penalty would choose it. Answers to requests with both, or
    with other parameters that change logits or restrict the ids, are left out.
    """
    requests = captured.workload.by_id
    answers, prompts = {answer.request_id: answer for answer in arm.answers}, _prompts(captured)
    departures = []
    for each in compare_prefixes(captured, arm).divergences:
        own, answer = laws(requests[each.request_id].body), answers[each.request_id]
        if own.moves or own.banned or own.forced or own.allowed is not None or own.words == (own.repetition != 1.0):
            continue
        name = "bad_words" if own.words else "repetition_penalty"
        before = {*prompts.get(each.request_id, ()), *answer.choice.token_ids[: each.index]}
        again = each.gap < -tolerance and each.token.token_id in before and each.baseline.token_id not in before and own.repetition > 1.0
        broken = abs(each.gap) > tolerance if own.words else again
        detail = f"id {each.token.token_id} for the baseline's {each.baseline.token_id}, {abs(each.gap):.3g} nats apart"
        chance = jumps if own.words else 0.0
        departures.append(
            LawToken(parameter=name, answer=answer, index=each.index, broken=broken, binds=True, chance=chance, detail=detail)
        )
    return tuple(departures)


def _prompts(captured: Captured) -> dict[str, tuple[int, ...]]:
    scored = {score.request_id: score.prompt_token_ids for score in captured.scores.get(captured.baseline.arm, ())}
    return {answer.request_id: answer.prompt_token_ids or scored.get(answer.request_id, ()) for answer in captured.baseline.answers}


def suppressed_tokens(captured: Captured, tolerance: float) -> tuple[LawToken, ...]:
    """Return the baseline's own tokens under bad_words or repetition penalties.

    None breaks its law. They show at which tokens these laws bind: the baseline passed over a token likelier by more than the tolerance.
    Requests with both, or with other parameters that change logits, are left out.
    """
    requests = captured.workload.by_id
    scores = {score.key: score.positions for score in captured.scores.get(captured.baseline.arm, ())}
    suppressed = []
    for answer in captured.baseline.answers:
        own = laws(requests[answer.request_id].body) if answer.request_id in requests else laws({})
        if not own.greedy or own.moves or own.banned or own.forced or own.words == (own.repetition != 1.0):
            continue
        name = "bad_words" if own.words else "repetition_penalty"
        for index, position in enumerate(scores.get(answer.key, ())):
            better = any(own.permits(token) for token in position.top_ids[:1] if token != position.token_id)
            binds = better and max(position.top_logprobs) - position.logprob > tolerance
            suppressed.append(LawToken(parameter=name, answer=answer, index=index, broken=False, binds=binds))
    return tuple(suppressed)
