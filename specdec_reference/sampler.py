"""The sampler: from raw logits, penalties, biases and bans to the requested distribution, to a token and its log-probabilities.

Sources: presence penalty, frequency penalty and logit bias of the OpenAI API reference, as vLLM has them: the prompt does not count.
Repetition penalty: Keskar et al. 2019 (arXiv 1909.05858), as ``RepetitionPenaltyLogitsProcessor`` of transformers has it, prompt included.
Min-p: ``MinPLogitsWarper`` of transformers (arXiv 2407.01082). Banned words: ``NoBadWordsLogitsProcessor`` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from specdec_reference.openai_request import EngineRequest


class PenaltyState:
    """The penalties, biases and bans of one sequence's request, given its emitted tokens."""

    def __init__(self, request: EngineRequest, vocabulary: int) -> None:
        self.request = request
        self.counted: list[int] = []
        """The tokens that penalties and banned words look back on."""
        self.vocabulary = vocabulary

    def advance(self, token: int) -> None:
        """Count one emitted token."""
        self.counted.append(token)

    def shape_logits(self, logits: NDArray[np.float32], drafted: Sequence[int]) -> NDArray[np.float32]:
        """Return the shaped logits of a window of draft tokens.

        They are (len(drafted) + 1, vocabulary): at each of ``drafted`` and after the last. The draft tokens
        before a position count there as if they were emitted, but are not added to the counted ones. The
        order is vLLM's (``Sampler.forward`` of v1/sample/sampler.py): allowed tokens, banned words, biases,
        repetition, frequency, presence.
        """
        request, rows = self.request, logits.astype(np.float32)
        if request.allowed_token_ids is not None:
            rows[:, ~self._mark_tokens(request.allowed_token_ids)] = -np.inf
        for position, row in enumerate(rows):
            row[self._banned_tokens(drafted[:position])] = -np.inf
        for token, bias in request.logit_bias:
            rows[:, token] += np.float32(bias)
        counts = self._count_tokens(drafted)
        if request.repetition_penalty != 1.0:
            seen = (counts > 0) | self._mark_tokens(request.prompt)
            factor = np.float32(request.repetition_penalty)
            rows = np.where(seen, np.where(rows > 0, rows / factor, rows * factor), rows)
        rows -= (request.frequency_penalty * counts + request.presence_penalty * (counts > 0)).astype(np.float32)
        return rows

    def _banned_tokens(self, drafted: Sequence[int]) -> list[int]:
        """Return the tokens completing a banned word after ``drafted``.

        ``drafted`` follows the counted tokens: a word may begin among these.
        """
        longest = max((len(word) for word in self.request.bad_words), default=1)  # no word looks back further
        text = (*self.counted[max(0, len(self.counted) - longest) :], *drafted)
        return [last for *first, last in self.request.bad_words if text[len(text) - len(first) :] == tuple(first)]

    def _count_tokens(self, drafted: Sequence[int]) -> NDArray[np.intp]:
        """Return how often each token comes before each position.

        The counts are (len(drafted) + 1, vocabulary). Tokens of the prompt are not counted.
        """
        counts = np.tile(np.bincount(np.array(self.counted, np.intp), minlength=self.vocabulary), (len(drafted) + 1, 1))
        for position, token in enumerate(drafted, start=1):
            counts[position:, token] += 1
        return counts

    def _mark_tokens(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Return the mask of some tokens, (vocabulary,)."""
        marked = np.zeros(self.vocabulary, np.bool_)
        marked[list(tokens)] = True
        return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of several rows, one entry a row."""

    temperature: NDArray[np.float32]
    """0 is greedy: the limit, all mass on the largest logit."""
    top_k: NDArray[np.intp]
    """0 where it is off."""
    top_p: NDArray[np.float64]
    """1 where it is off."""
    min_p: NDArray[np.float64]
    """0 where it is off."""

    @classmethod
    def of(cls, requests: Iterable[EngineRequest]) -> Sampling:
        """Return the parameters of requests, in order."""
        parameters = [(r.temperature, r.top_k, r.top_p, r.min_p) for r in requests]
        temperature, top_k, top_p, min_p = zip(*parameters, strict=True)
        return cls(
            temperature=np.array(temperature, np.float32),
            top_k=np.array(top_k, np.intp),
            top_p=np.array(top_p, np.float64),
            min_p=np.array(min_p, np.float64),
        )

    def repeat(self, times: NDArray[np.intp]) -> Sampling:
        """Return the parameters with row i repeated ``times[i]`` times.

        It is the same request at that many positions.
        """
        if (times == 1).all():
            return self
        return Sampling(
            temperature=np.repeat(self.temperature, times),
            top_k=np.repeat(self.top_k, times),
            top_p=np.repeat(self.top_p, times),
            min_p=np.repeat(self.min_p, times),
        )


def distributions(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float32]:
    """Return the requested distribution of each row, (rows, vocabulary).

    Temperature, min-p, top-k and top-p are applied in this order. A greedy row is one-hot.
    """
    greedy = sampling.temperature == 0
    if greedy.all():
        return _one_hot(logits)
    temperature: NDArray[np.float32] = np.where(greedy, np.float32(1.0), sampling.temperature)
    scaled: NDArray[np.float32] = np.divide(logits, temperature[:, None], dtype=np.float32)
    min_p_rows = np.flatnonzero(~greedy & (sampling.min_p > 0))
    if len(min_p_rows):
        scaled[min_p_rows] = _cut_by_min_p(scaled[min_p_rows], sampling.min_p[min_p_rows])
    truncated_rows = np.flatnonzero(~greedy & ((sampling.top_k > 0) | (sampling.top_p < 1.0)))
    if len(truncated_rows):
        scaled[truncated_rows] = _cut_by_top_k_and_top_p(
            scaled[truncated_rows], sampling.top_k[truncated_rows], sampling.top_p[truncated_rows]
        )
    scaled -= scaled.max(axis=1, keepdims=True)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(axis=1, keepdims=True)
    if greedy.any():
        scaled[greedy] = _one_hot(logits[greedy])
    return scaled


def _one_hot(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return all mass on each row's largest logit."""
    distribution = np.zeros_like(logits)
    distribution[np.arange(len(logits)), logits.argmax(axis=1)] = 1.0
    return distribution


def _cut_by_min_p(scaled: NDArray[np.float32], min_p: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the logits, -inf for tokens below the min-p threshold.

    It is ``min_p`` times the probability of the most probable token.
    """
    relative_probability = np.exp((scaled - scaled.max(axis=1, keepdims=True)).astype(np.float64))
    return np.where(relative_probability >= min_p[:, None], scaled, np.float32(-np.inf))


def _cut_by_top_k_and_top_p(scaled: NDArray[np.float32], top_k: NDArray[np.intp], top_p: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the logits, -inf beyond the top k, then beyond top-p.

    Top-p keeps a mass of ``top_p`` of the rest. Ties with the k-th logit are kept.
    """
    order = np.argsort(-scaled, axis=1, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=1)
    width = ranked.shape[1]
    kth_logits = ranked[np.arange(len(ranked)), np.where(top_k > 0, np.minimum(top_k, width), width) - 1]
    ranked = np.where(ranked < kth_logits[:, None], np.float32(-np.inf), ranked)
    mass = np.exp((ranked - ranked[:, :1]).astype(np.float64))
    mass_above = np.cumsum(mass, axis=1) - mass
    is_kept = mass_above < top_p[:, None] * mass.sum(axis=1, keepdims=True)
    is_kept[:, 0] = True  # the most probable token stays, however small top_p is
    truncated = np.empty_like(scaled)
    np.put_along_axis(truncated, order, np.where(is_kept, ranked, np.float32(-np.inf)), axis=1)
    return truncated


def pick(distribution: NDArray[np.floating], uniforms: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return one token for each row by inverse transform sampling.

    The distribution function is inverted in float64 at ``uniforms``, which lie in [0, 1). The distribution
    need not be normalised. A token without mass is never picked.
    """
    mass = np.cumsum(distribution, axis=1, dtype=np.float64)
    picked: NDArray[np.intp] = (mass > (uniforms * mass[:, -1])[:, None]).argmax(axis=1)
    return picked


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One position: the token that is there and the most probable ones."""

    token: int
    logprob: float
    rank: int
    """From 1: how many tokens are at least as probable, itself included."""
    top: tuple[tuple[int, float], ...]
    """(token, logprob) of the most probable tokens, best first."""


def entries(logits: NDArray[np.float32], tokens: Sequence[int], top: int) -> list[Entry]:
    """Return the log-probability, rank and best tokens at each position.

    ``logits`` are raw, (rows, vocabulary), with one of ``tokens`` for each row. ``top`` is the number of best tokens.
    """
    rows = np.arange(len(logits))
    largest = logits.max(axis=1, keepdims=True)
    log_normaliser = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1, dtype=np.float64))
    chosen = logits[rows, list(tokens)]
    ranks = 1 + (logits > chosen[:, None]).sum(axis=1)
    top_ids = _top_ids(logits, top)
    values = np.take_along_axis(logits, top_ids, axis=1) - log_normaliser[:, None]
    return [
        Entry(token=token, logprob=logprob, rank=rank, top=tuple(zip(best_ids, best_values, strict=True)))
        for token, logprob, rank, best_ids, best_values in zip(
            tokens, (chosen - log_normaliser).tolist(), ranks.tolist(), top_ids.tolist(), values.tolist(), strict=True
        )
    ]


def _top_ids(logits: NDArray[np.float32], top: int) -> NDArray[np.intp]:
    """Return the ids of each row's ``top`` largest logits.

    They are (rows, top), largest first.
    """
    width = logits.shape[1]
    ids = (
        np.argpartition(logits, width - top, axis=1)[:, width - top :] if 0 < top < width else np.argsort(logits, axis=1)[:, width - top :]
    )
    order = np.argsort(-np.take_along_axis(logits, ids, axis=1), axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1)
