"""The batch: sequences that join and leave between steps, and what one step does to them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.reference.logprobs import Entry, entries
from pytest_specdec.reference.sampler import Sampling, laws, pick
from pytest_specdec.reference.verify import Rules, verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_specdec.reference.counters import Counters
    from pytest_specdec.reference.drafters import Drafter
    from pytest_specdec.reference.model import Model
    from pytest_specdec.reference.sequence import Delta, Sequence
    from pytest_specdec.reference.verify import Draft

__all__ = ["Batch"]

_PREFILL_TOKENS: Final = 512
"""Prompt tokens taken in per step before running sequences get their turn; one prompt is always taken in."""
_CHUNK_TOKENS: Final = 256


class Batch:
    """Continuous batching over one cache; row i sits in slot i, so the attention reads the cache without copying."""

    def __init__(self, target: Model, drafter: Drafter, *, slots: int, counters: Counters, rules: Rules) -> None:
        self._target = target
        self._drafter = drafter
        self._slots = slots
        self._counters = counters
        self._rules = rules
        self._cache = target.cache(slots)
        self._lengths = np.zeros(slots, np.intp)
        """Tokens in the cache by slot: everything but the last token of a sequence, which the next step feeds."""
        self._rows: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._sampling: Sampling | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._rows or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)
        self._gauge()

    def drop(self, sequences: set[Sequence]) -> None:
        """Forget sequences that nobody waits for any more."""
        self._waiting = deque(s for s in self._waiting if s not in sequences)
        self._leave([slot for slot, row in enumerate(self._rows) if row in sequences])

    def clear(self) -> list[Sequence]:
        """Forget every sequence, and return them."""
        dropped = [*self._rows, *self._waiting]
        self.drop(set(dropped))
        return dropped

    def step(self) -> list[Delta]:
        """Let waiting sequences in, then advance every sequence that was in already by one window."""
        deltas = self._decode() if self._rows else []
        deltas += self._enter()
        self._leave([slot for slot, row in enumerate(self._rows) if row.finish_reason is not None])
        self._counters.generation_tokens += sum(len(delta.tokens) for delta in deltas)
        return deltas

    def _enter(self) -> list[Delta]:
        deltas: list[Delta] = []
        budget = _PREFILL_TOKENS
        while self._waiting and len(self._rows) < self._slots and budget > 0:
            sequence = self._waiting.popleft()
            budget -= len(sequence.request.prompt)
            deltas.append(self._prefill(sequence, len(self._rows)))
        return deltas

    def _prefill(self, sequence: Sequence, slot: int) -> Delta:
        prompt = np.array([sequence.request.prompt], np.intp)
        total = prompt.shape[1]
        chunks = [
            self._target.forward(prompt[:, at : at + _CHUNK_TOKENS], self._cache, np.array([at]), slot=slot)
            for at in range(0, total, _CHUNK_TOKENS)
        ]
        self._drafter.enter(slot, sequence.tokens)
        self._rows.append(sequence)
        self._lengths[slot] = total
        self._sampling = None
        self._counters.prompt_tokens += total
        if sequence.request.prompt_logprobs is not None and sequence.index == 0:
            logits = self._target.logits(np.concatenate(chunks)[:-1])
            sequence.prompt_entries = entries(logits, sequence.tokens[1:], sequence.request.prompt_logprobs)
        logits = self._target.logits(chunks[-1][-1:])
        law = laws(_masked([sequence], logits, np.zeros((1, 0), np.intp)), Sampling.of([sequence.request]))
        token = int(pick(law, sequence.random.random(1))[0])
        return sequence.take([token], _entries(sequence, logits, [token]))

    def _decode(self) -> list[Delta]:
        rows, n, k = self._rows, len(self._rows), self._drafter.tokens
        sampling = self._sampling = self._sampling or Sampling.of(row.request for row in rows)
        uniforms = np.array([row.random.random(2 * k + 1) for row in rows])
        draft = self._drafter.propose(rows, sampling, uniforms[:, :k])
        fed = np.concatenate([np.array([[row.tokens[-1]] for row in rows], np.intp), draft.tokens], axis=1)
        logits = self._target.logits(self._target.forward(fed, self._cache, self._lengths[:n]))
        p = laws(_masked(rows, logits, draft.tokens, draft.counts), sampling.repeat(fed.shape[1]))
        chances = np.concatenate([uniforms[:, k : k + draft.width], uniforms[:, 2 * k :]], axis=1)
        windows = verify(p.reshape(n, fed.shape[1], -1), draft, chances, self._rules)
        self._lengths[:n] = self._rules.keep(self._lengths[:n], windows.accepted, draft.counts)
        return self._hand_out(draft, windows.accepted.tolist(), windows.last.tolist(), logits.reshape(n, fed.shape[1], -1))

    def _hand_out(self, draft: Draft, accepted: list[int], last: list[int], logits: NDArray[np.float32]) -> list[Delta]:
        deltas = []
        for row, tokens, drafted, kept, final, law in zip(
            self._rows, draft.tokens.tolist(), draft.counts.tolist(), accepted, last, logits, strict=True
        ):
            row.drafted.append(drafted)
            row.accepted.append(kept)
            self._counters.drafted(drafted, kept)
            window = [*tokens[:kept], final]
            deltas.append(row.take(window, _entries(row, law[: kept + 1], window)))
        return deltas

    def _leave(self, slots: list[int]) -> None:
        for slot in reversed(slots):
            end = len(self._rows) - 1
            if slot != end:
                length = int(self._lengths[end])
                self._cache[:, slot, :, :length] = self._cache[:, end, :, :length]
                self._drafter.move(end, slot, len(self._rows[end].tokens))
                self._lengths[slot] = length
                self._rows[slot] = self._rows[end]
            self._rows.pop()
        if slots:
            self._sampling = None
        self._gauge()

    def _gauge(self) -> None:
        self._counters.running = len(self._rows)
        self._counters.waiting = len(self._waiting)


def _entries(row: Sequence, logits: NDArray[np.float32], window: list[int]) -> list[Entry]:
    return [] if row.request.logprobs is None else entries(logits, window, row.request.logprobs)


def _masked(
    rows: list[Sequence], logits: NDArray[np.float32], drafted: NDArray[np.intp], counts: NDArray[np.intp] | None = None
) -> NDArray[np.float32]:
    """Return logits (n * t, vocabulary) with -inf where a row's grammar refuses; the very array when no row has one."""
    bound = [slot for slot, row in enumerate(rows) if row.grammar is not None]
    if not bound:
        return logits
    masked = logits.reshape(len(rows), -1, logits.shape[-1]).copy()
    for slot in bound:
        grammar = rows[slot].grammar
        assert grammar is not None
        length = 0 if counts is None else int(counts[slot])
        allowed = grammar.walk(drafted[slot, :length].tolist())
        masked[slot, : length + 1][~allowed] = -np.inf
    return masked.reshape(logits.shape)
