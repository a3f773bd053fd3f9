"""Sampling data: the judged arm's answers as arrays over all their tokens, in the order of the plan.

An array [N, K+1] has a row for each of N emitted tokens, and a column for each outcome: the K top tokens of the baseline's score there,
and the remainder, all other tokens together. A verify window is the tokens of one verify step, and a slot is a token's place in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.sampling.draft_distribution import drafting
from pytest_specdec.judge.tolerance import has_exact_kernels, jump_rate, logit_noise
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.stats import duplicates, penalties
from pytest_specdec.stats.logprob_noise import INVALID_ABOVE
from pytest_specdec.stats.raw_distribution import raw_distribution
from pytest_specdec.stats.request_params import SamplingParams, sampling_params
from pytest_specdec.stats.token_distribution import NOISE, Processing, requested
from pytest_specdec.stats.verify_slots import Observed, VerifySlots, join_slots, slots_from_windows, unknown_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.sampling.draft_distribution import DraftSource
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.penalty_window import PenaltyWindow
    from pytest_specdec.model.transcript import Answer, Position, Score
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.duplicates import Repeats
    from pytest_specdec.stats.logprob_noise import Calibration
    from pytest_specdec.stats.penalties import Adjustment
    from pytest_specdec.stats.raw_distribution import RawDistribution
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, TokenDistribution

__all__ = ["SEED_AGAIN", "SamplingData", "copy_distribution", "distribution_key", "gather", "mark_ends", "mark_independent", "repeats"]

SEED_AGAIN = "seed used before"
"""Reason to leave out an answer to a seed that was used before: it is no independent draw."""
_NOT_SAMPLING = {"seed", "logprobs", "top_logprobs"}
"""Request fields that do not change the distribution of the answer."""


def mark_ends(captured: Captured, ids: Ints) -> Bools | None:
    """Return a mask [N, K+1] of the outcomes that end an answer.

    Outcomes are the K top tokens ``ids`` [N, K] and the remainder. Those marked are the last tokens of baseline answers that ended by
    themselves. Requests with stop strings are left out, since those end an answer at any token. The judged arm's answers are not read,
    since the bet that answers end too soon or too late must not depend on the tokens that it is on. Returns None if no answer shows such a
    token, or if the baseline itself is judged.
    """
    without_stop_strings = {request.id for request in captured.workload.requests if not request.body.get("stop")}
    last = {
        answer.choice.token_ids[-1]
        for answer in captured.baseline.answers
        if answer.ok and answer.request_id in without_stop_strings and answer.choice.finish_reason == "stop" and answer.choice.token_ids
    }
    if not last or captured.arm == BASELINE:
        return None
    marked = np.isin(ids, sorted(last))
    return np.asarray(np.column_stack([marked, np.zeros(len(ids), dtype=np.bool_)]))


def copy_distribution(captured: Captured, answers: Sequence[Answer], distribution: TokenDistribution, ids: Ints) -> Floats | None:
    """Return the distribution [N, K+1] of a server repeating earlier answers.

    Such a server may give an earlier answer to the same prompt again, instead of drawing a new one from the baseline's ``distribution``.
    ``ids`` [N, K] are its top tokens. Returns None if no two answers are draws from one distribution: no prompt is sent twice.
    """
    keys = _distribution_keys(captured, answers)
    if len(set(keys)) == len(keys):
        return None
    return duplicates.copy_distribution(distribution, ids, _token_sequences(answers), keys)


def repeats(captured: Captured, answers: Sequence[Answer], distribution: TokenDistribution) -> Repeats:
    """Return how often answers to one prompt began alike."""
    return duplicates.repeats(distribution, _token_sequences(answers), _distribution_keys(captured, answers))


def mark_independent(captured: Captured, answers: Sequence[Answer]) -> Bools:
    """Return a mask of the independent draws among the answers, one item each.

    An answer is no independent draw if an earlier successful one was drawn with the same seed. A random generator per request gives equal
    noise to all requests with one seed, whatever their prompt, limit or pass.
    """
    seeds = {request.id: request.body.get("seed") for request in captured.workload.requests}
    seen: set[object] = set()
    marks = []
    for answer in answers:
        seed = seeds.get(answer.request_id) if answer.ok else None
        marks.append(seed is None or seed not in seen)
        seen.add(seed)
    return np.array(marks, dtype=np.bool_)


def _token_sequences(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [answer.choice.token_ids for answer in answers]


def _distribution_keys(captured: Captured, answers: Sequence[Answer]) -> list[object]:
    """Return a key for each answer, equal for repeated draws from one distribution.

    An answer has a key of its own if its seed was used before with the same distribution: a correct server then gives the earlier answer
    again, so that this repetition is no evidence of a fault. An answer to a request outside the workload has a key of its own too.
    """
    requests = captured.workload.by_id
    seen: set[tuple[object, object]] = set()
    keys: list[object] = []
    for answer in answers:
        request = requests.get(answer.request_id)
        # ``answer.key`` has the request id and the pass, and so is the answer's own.
        key: object = answer.key if request is None else distribution_key(request)
        seed = None if request is None else request.body.get("seed")
        if seed is not None and (key, seed) in seen:
            key = answer.key
        seen.add((key, seed))
        keys.append(key)
    return keys


def distribution_key(request: Request) -> str:
    """Return a key, equal for requests with the same token distribution.

    It is the request's body without the fields that do not change the distribution: ``seed``, ``logprobs`` and ``top_logprobs``.
    """
    return json.dumps({name: value for name, value in request.body.items() if name not in _NOT_SAMPLING}, sort_keys=True)


COLDEST = 0.01
"""Least temperature that is judged. Distributions overflow below it, and vLLM raises lower temperatures to it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingData:
    """The tokens to judge, or the reason for their absence."""

    observed: Observed | None = None
    answers: int = 0
    """Answers that are judged."""
    skipped: tuple[str, ...] = ()
    """Answers left out, a line per reason."""
    broken: str = ""
    """Reason that the set-up allows no judgement; empty when it does."""
    draft_distribution: str = ""
    """Reason that the draft's distribution is unknown; empty when it is known."""
    calibration: Calibration | None = None
    """The noise between the log-probabilities that the baseline's boots reported and their scores; None if nothing is judged."""
    repeats: Repeats | None = None
    """How often answers to one prompt began alike; None if no prompt is sent twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AnswerPart:
    """One answer with its scores and verify slots, before answers are joined into arrays."""

    answer: Answer
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    positions: tuple[Position, ...]
    draft: DraftSource
    slots: VerifySlots


def gather(captured: Captured, *, scoring_bias: float = 0.0, exact: bool | None = None) -> SamplingData:
    """Return the judged arm's tokens with their distributions and verify slots.

    Answers that are not sampled, or not independent, are left out. In the result ``broken`` is set if any other answer lacks token ids or
    scores, and ``observed`` is None if no answer is left to judge.

    The baseline's scores give the distributions. To the power ``1 + scoring_bias`` they are the distributions that the baseline reports for
    its own answers. A correct server may differ from them by noise and by jumps, positions with any other distribution, both as measured in
    the run's calibration. ``exact`` says whether the arm differs from its scores by rounding only, and None leaves that to the
    calibrations; two arms that are compared need the same.
    """
    draft = drafting(captured)
    selected = _select_sampled(captured, draft)
    if selected.broken:
        return SamplingData(broken=selected.broken)
    parts, lines = selected.parts, tuple(f"{count} requests left out: {reason}" for reason, count in selected.skipped.items())
    if not parts:
        return SamplingData(skipped=lines, draft_distribution=draft.unknown)
    calibration = logit_noise(captured)
    # Bets are made safe against this noise. Above INVALID_ABOVE the scores are too noisy to judge single tokens at all.
    noise = min(max(NOISE, calibration.noise or 0.0), INVALID_ABOVE)
    is_exact = has_exact_kernels(captured) if exact is None else exact
    numerics = _Numerics(noise=noise, jump_rate=jump_rate(captured), scoring_bias=scoring_bias, exact=is_exact)
    observed = _observe(captured, parts, draft, numerics)
    return SamplingData(
        observed=observed,
        answers=len(parts),
        skipped=lines,
        draft_distribution=draft.unknown,
        calibration=calibration,
        # ``copies``, the distribution of a server that repeats answers, is None if no prompt comes twice.
        repeats=None if observed.copies is None else repeats(captured, [part.answer for part in parts], observed.distribution),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SelectedAnswers:
    """The answers to judge, with the others counted."""

    parts: Sequence[_AnswerPart]
    skipped: Mapping[str, int]
    """Numbers of answers left out, by reason."""
    broken: str = ""
    """The first gap in the token ids or scores of an answer to judge; empty without any."""


def _select_sampled(captured: Captured, draft: DraftSource) -> _SelectedAnswers:
    """Return the judged arm's sampled and independent answers, in the order of the plan.

    Each has its scores by the baseline and its verify slots, by ``draft`` if the server reports none. Nothing more is read after an answer
    that lacks token ids or scores, since the set-up is broken then.
    """
    scores = {score.key: score for score in captured.scores.get(captured.arm, ())}
    params_by_id = {request.id: sampling_params(request.body) for request in captured.workload.requests}
    answers, skipped, parts = captured.speculative.answers, dict[str, int](), list[_AnswerPart]()
    for answer, is_independent in zip(answers, mark_independent(captured, answers), strict=True):
        params = params_by_id.get(answer.request_id, SamplingParams())
        reason = _reason_to_skip(answer, params) or ("" if is_independent else SEED_AGAIN)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        score = scores.get(answer.key)
        broken = _describe_missing(captured, answer, score, params)
        if broken or score is None:  # a missing score is one of the gaps
            return _SelectedAnswers(parts=parts, skipped=skipped, broken=broken)
        part = _AnswerPart(
            answer=answer,
            prompt_token_ids=answer.prompt_token_ids or score.prompt_token_ids,
            params=params,
            positions=score.positions,
            draft=draft,
            slots=_sampling_slots(answer, draft),
        )
        parts.append(part)
    return _SelectedAnswers(parts=parts, skipped=skipped)


def _reason_to_skip(answer: Answer, params: SamplingParams) -> str:
    """Return the reason to leave out an answer, empty if it is judged."""
    if not answer.ok:
        return "no answer with HTTP 200"
    if params.unmodelled:
        return params.unmodelled  # in words: a parameter without a model here, or temperature 0
    if params.temperature < COLDEST:
        return f"temperature below {COLDEST:g}, which servers round"
    return "" if _has_tokens(answer) else "no token emitted"


def _has_tokens(answer: Answer) -> bool:
    """Return True if token ids, text or usage counts show an emitted token."""
    has_usage = answer.usage is not None and answer.usage.completion_tokens > 0
    return bool(answer.choice.token_ids or answer.choice.written or has_usage)


def _describe_missing(captured: Captured, answer: Answer, score: Score | None, params: SamplingParams) -> str:
    """Return the first gap in an answer's token ids and scores, in words.

    Returns an empty text if nothing is missing. The prompt's token ids are needed only by penalties that count them.
    """
    ids = answer.choice.token_ids
    if not ids:
        return f"the answer to {answer.request_id} has no token ids"
    if score is None:
        return f"the baseline's scores of {answer.request_id} are missing"
    if params.penalties.count_prompt(captured.penalty_window) and not (answer.prompt_token_ids or score.prompt_token_ids):
        return f"the prompt's token ids of {answer.request_id} are missing: its penalties count them"
    if tuple(position.token_id for position in score.positions) != ids:
        return f"the baseline scored {len(score.positions)} tokens of {answer.request_id}, not the {len(ids)} emitted"
    if not all(_lists_probabilities(position) for position in score.positions):
        return f"the baseline's scores of {answer.request_id} have a token without probabilities"
    return ""


def _lists_probabilities(position: Position) -> bool:
    """Return True if a score lists usable log-probabilities at its token.

    They are unusable if one is NaN or all are minus infinity.
    """
    return bool(position.top_logprobs) and max(position.top_logprobs) > -inf and not any(map(isnan, position.top_logprobs))


def _sampling_slots(answer: Answer, draft: DraftSource) -> VerifySlots:
    """Return the verify slots of an answer's tokens, from its verify windows.

    If the server reports no windows, those of a correct server with these drafts are taken, and marked as ``implied``: they are no
    evidence. The slots are unknown if the drafts are unknown too.
    """
    tokens, reported = len(answer.choice.token_ids), answer.choice.windows
    windows = draft.windows(answer) if reported is None else reported
    if windows is None:
        return unknown_slots(tokens)
    return replace(slots_from_windows(windows, tokens, lambda start: draft.draft_length(answer, start)), implied=reported is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numerics:
    """How far a correct server's distribution may lie from the scored one."""

    noise: float
    """Standard deviation of log-probabilities, in nats."""
    jump_rate: float
    """Largest share of positions with any other distribution, 0..1."""
    scoring_bias: float
    """Power of the scored distribution, less 1."""
    exact: bool
    """Whether the two differ by rounding only, as the run has shown."""


