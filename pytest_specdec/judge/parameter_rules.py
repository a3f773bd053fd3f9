"""The rules of sampling parameters: how a request's fields forbid tokens, given the baseline's scores of the answer.

A rule is about an answer's own tokens and prefixes, so that two servers which part at a near-tie may both obey it. It binds at a token
where it changes the choice. Decisive biases, of 50 nats or more, and allowed ids are exact: no correct server breaks them. Greedy choices
are held to the tolerance of scores, cuts (top_k, top_p, min_p) to the margins of ``stats/token_distribution.py``. A repetition penalty
scales logits, which scores do not give. But above 1 it only lowers tokens that occurred before, so that no new token may be passed over for
one with a lower score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge.divergence import compare_prefixes
from pytest_specdec.judge.penalised_scores import penalise, upper_bound
from pytest_specdec.stats.raw_distribution import raw_distribution
from pytest_specdec.stats.request_params import NONE, penalties, sampling_params
from pytest_specdec.stats.token_distribution import NOISE, requested

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pytest_specdec.judge.divergence import Divergence
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position, Transcript
    from pytest_specdec.model.workload import JSON

__all__ = [
    "PARAMETERS",
    "CheckedToken",
    "ParameterRules",
    "check_binding",
    "check_departures",
    "check_tokens",
    "parameter_rules",
    "set_parameters",
]

PARAMETERS: Final = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("bad_words", "allowed_token_ids"),
)
"""Parameters with a rule, in the order of the report's matrix."""
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
"""Values by which a parameter changes nothing; the other parameters have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedToken:
    """One token of one answer, judged by one rule."""

    parameter: str
    """The parameter of the rule, or several, with commas, that share one rule."""
    answer: Answer
    index: int
    broken: bool
    binds: bool
    """Whether the rule makes a difference here: the choice without the parameter would have broken it, or a draw often would."""
    warmed: bool = False
    """Whether a temperature other than 1 is applied before the cut."""
    chance: float = 0.0
    """Probability that the rule is broken without a fault; 0 if it never is, 1 if nothing shows it."""
    detail: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether its rule is never broken without a fault, so that one broken token is proof."""
        return not self.chance

    @property
    def is_unmeasured(self) -> bool:
        """Whether nothing shows how often its rule is broken without a fault."""
        return self.chance >= 1.0


