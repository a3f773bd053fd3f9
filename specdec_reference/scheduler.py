"""The scheduler: sequences that join and leave a batch between steps, and the steps that advance them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.grammar import walk
from specdec_reference.model import Span
from specdec_reference.numerics import Kernel, Numerics, places
from specdec_reference.openai_response import Entry, entries
from specdec_reference.prefix_cache import BLOCK_TOKENS, Block, PrefixCache, blocks_of
from specdec_reference.sampler import Sampling, distributions, pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_reference.drafters import Drafter
    from specdec_reference.metrics import Counters
    from specdec_reference.model import Model
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import Delta, RunningSequence

_PREFILL_TOKENS: Final = 512
"""Prompt tokens, filled up to the longest, taken in per step before running sequences get their turn; one prompt is always taken in."""
_CHUNK_TOKENS: Final = 256


class Batch:
    """Continuous batching over one cache; row i sits in slot i, so the attention reads the cache without copying."""

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        *,
        slots: int,
        counters: Counters,
        rules: EngineRules,
        blocks: int = 0,
        prefix_caching: bool = False,
        numerics: Numerics | None = None,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._slots = slots
        self._counters = counters
        self._rules = rules
        self._numerics = numerics or Numerics()
        self._cache = target.cache(slots)
        self._blocks = blocks or slots * blocks_of(self._cache.shape[3])
        """That running sequences share; a sequence holds those of its tokens and of its next window."""
        self._prefixes = PrefixCache(self._blocks if prefix_caching else 0, rules)
        self._arrived = 0
        self._most = self._cache.shape[3] - 1 - drafter.tokens
        """The longest cache length, in tokens, after which a whole window still fits: the context of a request."""
        self._lengths = np.zeros(slots, np.intp)
        """Tokens in the cache by slot: everything but the last token of a sequence, which the next step feeds."""
        self._rows: list[RunningSequence] = []
        self._waiting: deque[RunningSequence] = deque()
        self._sampling: Sampling | None = None

    @property
    def busy(self) -> bool:
        """True if a step would do anything."""
        return bool(self._rows or self._waiting)

    def add(self, sequence: RunningSequence) -> None:
        """Queue a sequence."""
        sequence.arrival = self._arrived
        self._arrived += 1
        self._waiting.append(sequence)
        self._gauge()

    def drop(self, sequences: set[RunningSequence]) -> None:
        """Forget sequences of disconnected clients."""
        self._waiting = deque(s for s in self._waiting if s not in sequences)
        running = [slot for slot, row in enumerate(self._rows) if row in sequences]
        self._leave(running)
        if running:
            self._rules.drop(self._rows, self._lengths)

    def clear(self) -> list[RunningSequence]:
        """Forget every sequence and return them all.

        This also works after a step that raised.
        """
        dropped = [*self._rows, *self._waiting]
        self._rows.clear()
        self._waiting.clear()
        self._gauge()
        return dropped

    def step(self) -> list[Delta]:
        """Advance running sequences by one window, then let waiting ones in.

        Where blocks run out, the last to arrive are preempted before that, and no waiting sequence is let in.
        """
        crowded = self._preempt()
        deltas = [sequence.give_up() for sequence in crowded if not self._rules.resume(self._waiting, sequence)]
        deltas += self._decode() if self._rows else []
        if not crowded:
            deltas += self._enter()
        self._remember()
        self._leave([slot for slot, row in enumerate(self._rows) if row.finish_reason is not None])
        self._counters.generation_tokens += sum(len(delta.tokens) for delta in deltas)
        return deltas

    def _enter(self) -> list[Delta]:
        group = self._admit()
        if not group:
            return []
        slot, lengths = len(self._rows), np.array([len(s.tokens) for s in group], np.intp)
        starts = np.array([self._reuse(sequence, slot + row) for row, sequence in enumerate(group)], np.intp)
        prompts, fed = _rectangle([s.tokens[start:] for s, start in zip(group, starts.tolist(), strict=True)]), lengths - starts
        hidden = self._prefill(prompts, starts, fed, slot)
        self._drafter.enter(slot, prompts, starts, fed)
        self._rows += group
        for _ in group:
            self._waiting.popleft()
        self._lengths[slot : slot + len(group)] = lengths
        self._sampling = None
        self._counters.prompt_tokens += sum(len(s.tokens) for s in group if not s.preempted)
        ends = np.cumsum(fed)
        for sequence, end in zip(group, ends.tolist(), strict=True):
            self._score(sequence, hidden, end)
        logits = self._target.logits(hidden[ends - 1])
        behind = [place for sequence in group for place in places(sequence.tokens)]
        return self._first_tokens(group, self._numerics.vary(logits, Kernel.PREFILL, behind, len(group)))

    def _admit(self) -> list[RunningSequence]:
        """Return the first waiting sequences to prefill now.

        One, and more as long as their prompts fill a small rectangle. None without a free slot or enough free
        blocks.
        """
        group: list[RunningSequence] = []
        longest, free = 0, self._blocks - sum(map(self._held, self._rows))
        for sequence in islice(self._waiting, self._slots - len(self._rows)):
            longest = max(longest, len(sequence.tokens))
            free -= self._held(sequence)
            # Twice: beside a row that starts at zero, one that reuses as many is filled up to the same width.
            wide = longest * (len(group) + 1) > _PREFILL_TOKENS or 2 * longest > self._cache.shape[3]
            if (group and wide) or (free < 0 and (group or self._rows)):
                break
            group.append(sequence)
        return group

    def _held(self, sequence: RunningSequence) -> int:
        """Return the number of blocks held by a sequence.

        They are those of its tokens and of its next window.
        """
        return blocks_of(len(sequence.tokens) + self._drafter.tokens + 1)

    def _preempt(self) -> list[RunningSequence]:
        """Preempt the last to arrive until all next windows fit.

        Returns the preempted sequences, the earliest to arrive last. Their emitted tokens are prefilled again
        after their prompts when they come back. Generator, grammar and penalties stay theirs.
        """
        crowded: list[RunningSequence] = []
        by_arrival = sorted(self._rows, key=lambda row: row.arrival)
        while len(by_arrival) > 1 and sum(map(self._held, by_arrival)) > self._blocks:
            crowded.append(by_arrival.pop())
        for sequence in crowded:
            sequence.preempted += 1
        self._counters.preemptions += len(crowded)
        self._leave([slot for slot, row in enumerate(self._rows) if row in crowded])
        return crowded

    def _reuse(self, sequence: RunningSequence, slot: int) -> int:
        """Copy the cached prefix of a sequence into its slot.

        Returns the number of tokens copied; 0 where the prompt is scored.
        """
        if sequence.request.prompt_logprobs is not None and not sequence.preempted:
            return 0
        keys = self._prefixes.keys(sequence.tokens)
        found = self._prefixes.match(keys)
        total = len(sequence.tokens)
        reused = self._rules.reuse(len(found) * BLOCK_TOKENS, total)
        for index, block in enumerate(found[: blocks_of(reused)]):
            start = index * BLOCK_TOKENS
            self._cache[:, slot, :, start : start + BLOCK_TOKENS] = block.target
            if block.draft is not None:
                self._drafter.put(slot, start, block.draft)
        sequence.keys = keys[: len(found)]
        if not sequence.preempted:
            self._counters.prefix_queries += total
            self._counters.prefix_hits += reused
            sequence.cached_tokens = self._rules.cached(reused)
        if reused:
            self._rules.warm(sequence)
        return reused

    def _remember(self) -> None:
        """Offer the prefix cache every block filled since the last step."""
        for slot, row in enumerate(self._rows):
            # Of the last window a drafter may not have been fed anything yet.
            computed = len(row.tokens) - 1 - self._drafter.tokens
            if computed // BLOCK_TOKENS <= len(row.keys):
                continue
            first, row.keys = len(row.keys), self._prefixes.keys(row.tokens[:computed], row.keys)
            for index in range(first, len(row.keys)):
                self._prefixes.put(row.keys[index], partial(self._block, slot, index))

    def _block(self, slot: int, index: int) -> Block:
        start, end = index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS
        return Block(index=index, target=self._cache[:, slot, :, start:end].copy(), draft=self._drafter.block(slot, start, end))

    def _prefill(self, prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp], slot: int) -> NDArray[np.float32]:
        """Return the last hidden states of prompts.

        ``prompts`` is (n, longest), the result one line a token. Only a prompt alone is long enough to need
        chunks.
        """
        chunks = [
            self._target.forward(
                prompts[:, at : at + _CHUNK_TOKENS],
                self._cache,
                starts + at,
                slot=slot,
                counts=np.minimum(counts - at, _CHUNK_TOKENS),
                tap=self._drafter.tap,
            )
            for at in range(0, prompts.shape[1], _CHUNK_TOKENS)
        ]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def _score(self, sequence: RunningSequence, hidden: NDArray[np.float32], end: int) -> None:
        top = sequence.request.prompt_logprobs
        if top is not None and sequence.index == 0 and not sequence.preempted:
            logits = self._target.logits(hidden[end - len(sequence.tokens) : end - 1])
            varied = self._numerics.vary(logits, Kernel.PREFILL, places([], sequence.tokens[:-1])[1:], 1)
            logits = self._rules.report_prompt(varied)
            sequence.prompt_entries = entries(logits, sequence.tokens[1:], top)

    def _first_tokens(self, group: list[RunningSequence], logits: NDArray[np.float32]) -> list[Delta]:
        distribution = distributions(self._shape(group, logits), Sampling.of(s.request for s in group))
        uniforms = np.concatenate([s.random.random(1) for s in group])
        for sequence in group:
            if sequence.preempted:
                sequence.drafted.append(0)
                sequence.accepted.append(0)
        return [
            s.take([token], _entries(s, raw[None], [token]))
            for s, token, raw in zip(group, pick(distribution, uniforms).tolist(), logits, strict=True)
        ]

    def _decode(self) -> list[Delta]:
        rows, n, k = self._rows, len(self._rows), self._drafter.tokens
        sampling = self._sampling = self._sampling or self._rules.sampling(rows)
        uniforms = self._rules.draw(rows, 2 * k + 1)
        draft = self._shrunk(self._rules.drafts(self._drafter.propose(rows, sampling, uniforms[:, :k]), rows))
        fed = np.concatenate([np.array([[row.tokens[-1]] for row in rows], np.intp), draft.tokens], axis=1)
        live = draft.counts + 1
        span = Span.of(self._lengths[:n], fed.shape[1], rotations=self._target.rotations, slot=0, counts=live)
        placed = self._rules.place(rows, span, self._target.rotations)
        logits = self._vary(self._target.logits(self._target.over(placed, fed, self._cache, tap=self._drafter.tap)), draft)
        shaped = self._shape(rows, logits, draft)
        p = self._rules.target(self._rules.distribute(shaped, sampling.repeat(live), draft), shaped, draft)
        chances = self._rules.deal(rows, self._rules.share(uniforms, k, draft.width))
        windows = self._rules.settle(rows, draft, self._rules.verify(rows, p, draft, chances, self._rules))
        self._lengths[:n] = self._rules.keep(self._lengths[:n], windows.accepted, draft.counts, self._most)
        return self._hand_out(draft, windows.accepted.tolist(), windows.last.tolist(), logits)

    def _vary(self, logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
        """Return packed logits as the step's kernel computes them.

        It is the kernel of a decode or of a verify step.
        """
        if self._numerics.exact:
            return logits
        lots = zip(self._rows, draft.tokens.tolist(), draft.counts.tolist(), strict=True)
        rows = [place for row, tokens, count in lots for place in places(row.tokens, tokens[:count])]
        return self._numerics.vary(logits, Kernel.VERIFY if self._drafter.tokens else Kernel.DECODE, rows, len(self._rows))

    def _shrunk(self, draft: DraftProposal) -> DraftProposal:
        """Return the part of a draft within both contexts.

        The target's context must have room for it and for the token after it, the drafter's for the draft.
        """
        tokens = self._lengths[: len(draft.counts)] + 1
        return replace(draft, counts=self._rules.shrink(draft.counts, self._most - tokens, self._drafter.context - tokens))

    def _hand_out(self, draft: DraftProposal, accepted: list[int], last: list[int], logits: NDArray[np.float32]) -> list[Delta]:
        deltas = []
        lots = zip(self._rows, draft.tokens.tolist(), draft.counts.tolist(), accepted, last, draft.starts.tolist(), strict=True)
        for slot, (row, tokens, drafted, kept, final, start) in enumerate(lots):
            row.drafted.append(drafted)
            row.accepted.append(kept)
            self._counters.drafted(*self._rules.count(drafted, kept))
            window = [*tokens[:kept], final]
            reported = self._rules.report(logits[start : start + kept + 1], draft, slot)
            deltas.append(row.take(window, self._rules.list_entries(row.request, _entries(row, reported, window))))
        return deltas

    def _shape(self, rows: list[RunningSequence], logits: NDArray[np.float32], draft: DraftProposal | None = None) -> NDArray[np.float32]:
        """Return packed logits with penalties, grammars and min_tokens applied.

        A token forbidden by a grammar or by min_tokens gets -inf. Where nothing applies it is the very array.
        """
        states = self._rules.states(rows)
        bound = [slot for slot, state in enumerate(states) if state != (None, None) or rows[slot].held_back]
        if not bound:
            return logits
        shaped = logits.copy()
        for slot in bound:
            length, start = (0, slot) if draft is None else (int(draft.counts[slot]), int(draft.starts[slot]))
            drafted = [] if draft is None else draft.tokens[slot, :length].tolist()
            window, (grammar, penalties) = shaped[start : start + length + 1], states[slot]
            if penalties is not None:
                window[:] = self._rules.penalise(window, penalties, drafted)
            if grammar is not None:
                window[~self._rules.mask(walk(grammar, drafted))] = -np.inf
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