def _observe(captured: Captured, parts: Sequence[_AnswerPart], draft: DraftSource, numerics: _Numerics) -> Observed:
    """Return the tokens of all answers as the arrays of the betting test.

    They hold what a bet at a token may depend on: the baseline's and the draft's distribution after the request's sampling parameters, the
    token's verify slot, and all before it. If the draft's distribution is unknown, its arrays are None and no token counts as drafted.
    """
    raw = raw_distribution([position for part in parts for position in part.positions], captured.workload.top_tokens, captured.vocabulary)
    processing = _processing(parts, raw.ids, captured.penalty_window)
    # The bias is one of the baseline's scores. The draft model has scores of its own, for which the parameters stay as they are.
    baseline_processing = processing.adapt_to_bias(numerics.scoring_bias) if numerics.scoring_bias else processing
    distribution = requested(raw, baseline_processing, numerics.noise, numerics.jump_rate, exact=numerics.exact)
    slots = join_slots([part.slots for part in parts])
    answers = [part.answer for part in parts]
    # The draft's distribution q at each token, and the chances of acceptance by q and the baseline's p.
    view = draft.view(answers, slots, raw.ids, distribution, processing)
    return Observed(
        distribution=distribution,
        ids=raw.ids,
        q=None if view is None else view.q,
        drafted=np.zeros(len(distribution.outcome), dtype=np.bool_) if view is None else view.drafted,
        slots=slots,
        k=captured.pair.variant.draft.tokens,
        accepted_if_emitted=None if view is None else view.accepted_if_emitted,
        # By top tokens alone, q of the emitted token itself is not known.
        q_chosen=None if view is None or _scores_top_tokens_only(captured) else view.chosen,
        accepted_if_drafted=None if view is None else view.accepted_if_drafted,
        listed=None if view is None else view.listed,
        q_raw=None if view is None else view.q_raw,
        previous=_previous(answers),
        contexts=_contexts(answers),
        vocabulary=captured.vocabulary,
        ends=mark_ends(captured, raw.ids),
        copies=copy_distribution(captured, answers, distribution, raw.ids),
        mishandled=_mishandled_distributions(raw, baseline_processing),
    )


