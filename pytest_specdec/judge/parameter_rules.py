"""The laws of sampling parameters: which tokens of an answer a request's fields forbid, given the baseline's scores of them.

A law speaks of an answer's own tokens and prefixes, so that two servers which part at a near-tie are both lawful. Bans, biases of 100
nats and allowed ids are exact. Greedy choices are held to the tolerance of scores, cuts of the distribution to the margins of
``stats/token_distribution.py``. A repetition penalty scales logits that scores do not give: it only ever lowers a token that was there
before (above 1), so that no other token may be passed over for one that is worse without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge.divergence import shared
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
"""Temperature up to which a token one tolerance below the best one never comes."""
_SHARP: Final = 1e-3
"""Nucleus of the most probable token alone."""
_UNSURE: Final = 0.8
"""Probability of the best token below which a draw would often take another."""
_NEUTRAL: Final[Mapping[str, tuple[JSON, ...]]] = {
    "top_k": (0, -1), "top_p": (1,), "min_p": (0,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LawToken:
    """One token of one answer under one law."""

    parameter: str
    """One parameter, or several that the law belongs to together."""
    answer: Answer
    index: int
    broken: bool
    binds: bool
    """Whether the plain choice would have broken the law, or a plain draw often."""
    warmed: bool = False
    """Whether a temperature other than 1 comes before the cut."""
    chance: float = 0.0
    """Probability of a broken law without any fault; 0 where the tolerance is hard."""
    detail: str = ""


def set_parameters(body: Mapping[str, JSON]) -> tuple[str, ...]:
    """Return the parameters that a body sets to more than their neutral value."""
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
    """The parameters that leave the best token only; empty where more may come."""
    cuts: tuple[str, ...]
    """Those that cut the distribution elsewhere."""
    repetition: float
    moves: tuple[str, ...]
    """Those that add to logits by less than a decisive amount."""

    def permits(self, token: int) -> bool:
        """Whether the exact laws permit a token."""
        return (self.allowed is None or token in self.allowed) and token not in self.banned and (not self.forced or token in self.forced)


def laws(body: Mapping[str, JSON]) -> Laws:
    """Return the laws of a body."""
    request_penalties, bias = penalties(body), penalties(body).bias
    listed = body.get("allowed_token_ids")
    greedy = _greedy(body)
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


def _greedy(body: Mapping[str, JSON]) -> tuple[str, ...]:
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
    """Empty where there are none."""
    prompt: tuple[int, ...]


def tokens(captured: Captured, arm: Transcript, tolerance: float, noise: float = NOISE, jumps: float = 0.0) -> tuple[LawToken, ...]:
    """Return every token of an arm's first choices under each law of its request, for scores with ``noise`` in nats.

    ``jumps`` is the rate of tokens beyond the ``tolerance`` without any fault.
    """
    law_tokens: list[LawToken] = []
    for each in _align_scores(captured, arm):
        law_tokens += _exact(each.own, each.answer, each.positions)
        if each.positions:
            law_tokens += _judge_choices(captured, each, tolerance, jumps)
            law_tokens += _cut(captured, each, noise)
    return tuple(law_tokens)


def _align_scores(captured: Captured, arm: Transcript) -> Iterator[_Scored]:
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


def _exact(own: Laws, answer: Answer, positions: Sequence[Position]) -> Iterator[LawToken]:
    """Give the tokens under allowed ids and decisive biases, which need no scores but to tell whether they bind."""
    for name, breaks in (("allowed_token_ids", _outside(own)), ("logit_bias", _find_banned(own))):
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
    """All ids but some."""

    ids: frozenset[int]

    def __contains__(self, token: int) -> bool:
        return token not in self.ids


def _outside(own: Laws) -> _Complement | None:
    return None if own.allowed is None else _Complement(own.allowed)


def _find_banned(own: Laws) -> _Complement | frozenset[int] | None:
    possible = own.forced if own.allowed is None else own.forced & own.allowed
    if possible:
        return _Complement(possible)
    return own.banned or None


def _judge_choices(captured: Captured, each: _Scored, tolerance: float, jumps: float) -> Iterator[LawToken]:
    """Give the tokens of a request that leaves the best one only; banned words hide which one that is."""
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
    """Whether a repetition penalty leaves the emitted token no gain on the rival: then the scores tell the better one."""
    if own.repetition == 1.0:
        return True
    # Above 1 it takes from tokens that were there before; below 1 it adds to them.
    return rival not in seen if own.repetition > 1.0 else emitted not in seen


def blame_parameters(own: Laws) -> str:
    """Return the parameters that a wrong choice among the best tokens is put down to."""
    if own.repetition != 1.0:
        return ", ".join((*own.moves, "repetition_penalty"))
    return ", ".join(own.moves or own.greedy[:1])


def _cut(captured: Captured, each: _Scored, noise: float) -> Iterator[LawToken]:
    """Give the tokens of a request that cuts the distribution, where nothing else moves it by what is not known."""
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
    """Return the first tokens at which answers under banned words and under repetition penalties leave the baseline's.

    After the same tokens both servers choose among the same ones. A likelier token than the baseline's was banned there, and a less likely
    one is the wrong choice. Under a repetition penalty a likelier token that was there before is what a server without one would choose.
    """
    requests = captured.workload.by_id
    answers, prompts = {answer.request_id: answer for answer in arm.answers}, _prompts(captured)
    departures = []
    for each in shared(captured, arm).divergences:
        own, answer = laws(requests[each.request_id].body), answers[each.request_id]
        if own.moves or own.banned or own.forced or own.allowed is not None or own.words == (own.repetition != 1.0):
            continue
        name = "bad_words" if own.words else "repetition_penalty"
        before = {*prompts.get(each.request_id, ()), *answer.choice.token_ids[: each.index]}
        again = each.gap < -tolerance and each.mine.token_id in before and each.theirs.token_id not in before and own.repetition > 1.0
        broken = abs(each.gap) > tolerance if own.words else again
        detail = f"id {each.mine.token_id} for the baseline's {each.theirs.token_id}, {abs(each.gap):.3g} nats apart"
        chance = jumps if own.words else 0.0
        departures.append(
            LawToken(parameter=name, answer=answer, index=each.index, broken=broken, binds=True, chance=chance, detail=detail)
        )
    return tuple(departures)


def _prompts(captured: Captured) -> dict[str, tuple[int, ...]]:
    scored = {score.request_id: score.prompt_token_ids for score in captured.scores.get(captured.baseline.arm, ())}
    return {answer.request_id: answer.prompt_token_ids or scored.get(answer.request_id, ()) for answer in captured.baseline.answers}


def suppressed_tokens(captured: Captured, tolerance: float) -> tuple[LawToken, ...]:
    """Return the baseline's own tokens under banned words and repetition penalties: they bind where a likelier token was passed over."""
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
