"""The scheduler: sequences that join and leave a batch between steps, and the steps that advance them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.reference.grammar import walk
from pytest_specdec.reference.openai_response import Entry, entries
from pytest_specdec.reference.rejection_sampler import verify
from pytest_specdec.reference.sampler import Sampling, distributions, pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_specdec.reference.drafters import Drafter
    from pytest_specdec.reference.metrics import Counters
    from pytest_specdec.reference.model import Model
    from pytest_specdec.reference.rejection_sampler import DraftProposal
    from pytest_specdec.reference.rules import EngineRules
    from pytest_specdec.reference.sequence import Delta, RunningSequence

__all__ = ["Batch"]

_PREFILL_TOKENS: Final = 512
"""Prompt tokens, filled up to the longest, taken in per step before running sequences get their turn; one prompt is always taken in."""
_CHUNK_TOKENS: Final = 256


class Batch:
    """Continuous batching over one cache; row i sits in slot i, so the attention reads the cache without copying."""

    def __init__(self, target: Model, drafter: Drafter, *, slots: int, counters: Counters, rules: EngineRules) -> None:
        self._target = target
        self._drafter = drafter
        self._slots = slots
        self._counters = counters
        self._rules = rules
        self._cache = target.cache(slots)
        self._most = self._cache.shape[3] - 1 - drafter.tokens
        """The longest cache length, in tokens, behind which a whole window still fits: the context of a request."""
        self._lengths = np.zeros(slots, np.intp)
        """Tokens in the cache by slot: everything but the last token of a sequence, which the next step feeds."""
        self._rows: list[RunningSequence] = []
        self._waiting: deque[RunningSequence] = deque()
        self._sampling: Sampling | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._rows or self._waiting)

    def add(self, sequence: RunningSequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)
        self._gauge()

    def drop(self, sequences: set[RunningSequence]) -> None:
        """Forget sequences whose client has gone."""
        self._waiting = deque(s for s in self._waiting if s not in sequences)
        self._leave([slot for slot, row in enumerate(self._rows) if row in sequences])

    def clear(self) -> list[RunningSequence]:
        """Forget every sequence, and return them, also after a step that raised."""
        dropped = [*self._rows, *self._waiting]
        self._rows.clear()
        self._waiting.clear()
        self._gauge()
        return dropped

    def step(self) -> list[Delta]:
        """Let waiting sequences in, then advance every sequence that was in already by one window."""
        deltas = self._decode() if self._rows else []
        deltas += self._enter()
        self._leave([slot for slot, row in enumerate(self._rows) if row.finish_reason is not None])
        self._counters.generation_tokens += sum(len(delta.tokens) for delta in deltas)
        return deltas

    def _enter(self) -> list[Delta]:
        group = self._admitted()
        if not group:
            return []
        slot, lengths = len(self._rows), np.array([len(s.tokens) for s in group], np.intp)
        prompts = _rectangle([s.tokens for s in group])
        hidden = self._prefill(prompts, lengths, slot)
        self._drafter.enter(slot, prompts, lengths)
        self._rows += group
        for _ in group:
            self._waiting.popleft()
        self._lengths[slot : slot + len(group)] = lengths
        self._sampling = None
        self._counters.prompt_tokens += int(lengths.sum())
        ends = np.cumsum(lengths)
        for sequence, end in zip(group, ends.tolist(), strict=True):
            self._score(sequence, hidden, end)
        return self._first_tokens(group, self._target.logits(hidden[ends - 1]))

    def _admitted(self) -> list[RunningSequence]:
        """Return the first waiting sequences, whose prompts are taken in now: one, and more as long as they fill a small rectangle."""
        group: list[RunningSequence] = []
        longest = 0
        for sequence in islice(self._waiting, self._slots - len(self._rows)):
            longest = max(longest, len(sequence.tokens))
            if group and longest * (len(group) + 1) > _PREFILL_TOKENS:
                break
            group.append(sequence)
        return group

    def _prefill(self, prompts: NDArray[np.intp], lengths: NDArray[np.intp], slot: int) -> NDArray[np.float32]:
        """Return the last hidden states of prompts (n, longest), one line a token; only a prompt alone is so long that it needs chunks."""
        chunks = [
            self._target.forward(
                prompts[:, at : at + _CHUNK_TOKENS],
                self._cache,
                np.full(len(prompts), at),
                slot=slot,
                counts=np.minimum(lengths - at, _CHUNK_TOKENS),
                tap=self._drafter.tap,
            )
            for at in range(0, prompts.shape[1], _CHUNK_TOKENS)
        ]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def _score(self, sequence: RunningSequence, hidden: NDArray[np.float32], end: int) -> None:
        top = sequence.request.prompt_logprobs
        if top is not None and sequence.index == 0:
            logits = self._target.logits(hidden[end - len(sequence.tokens) : end - 1])
            sequence.prompt_entries = entries(logits, sequence.tokens[1:], top)

    def _first_tokens(self, group: list[RunningSequence], logits: NDArray[np.float32]) -> list[Delta]:
        distribution = distributions(self._shaped(group, logits), Sampling.of(s.request for s in group))
        uniforms = np.concatenate([s.random.random(1) for s in group])
        return [
            s.take([token], _entries(s, raw[None], [token]))
            for s, token, raw in zip(group, pick(distribution, uniforms).tolist(), logits, strict=True)
        ]

    def _decode(self) -> list[Delta]:
        rows, n, k = self._rows, len(self._rows), self._drafter.tokens
        sampling = self._sampling = self._sampling or Sampling.of(row.request for row in rows)
        uniforms = np.array([row.random.random(2 * k + 1) for row in rows])
        draft = self._shrunk(self._drafter.propose(rows, sampling, uniforms[:, :k]))
        fed = np.concatenate([np.array([[row.tokens[-1]] for row in rows], np.intp), draft.tokens], axis=1)
        live = draft.counts + 1
        logits = self._target.logits(self._target.forward(fed, self._cache, self._lengths[:n], counts=live, tap=self._drafter.tap))
        shaped = self._shaped(rows, logits, draft)
        p = self._rules.target(distributions(shaped, sampling.repeat(live)), shaped, draft)
        chances = np.concatenate([uniforms[:, k : k + draft.width], uniforms[:, 2 * k :]], axis=1)
        windows = verify(p, draft, self._rules.deal(rows, chances), self._rules)
        self._lengths[:n] = self._rules.keep(self._lengths[:n], windows.accepted, draft.counts, self._most)
        return self._hand_out(draft, windows.accepted.tolist(), windows.last.tolist(), logits)

    def _shrunk(self, draft: DraftProposal) -> DraftProposal:
        """Return the part of a draft for which the context has room, the token behind it included, and that of the draft."""
        tokens = self._lengths[: len(draft.counts)] + 1
        return replace(draft, counts=self._rules.shrink(draft.counts, self._most - tokens, self._drafter.context - tokens))

    def _hand_out(self, draft: DraftProposal, accepted: list[int], last: list[int], logits: NDArray[np.float32]) -> list[Delta]:
        deltas = []
        lots = zip(self._rows, draft.tokens.tolist(), draft.counts.tolist(), accepted, last, draft.starts.tolist(), strict=True)
        for slot, (row, tokens, drafted, kept, final, start) in enumerate(lots):
            row.drafted.append(drafted)
            row.accepted.append(kept)
            self._counters.drafted(drafted, kept)
            window = [*tokens[:kept], final]
            reported = self._rules.report(logits[start : start + kept + 1], draft, slot)
            deltas.append(row.take(window, _entries(row, reported, window)))
        return deltas

    def _shaped(self, rows: list[RunningSequence], logits: NDArray[np.float32], draft: DraftProposal | None = None) -> NDArray[np.float32]:
        """Return packed logits with penalties added and -inf where a grammar or min_tokens forbids a token.

        It is the very array where nothing applies.
        """
        bound = [slot for slot, row in enumerate(rows) if row.grammar is not None or row.penalties is not None or row.held_back]
        if not bound:
            return logits
        shaped = logits.copy()
        for slot in bound:
            length, start = (0, slot) if draft is None else (int(draft.counts[slot]), int(draft.starts[slot]))
            drafted = [] if draft is None else draft.tokens[slot, :length].tolist()
            window, grammar, penalties = shaped[start : start + length + 1], rows[slot].grammar, rows[slot].penalties
            if penalties is not None:
                window[:] = self._rules.penalise(window, penalties.walk(drafted))
            if grammar is not None:
                window[~walk(grammar, drafted)] = -np.inf
            elif rows[slot].held_back:  # a document ends where its grammar says
                self._rules.forbid(window, rows[slot].enders, rows[slot].held_back)
        return shaped

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


def _entries(row: RunningSequence, logits: NDArray[np.float32], window: list[int]) -> list[Entry]:
    return [] if row.request.logprobs is None else entries(logits, window, row.request.logprobs)


def _rectangle(prompts: list[list[int]]) -> NDArray[np.intp]:
    filled = np.zeros((len(prompts), max(map(len, prompts))), np.intp)
    for line, prompt in zip(filled, prompts, strict=True):
        line[: len(prompt)] = prompt
    return filled