def _scores_top_tokens_only(captured: Captured) -> bool:
    """Return True if the scoring route gives probabilities of top tokens only.

    One-token continuations do: an emitted token outside these has no probability of its own. The capability probe decides on the route.
    Returns False if the engine was not probed.
    """
    scoring = captured.scoring
    return scoring is not None and scoring.route is ScoringRoute.CONTINUATIONS


def _previous(answers: Sequence[Answer]) -> Ints:
    """Return the token id before each token, [N]; -1 for an answer's first."""
    return np.array([token for answer in answers for token in (-1, *answer.choice.token_ids[:-1])], dtype=np.int64)


def _contexts(answers: Sequence[Answer]) -> Ints:
    """Return a number for each token's prefix, equal for equal prefixes.

    The prefix is the prompt and the answer up to the token, itself excluded. Its number is that of its node in a trie of all answers.
    Without the prompt's token ids an answer shares no prefix with another one.
    """
    nodes: dict[tuple[object, int], int] = {}
    contexts = []
    for answer in answers:
        # -1 is no token id: it marks the node of the prompt itself.
        node = nodes.setdefault((answer.prompt_token_ids or answer.key, -1), len(nodes))
        for token in answer.choice.token_ids:
            contexts.append(node)
            node = nodes.setdefault((node, token), len(nodes))
    return np.array(contexts, dtype=np.int64)


