"""Penalised scores: the baseline's scores of tokens with what the request's penalties and biases add to the logits.

A position has the log-probabilities of one emitted token and of the most probable ones there. Presence and frequency penalties and biases
add nats to them; a repetition penalty scales logits, which scores do not give, and is left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.penalties import logit_adjustment
from pytest_specdec.stats.request_params import NONE, penalties

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.penalty_window import PenaltyWindow
    from pytest_specdec.model.transcript import Position, Score, Transcript
    from pytest_specdec.stats.penalties import Penalties
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["penalise", "penalised_scores", "upper_bound"]


def penalised_scores(captured: Captured, transcript: Transcript, only: Container[str] | None = None) -> tuple[Score, ...]:
    """Return an arm's scores with each request's penalties and biases added.

    ``only`` limits them to these request ids; None for all. Raises ValueError if a penalty counts the prompt's tokens and their ids are
    missing. A repetition penalty is not added, so that it needs no ids.
    """
    penalties_by_request = {request.id: penalties(request.body) for request in captured.workload.requests}
    prompts = {answer.key: answer.prompt_token_ids for answer in transcript.answers}
    window = captured.penalty_window  # which tokens the penalties count
    penalised = []
    for score in captured.scores.get(transcript.arm, ()):
        if only is not None and score.request_id not in only:
            continue
        params, prompt = penalties_by_request.get(score.request_id, NONE), prompts.get(score.key) or score.prompt_token_ids
        added_penalties = replace(params, repetition=1.0)  # all but the repetition penalty, by its neutral value
        if score.positions and not prompt and added_penalties.count_prompt(window):
            msg = f"the prompt's token ids of {score.request_id} are missing: its penalties count them"
            raise ValueError(msg)
        penalised.append(replace(score, positions=penalise(score.positions, params, window, prompt)))
    return tuple(penalised)


def penalise(
    positions: Sequence[Position], penalties: Penalties, window: PenaltyWindow, prompt: Sequence[int] = ()
) -> tuple[Position, ...]:
    """Return an answer's positions with ``penalties`` added to their log-probabilities.

    ``window`` says which tokens of ``prompt`` and answer the penalties count. An emitted token without its own log-probability gets an
    upper bound, the lowest listed one. The top tokens are sorted again by falling log-probability. The results are not normalised, so that
    only their differences have a meaning.
    """
    if not penalties.adds or not positions:
        return tuple(positions)
    # One row of top ids per position, filled up with -1.
    ids = np.full((len(positions), max(1, *(len(position.top_ids) for position in positions))), -1, dtype=np.int64)
    for row, position in enumerate(positions):
        ids[row, : len(position.top_ids)] = position.top_ids
    added = logit_adjustment(replace(penalties, repetition=1.0), window, prompt, [position.token_id for position in positions], ids)
    return tuple(map(_add_to_logits, positions, added.top_tokens, added.chosen.tolist()))


def _add_to_logits(position: Position, top_tokens: Floats, chosen: float) -> Position:
    """Return a position with nats added to its log-probabilities.

    ``top_tokens`` has those for the listed tokens, which are sorted again, and ``chosen`` those for the emitted one. The sums are not
    normalised: callers compare them within the position only.
    """
    # The row of added nats is padded to the longest list of the answer.
    summed = [
        (logprob + more, token) for token, logprob, more in zip(position.top_ids, position.top_logprobs, top_tokens.tolist(), strict=False)
    ]
    summed.sort(key=lambda pair: -pair[0])
    return replace(
        position,
        logprob=upper_bound(position) + chosen,  # the position's own log-probability, if it has one
        top_ids=tuple(token for _, token in summed),
        top_logprobs=tuple(logprob for logprob, _ in summed),
    )


def upper_bound(position: Position) -> float:
    """Return the emitted token's log-probability; if it has none, the lowest listed one, an upper bound."""
    unlisted = math.isnan(position.logprob) and bool(position.top_logprobs)
    return min(position.top_logprobs) if unlisted else position.logprob