def set_parameters(body: Mapping[str, JSON]) -> tuple[str, ...]:
    """Return the parameters that a body sets to non-neutral values."""
    return tuple(name for name in PARAMETERS if body.get(name) is not None and body[name] not in _NEUTRAL.get(name, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRules:
    """The rules of one request."""

    allowed: frozenset[int] | None
    """The ids that ``allowed_token_ids`` lists; None for all."""
    banned: frozenset[int]
    """The ids of a decisive bias against them."""
    forced: frozenset[int]
    """The ids of a decisive bias for them: all others are then forbidden."""
    has_bad_words: bool
    """Whether the request has bad_words; a judge has no tokenizer, so their token ids are unknown."""
    greedy: tuple[str, ...]
    """The parameters that allow the best token only; empty if more than one may be drawn."""
    cuts: tuple[str, ...]
    """The parameters that cut the distribution; empty if only the best token is allowed."""
    repetition: float
    """The repetition penalty; 1 for none."""
    moves: tuple[str, ...]
    """The parameters that change logits, but by too little to force or ban a token."""

    def permits(self, token: int) -> bool:
        """Return True if allowed ids and decisive biases permit a token."""
        return (self.allowed is None or token in self.allowed) and token not in self.banned and (not self.forced or token in self.forced)

    @property
    def unscored_parameter(self) -> str:
        """``bad_words`` or ``repetition_penalty``, whose effect scores do not show, if only that one changes the choice.

        Empty if neither or both are set, or if biases or other penalties change the choice too.
        """
        has_repetition = self.repetition != 1.0
        if self.moves or self.banned or self.forced or self.has_bad_words == has_repetition:
            return ""
        return "bad_words" if self.has_bad_words else "repetition_penalty"


def parameter_rules(body: Mapping[str, JSON]) -> ParameterRules:
    """Return the rules set by the sampling parameters of a request's body."""
    request_penalties, bias = penalties(body), penalties(body).bias
    listed = body.get("allowed_token_ids")
    greedy = _greedy_parameters(body)
    has_small_bias = any(0 < abs(value) < _DECISIVE for value in bias.values())
    return ParameterRules(
        allowed=frozenset(i for i in listed if isinstance(i, int)) if isinstance(listed, (list, tuple)) else None,
        banned=frozenset(token for token, value in bias.items() if value <= -_DECISIVE),
        forced=frozenset(token for token, value in bias.items() if value >= _DECISIVE),
        has_bad_words=bool(body.get("bad_words")),
        greedy=greedy,
        cuts=() if greedy else tuple(name for name in ("top_k", "top_p", "min_p") if name in set_parameters(body)),
        repetition=request_penalties.repetition,
        # These change logits without forcing or banning a token.
        moves=(
            *(("presence_penalty",) if request_penalties.presence else ()),
            *(("frequency_penalty",) if request_penalties.frequency else ()),
            *(("logit_bias",) if has_small_bias else ()),
        ),
    )


def _greedy_parameters(body: Mapping[str, JSON]) -> tuple[str, ...]:
    """Return the parameters of a body that allow only the best token, each alone."""
    temperature, top_p, min_p = (_number(body.get(name), default) for name, default in (("temperature", 1.0), ("top_p", 1.0), ("min_p", 0)))
    by_name = {"temperature": temperature <= _COLD, "top_k": body.get("top_k") == 1, "top_p": top_p <= _SHARP, "min_p": min_p >= 1.0}
    return tuple(name for name, alone in by_name.items() if alone)


def _number(value: JSON, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuledAnswer:
    """One answer with its request, its rules and its scores."""

    body: Mapping[str, JSON]
    rules: ParameterRules
    answer: Answer
    positions: tuple[Position, ...]
    """One per token; empty unless every token has a score."""
    prompt: tuple[int, ...]
    """Token ids of the prompt; empty if unknown."""


def check_tokens(
    captured: Captured, arm: Transcript, tolerance: float, noise: float = NOISE, jumps: float = 0.0
) -> tuple[CheckedToken, ...]:
    """Return an arm's tokens, each checked by its request's rules.

    A token comes once for each rule it is under, not at all without one. Only first choices are judged, since no others are scored.
    ``tolerance`` is the largest gap below the best token explained by noise, and ``noise`` that of the scores, both in nats; ``jumps`` is
    the rate at which tokens exceed the tolerance without a fault.
    """
    checked: list[CheckedToken] = []
    for scored in _align_scores(captured, arm):
        checked += _judge_exact(scored.rules, scored.answer, scored.positions)
        if scored.positions:
            checked += _judge_choices(captured, scored, tolerance, jumps)
            checked += _judge_cuts(captured, scored, noise)
    return tuple(checked)


def _align_scores(captured: Captured, arm: Transcript) -> Iterator[_RuledAnswer]:
    """Yield the answers with token ids, with their rules and scores.

    Scores that do not cover every token are dropped.
    """
    bodies = {request.id: request.body for request in captured.workload.requests}
    scores = {score.key: score for score in captured.scores.get(arm.arm, ())}
    for answer in arm.answers:
        body, score = bodies.get(answer.request_id), scores.get(answer.key)
        if body is None or not answer.ok or not answer.choice.token_ids:
            continue
        covers_all = score is not None and len(score.positions) == len(answer.choice.token_ids)
        positions = score.positions if score is not None and covers_all else ()
        prompt = answer.prompt_token_ids or (score.prompt_token_ids if score is not None else ())
        yield _RuledAnswer(body=body, rules=parameter_rules(body), answer=answer, positions=positions, prompt=prompt)


def _judge_exact(rules: ParameterRules, answer: Answer, positions: Sequence[Position]) -> Iterator[CheckedToken]:
    """Yield an answer's tokens, checked by allowed ids and decisive biases.

    These rules need no scores. ``positions``, the scores of the tokens, only show whether a rule binds: it does if it forbids the model's
    best token. They are empty without scores.
    """
    for name, forbidden in (("allowed_token_ids", _find_disallowed(rules)), ("logit_bias", _find_banned(rules))):
        for index, token in enumerate(answer.choice.token_ids if forbidden else ()):
            best = positions[index].top_ids[:1] if positions else ()
            yield CheckedToken(
                parameter=name,
                answer=answer,
                index=index,
                broken=forbidden is not None and token in forbidden,
                binds=bool(best) and forbidden is not None and best[0] in forbidden,
                detail=f"id {token}",
            )


@dataclass(frozen=True, slots=True)
class _Complement:
    """The set of all ids except ``ids``."""

    ids: frozenset[int]

    def __contains__(self, token: int) -> bool:
        return token not in self.ids


def _find_disallowed(rules: ParameterRules) -> _Complement | None:
    return None if rules.allowed is None else _Complement(rules.allowed)


def _find_banned(rules: ParameterRules) -> _Complement | frozenset[int] | None:
    """Return the ids forbidden by decisive biases; None without any.

    Ids forced by a bias of 50 nats or more forbid all others, unless no forced id is among the allowed ones.
    """
    possible = rules.forced if rules.allowed is None else rules.forced & rules.allowed
    if possible:
        return _Complement(possible)
    return rules.banned or None


def _judge_choices(captured: Captured, scored: _RuledAnswer, tolerance: float, jumps: float) -> Iterator[CheckedToken]:
    """Yield the tokens of a request for the best token alone.

    A token breaks the rule if a rival, another permitted token with a score, is better by more than the ``tolerance``, in nats after biases
    and penalties. ``jumps`` is the rate at which a correct server exceeds the tolerance. Nothing is yielded if the best token cannot be
    computed: under bad_words, whose ids are unknown, or if a penalty counts a prompt without ids.
    """
    rules, answer, positions, prompt = scored.rules, scored.answer, scored.positions, scored.prompt
    window, request_penalties = captured.penalty_window, penalties(scored.body)
    if not rules.greedy or rules.has_bad_words or (request_penalties.count_prompt(window) and not prompt):
        return
    # Without the repetition penalty, which scales logits: _is_comparable excludes rivals over which it may favour the emitted token.
    penalised = penalise(positions, request_penalties, window, prompt)
    # The ids that a repetition penalty counts, up to the token at hand.
    counted_ids = set(prompt) if window.repetition_prompt else set()
    names = blame_parameters(rules)
    for index, (position, raw) in enumerate(zip(penalised, positions, strict=True)):
        rivals = [
            logprob
            for token, logprob in zip(position.top_ids, position.top_logprobs, strict=True)
            if rules.permits(token) and _is_comparable(rules, token, position.token_id, counted_ids)
        ]
        # An emitted token without a score counts as well as it can be, in the server's favour.
        gap = max(rivals, default=-math.inf) - upper_bound(position)
        # A token that is not permitted breaks an exact rule instead (_judge_exact).
        yield CheckedToken(
            parameter=names,
            answer=answer,
            index=index,
            broken=gap > tolerance and rules.permits(position.token_id) and not math.isnan(gap),
            binds=_changes_choice(rules, raw),
            chance=jumps,
            detail=f"id {position.token_id}, {gap:.3g} nats below the best one",
        )
        counted_ids.add(position.token_id)


def _changes_choice(rules: ParameterRules, raw: Position) -> bool:
    """Return True if the parameters make a difference at a token, ``raw`` without them.

    Biases and penalties do if the emitted token is not the raw best one. Others, as temperature 0, do if a draw would often take another.
    """
    if rules.moves or rules.repetition != 1.0:
        best = raw.top_ids[0] if raw.top_ids else raw.token_id
        return best != raw.token_id
    return max(raw.top_logprobs, default=0.0) < math.log(_UNSURE)


def _is_comparable(rules: ParameterRules, rival: int, emitted: int, counted_ids: set[int]) -> bool:
    """Return True if a repetition penalty cannot favour the emitted token over the rival.

    ``counted_ids`` has the ids that the penalty counts so far. The scores lack the penalty: if it could favour the emitted token, a rival
    with a higher score need not be better. Without a penalty all are comparable.
    """
    if rules.repetition == 1.0:
        return True
    # Above 1 it lowers tokens that occurred before; below 1 it raises them.
    return rival not in counted_ids if rules.repetition > 1.0 else emitted not in counted_ids


def blame_parameters(rules: ParameterRules) -> str:
    """Return the parameters blamed for a choice below the best token.

    They are those that change logits; without any, the first that allows the best token only. Several are joined by commas.
    """
    if rules.repetition != 1.0:
        return ", ".join((*rules.moves, "repetition_penalty"))
    return ", ".join(rules.moves or rules.greedy[:1])


def _judge_cuts(captured: Captured, scored: _RuledAnswer, noise: float) -> Iterator[CheckedToken]:
    """Yield the tokens of a request for a cut distribution.

    A token breaks the rule if it is surely outside the cut, for scores with ``noise`` nats of noise. The rule binds if more than
    ``1 - _UNSURE`` of the raw probability is cut off, since a draw without it would often take a token from there. Nothing is yielded if
    the request also has penalties, biases or fields whose effect on the distribution is not modelled.
    """
    rules, answer, positions = scored.rules, scored.answer, scored.positions
    params = sampling_params(scored.body)
    if not rules.cuts or params.unmodelled or params.penalties != NONE:
        return
    raw = raw_distribution(positions, captured.workload.top_tokens, captured.vocabulary)
    distribution = requested(raw, params.processing(len(positions)), noise)
    names = ", ".join(rules.cuts)
    for index, outcome in enumerate(distribution.outcome.tolist()):
        outside_cut = distribution.violation[index]
        raw_mass_outside = distribution.raw[index][outside_cut].sum()
        yield CheckedToken(
            parameter=names,
            answer=answer,
            index=index,
            broken=bool(outside_cut[outcome]),
            binds=bool(raw_mass_outside > 1.0 - _UNSURE),
            # A cut may be wrong at other temperatures only, as if made before them: the fault's name then says so.
            warmed=params.temperature != 1.0,
            chance=float(distribution.violation_bound[index]),
            detail=f"id {positions[index].token_id}",
        )


def check_departures(captured: Captured, arm: Transcript, tolerance: float, jumps: float = 0.0) -> tuple[CheckedToken, ...]:
    """Return checked tokens at first differences from the baseline's answers.

    After the same tokens both servers choose from the same distribution, so that the two tokens there can be compared. Only requests count
    whose choice is changed by bad_words or by a repetition penalty alone, and that do not list the allowed ids. ``tolerance`` is the
    largest gap that noise explains, in nats, and ``jumps`` the rate at which tokens exceed it without a fault: the chance of a token under
    bad_words. Those under a repetition penalty count as exact, since the caller keeps them only if they break its rule more often than the
    control's, which shows the noise.
    """
    requests, prompts = captured.workload.by_id, _prompts(captured)
    checked = []
    for divergence in compare_prefixes(captured, arm).divergences:
        answer = divergence.answer
        rules = parameter_rules(requests[answer.request_id].body)
        name = rules.unscored_parameter
        if not name or rules.allowed is not None:
            continue
        if name == "bad_words":
            broken = _breaks_ban(divergence, tolerance)
        else:
            earlier_ids = {*prompts.get(answer.request_id, ()), *answer.choice.token_ids[: divergence.index]}
            broken = rules.repetition > 1.0 and _lacks_penalty(divergence, earlier_ids, tolerance)
        tokens = f"id {divergence.token.token_id} for the baseline's {divergence.baseline.token_id}"
        checked.append(
            CheckedToken(
                parameter=name,
                answer=answer,
                index=divergence.index,
                broken=broken,
                binds=True,
                chance=jumps if name == "bad_words" else 0.0,
                detail=f"{tokens}, {abs(divergence.gap):.3g} nats apart",
            )
        )
    return tuple(checked)


def _breaks_ban(divergence: Divergence, tolerance: float) -> bool:
    """Return True if a token unlike the baseline's breaks bad_words.

    If it is the likelier one, the baseline must have passed it over as banned. If it is less likely, the arm passed over the baseline's
    token, which is not banned. Noise explains a gap up to the tolerance.
    """
    return abs(divergence.gap) > tolerance


def _lacks_penalty(divergence: Divergence, before: Collection[int], tolerance: float) -> bool:
    """Return True if a token unlike the baseline's lacks a repetition penalty above 1.

    It is likelier by more than the tolerance and one of ``before``, the tokens that came earlier, while the baseline's is not: a server
    without the penalty would choose it.
    """
    is_likelier = divergence.gap < -tolerance
    return is_likelier and divergence.token.token_id in before and divergence.baseline.token_id not in before


def _prompts(captured: Captured) -> dict[str, tuple[int, ...]]:
    """Return the token ids of the prompts by request, as the baseline answered or scored them; empty if unknown."""
    scored = {score.request_id: score.prompt_token_ids for score in captured.scores.get(captured.baseline.arm, ())}
    return {answer.request_id: answer.prompt_token_ids or scored.get(answer.request_id, ()) for answer in captured.baseline.answers}


def check_binding(captured: Captured, tolerance: float) -> tuple[CheckedToken, ...]:
    """Return the baseline's own tokens under bad_words or repetition penalties.

    None counts as broken; they show where these rules bind. Scores lack both parameters. If the baseline passes over the likeliest token,
    by more than the ``tolerance`` of noise, and the allowed ids have it, then one of the two is the reason. Only requests for the best
    token alone are looked at that set one of the two, and no bias or penalty beside it.
    """
    requests = captured.workload.by_id
    scores = {score.key: score.positions for score in captured.scores.get(captured.baseline.arm, ())}
    binding = []
    for answer in captured.baseline.answers:
        rules = parameter_rules(requests[answer.request_id].body if answer.request_id in requests else {})
        name = rules.unscored_parameter  # bad_words or repetition_penalty; empty if other parameters change the choice too
        if not rules.greedy or not name:
            continue
        for index, position in enumerate(scores.get(answer.key, ())):
            best = position.top_ids[0] if position.top_ids else position.token_id
            passes_over_best = best != position.token_id and rules.permits(best)
            binds = passes_over_best and max(position.top_logprobs) - position.logprob > tolerance
            binding.append(CheckedToken(parameter=name, answer=answer, index=index, broken=False, binds=binds))
    return tuple(binding)