def _mishandled_distributions(raw: RawDistribution, processing: Processing) -> Mapping[str, Floats]:
    """Return the distributions [N, K+1] under wrong penalties and biases, by name.

    One is of a server that ignores them, and one of a server that applies them twice. ``processing.adjustment`` has them as changes to
    logits. Returns an empty mapping if no request has any.
    """
    if processing.adjustment is None:
        return {}
    times = {"penalties and biases ignored": 0.0, "penalties and biases applied twice": 2.0}
    return {name: requested(raw, replace(processing, adjustment=processing.adjustment.times(factor))).p for name, factor in times.items()}


def _processing(parts: Sequence[_AnswerPart], ids: Ints, penalty_window: PenaltyWindow) -> Processing:
    """Return each request's sampling parameters, once per token of its answer: arrays [N]; for ``ids`` see :func:`_adjustment`."""
    lengths = [len(part.positions) for part in parts]
    return Processing(
        temperature=np.repeat([part.params.temperature for part in parts], lengths),
        top_k=np.repeat(np.array([part.params.top_k for part in parts], dtype=np.int64), lengths),
        top_p=np.repeat([part.params.top_p for part in parts], lengths),
        min_p=np.repeat([part.params.min_p for part in parts], lengths),
        adjustment=_adjustment(parts, ids, lengths, penalty_window),
    )


def _adjustment(parts: Sequence[_AnswerPart], ids: Ints, lengths: Sequence[int], window: PenaltyWindow) -> Adjustment | None:
    """Return the logit changes by penalties and biases at every token.

    ``ids`` [N, K] are the top tokens whose logits change, ``lengths`` the tokens of each answer, and ``window`` says which earlier tokens a
    penalty counts. Returns None if no request has any.
    """
    if all(part.params.penalties.neutral for part in parts):
        return None
    rows = np.split(ids, np.cumsum(lengths)[:-1])
    return penalties.join_adjustments(
        [
            penalties.logit_adjustment(part.params.penalties, window, part.prompt_token_ids, part.answer.choice.token_ids, top_tokens)
            for part, top_tokens in zip(parts, rows, strict=True)
        ]
    )
