"""The sampler: from raw logits, penalties and biases to the distribution that a request asks for, and to a token.

Penalties are added to the logits of tokens that the answer already holds, biases to those that the request names. Source: the presence
and frequency penalty and the logit bias of the OpenAI API reference, as vLLM has them: the prompt does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from pytest_specdec.reference.openai_request import EngineRequest

__all__ = ["PenaltyState", "Sampling", "distributions", "pick"]


class PenaltyState:
    """The penalties and biases of one sequence, by the tokens that it has emitted."""

    def __init__(self, request: EngineRequest, vocabulary: int) -> None:
        self._presence = request.presence_penalty
        self._frequency = request.frequency_penalty
        self._bias = np.zeros(vocabulary)
        for token, bias in request.logit_bias:
            self._bias[token] = bias
        self._counts = np.zeros(vocabulary, np.intp)

    def advance(self, token: int) -> None:
        """Count one emitted token."""
        self._counts[token] += 1

    def walk(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the addends at each of ``tokens`` and behind the last, (len(tokens) + 1, vocabulary), without counting any.

        Those of ``tokens`` that come before a position count there as if they were emitted.
        """
        counts = np.tile(self._counts, (len(tokens) + 1, 1))
        for position, token in enumerate(tokens, start=1):
            counts[position:, token] += 1
        added: NDArray[np.float32] = (self._bias - self._frequency * counts - self._presence * (counts > 0)).astype(np.float32)
        return added


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of several rows, one entry a row."""

    temperature: NDArray[np.float32]
    """0 is greedy: the limit, all mass on the largest logit."""
    top_k: NDArray[np.intp]
    """0 where it is off."""
    top_p: NDArray[np.float64]
    """1 where it is off."""

    @classmethod
    def of(cls, requests: Iterable[EngineRequest]) -> Sampling:
        """Return the parameters of requests, in order."""
        parameters = [(r.temperature, r.top_k, r.top_p) for r in requests]
        temperature, top_k, top_p = zip(*parameters, strict=True)
        return cls(
            temperature=np.array(temperature, np.float32),
            top_k=np.array(top_k, np.intp),
            top_p=np.array(top_p, np.float64),
        )

    def repeat(self, times: NDArray[np.intp]) -> Sampling:
        """Return row i ``times[i]`` times: the same request at that many positions."""
        if (times == 1).all():
            return self
        return Sampling(
            temperature=np.repeat(self.temperature, times),
            top_k=np.repeat(self.top_k, times),
            top_p=np.repeat(self.top_p, times),
        )


def distributions(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float32]:
    """Return the requested distribution (rows, vocabulary): temperature, then top-k, then top-p; a one-hot row where greedy."""
    greedy = sampling.temperature == 0
    if greedy.all():
        return _one_hot(logits)
    temperature: NDArray[np.float32] = np.where(greedy, np.float32(1.0), sampling.temperature)
    scaled: NDArray[np.float32] = np.divide(logits, temperature[:, None], dtype=np.float32)
    cut = np.flatnonzero(~greedy & ((sampling.top_k > 0) | (sampling.top_p < 1.0)))
    if len(cut):
        scaled[cut] = _truncated(scaled[cut], sampling.top_k[cut], sampling.top_p[cut])
    scaled -= scaled.max(axis=1, keepdims=True)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(axis=1, keepdims=True)
    if greedy.any():
        scaled[greedy] = _one_hot(logits[greedy])
    return scaled


def _one_hot(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    distribution = np.zeros_like(logits)
    distribution[np.arange(len(logits)), logits.argmax(axis=1)] = 1.0
    return distribution


def _truncated(scaled: NDArray[np.float32], top_k: NDArray[np.intp], top_p: NDArray[np.float64]) -> NDArray[np.float32]:
    """Drop what lies behind the top k, then what lies behind a mass of top_p of the rest; ties with the last kept logit are kept."""
    order = np.argsort(-scaled, axis=1, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=1)
    width = ranked.shape[1]
    last = ranked[np.arange(len(ranked)), np.where(top_k > 0, np.minimum(top_k, width), width) - 1]
    ranked = np.where(ranked < last[:, None], np.float32(-np.inf), ranked)
    mass = np.exp((ranked - ranked[:, :1]).astype(np.float64))
    before = np.cumsum(mass, axis=1) - mass
    kept = before < top_p[:, None] * mass.sum(axis=1, keepdims=True)
    kept[:, 0] = True
    dropped = np.empty_like(scaled)
    np.put_along_axis(dropped, order, np.where(kept, ranked, np.float32(-np.inf)), axis=1)
    return dropped


def pick(distribution: NDArray[np.floating], uniforms: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return one token a row by inverting the distribution's distribution function, in float64, at ``uniforms`` in [0, 1).

    The distribution need not be normalised. A token without mass is never picked.
    """
    mass = np.cumsum(distribution, axis=1, dtype=np.float64)
    picked: NDArray[np.intp] = (mass > (uniforms * mass[:, -1])[:, None]).argmax(axis=1)
    return picked
