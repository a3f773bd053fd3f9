"""The scheduler: sequences that join and leave a batch between steps, and the steps that advance them.

A row is a running sequence; its slot is its part of the cache of keys and values. A step feeds its last token and its draft, and emits its
window: the accepted draft tokens and one more. Matrices are packed: one line for each token fed. Blocks of 16 tokens are the unit of the
prefix cache, and of the cache that rows may fill.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference import images
from specdec_reference.adapters import select_lines
from specdec_reference.grammar import walk
from specdec_reference.model import Span
from specdec_reference.numerics import Kernel, Numerics, text_positions
from specdec_reference.prefix_cache import BLOCK_TOKENS, Block, PrefixCache, blocks_of
from specdec_reference.sampler import Entry, Sampling, distributions, entries, pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from specdec_reference.adapters import AdaptedLines, Adapter
    from specdec_reference.drafters import Drafter
    from specdec_reference.grammar import Grammar
    from specdec_reference.images import Patch
    from specdec_reference.metrics import Counters
    from specdec_reference.model import Model
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
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
        offloaded_blocks: int = 0,
        numerics: Numerics | None = None,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        self.target = target
        self._adapters = adapters or {}
        self.drafter = drafter
        self._slots = slots
        self._counters = counters
        self._rules = rules
        self._numerics = numerics or Numerics()
        self._cache = target.cache(slots)
        self._blocks = blocks or slots * blocks_of(self._cache.shape[3])
        """That running sequences share; a sequence holds those of its tokens and of its next window."""
        self.prefixes = PrefixCache(self._blocks if prefix_caching else 0, rules, offloaded=offloaded_blocks)
        self._arrived = 0
        self._most = self._cache.shape[3] - 1 - drafter.tokens
        """The longest cache length, in tokens, after which a whole window still fits: the context of a request."""
        self.lengths = np.zeros(slots, np.intp)
        """Tokens in the cache by slot: everything but the last token of a sequence, which the next step feeds."""
        self.rows: list[RunningSequence] = []
        self._waiting: deque[RunningSequence] = deque()
        self._sampling: Sampling | None = None  # of the rows; None once they have changed

    @property
    def busy(self) -> bool:
        """True if a step would do anything."""
        return bool(self.rows or self._waiting)

    def add(self, sequence: RunningSequence) -> None:
        """Queue a sequence."""
        sequence.arrival = self._arrived
        self._arrived += 1
        self._waiting.append(sequence)
        self._update_gauges()

    def drop(self, sequences: set[RunningSequence]) -> None:
        """Forget sequences of disconnected clients."""
        self._waiting = deque(s for s in self._waiting if s not in sequences)
        self._free_slots([slot for slot, row in enumerate(self.rows) if row in sequences])

    def clear(self) -> list[RunningSequence]:
        """Forget every sequence and return them all, even after a failed step."""
        dropped = [*self.rows, *self._waiting]
        self.rows.clear()
        self._waiting.clear()
        self._update_gauges()
        return dropped

    def step(self) -> list[Delta]:
        """Advance running sequences by one window, then let waiting ones in.

        Where blocks run out, the last to arrive are preempted before that, and no waiting sequence is let in.
        """
        preempted = self._preempt()
        deltas = [sequence.give_up() for sequence in preempted if not self._rules.resume(self._waiting, sequence)]
        deltas += self._decode_step() if self.rows else []
        if not preempted:
            deltas += self._prefill_waiting()
        self._cache_filled_blocks()
        self._free_slots([slot for slot, row in enumerate(self.rows) if row.finish_reason is not None])
        self._counters.generation_tokens += sum(len(delta.tokens) for delta in deltas)
        return deltas

    def _prefill_waiting(self) -> list[Delta]:
        """Prefill waiting sequences and draw their first tokens.

        Empty where none may enter. What the prefix cache has of a sequence is not computed again. A preempted
        sequence's emitted tokens are prefilled as a part of its prompt.
        """
        group = self._choose_prefills()
        if not group:
            return []
        slot, lengths = len(self.rows), np.array([len(s.tokens) for s in group], np.intp)
        starts = np.array([self.reuse_prefix(sequence, slot + row) for row, sequence in enumerate(group)], np.intp)
        prompts, fed = _pad_prompts([s.tokens[start:] for s, start in zip(group, starts.tolist(), strict=True)]), lengths - starts
        hidden = self._prefill(group, prompts, starts, fed, slot)
        self.drafter.enter(slot, prompts, starts, fed)
        self.rows += group
        for _ in group:
            self._waiting.popleft()
        self.lengths[slot : slot + len(group)] = lengths
        self._sampling = None
        self._counters.prompt_tokens += sum(len(s.tokens) for s in group if not s.preempted)
        ends = np.cumsum(fed)  # the line after each prompt's last
        for sequence, end in zip(group, ends.tolist(), strict=True):
            self._score_prompt(sequence, hidden, end)
        logits = self.target.logits(hidden[ends - 1])
        prompt_places = [place for sequence in group for place in text_positions(sequence.tokens)]
        return self._draw_first_tokens(group, self._numerics.vary(logits, Kernel.PREFILL, prompt_places, len(group)))

    def _choose_prefills(self) -> list[RunningSequence]:
        """Return the first waiting sequences to prefill now.

        One, and more as long as their prompts, filled up to the longest, have few enough tokens. Empty without a free slot or enough free
        blocks; where no row is running, the first one needs no free blocks.
        """
        group: list[RunningSequence] = []
        longest, free = 0, self._blocks - sum(map(self._count_blocks, self.rows))
        for sequence in islice(self._waiting, self._slots - len(self.rows)):
            longest = max(longest, len(sequence.tokens))
            free -= self._count_blocks(sequence)
            # Rows are filled up to the longest, and one of them may begin after as many reused tokens: both must fit the cache.
            is_too_wide = longest * (len(group) + 1) > _PREFILL_TOKENS or 2 * longest > self._cache.shape[3]
            if (group and is_too_wide) or (free < 0 and (group or self.rows)):
                break
            group.append(sequence)
        return group

    def _count_blocks(self, sequence: RunningSequence) -> int:
        """Return the number of blocks for a sequence's tokens and next window."""
        return blocks_of(len(sequence.tokens) + self.drafter.tokens + 1)

    def _preempt(self) -> list[RunningSequence]:
        """Preempt the last to arrive until all next windows fit.

        Returns the preempted sequences, the earliest to arrive last: the caller puts each in turn at the queue's head.
        Their emitted tokens are prefilled again after their prompts when they come back. They keep their generators,
        grammars and penalties.
        """
        preempted: list[RunningSequence] = []
        by_arrival = sorted(self.rows, key=lambda row: row.arrival)
        while len(by_arrival) > 1 and sum(map(self._count_blocks, by_arrival)) > self._blocks:
            preempted.append(by_arrival.pop())
        for sequence in preempted:
            sequence.preempted += 1
        self._counters.preemptions += len(preempted)
        self._free_slots([slot for slot, row in enumerate(self.rows) if row in preempted])
        return preempted

    def reuse_prefix(self, sequence: RunningSequence, slot: int) -> int:
        """Copy the cached prefix of a sequence into its slot.

        Returns the number of tokens copied; 0 where the prompt is scored, which takes a forward of all its tokens.
        """
        if sequence.request.prompt_logprobs is not None and not sequence.preempted:
            return 0
        keys = self.prefixes.keys(self._rules.identify(sequence), adapter=sequence.request.adapter)
        blocks = self.prefixes.match(keys)
        total = len(sequence.tokens)
        reused = self._rules.reuse(len(blocks) * BLOCK_TOKENS, total)
        for index, block in enumerate(blocks[: blocks_of(reused)]):
            start = index * BLOCK_TOKENS
            self._cache[:, slot, :, start : start + BLOCK_TOKENS] = block.target
            if block.draft is not None:
                self.drafter.put(slot, start, block.draft)
        sequence.keys = keys[: len(blocks)]
        if not sequence.preempted:
            self._counters.prefix_queries += total
            self._counters.prefix_hits += reused
            sequence.cached_tokens = reused
        return reused

    def _cache_filled_blocks(self) -> None:
        """Offer the prefix cache every block filled since the last step."""
        for slot, row in enumerate(self.rows):
            # Of the last window a drafter may not have been fed anything yet: its tokens count as missing.
            computed = len(row.tokens) - 1 - self.drafter.tokens
            if computed // BLOCK_TOKENS <= len(row.keys):
                continue
            first, row.keys = len(row.keys), self.prefixes.keys(self._rules.identify(row)[:computed], row.keys, adapter=row.request.adapter)
            for index in range(first, len(row.keys)):
                self.prefixes.put(row.keys[index], partial(self.copy_block, slot, index))

    def copy_block(self, slot: int, index: int) -> Block:
        """Return copies of one block's keys and values."""
        start, end = index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS
        return Block(index=index, target=self._cache[:, slot, :, start:end].copy(), draft=self.drafter.block(slot, start, end))

    def _find_patches(self, group: list[RunningSequence], starts: NDArray[np.intp]) -> dict[tuple[int, int], Patch]:
        """Return the patches of images to be computed, by line and column of the prompts.

        ``starts`` are the tokens taken from the prefix cache, whose patches are there.
        """
        lines = zip(group, starts.tolist(), strict=True)
        return {
            (line, patch.position - start): patch
            for line, (sequence, start) in enumerate(lines)
            for patch in sequence.request.patches
            if patch.position >= start
        }

    def _prefill(
        self, group: list[RunningSequence], prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp], slot: int
    ) -> NDArray[np.float32]:
        """Return the last hidden states of prompts, one line a token.

        ``prompts`` is (n, longest); row i has ``counts[i]`` tokens to compute, from position ``starts[i]`` on. Only a
        prompt alone is long enough to need chunks. Patches of images are fed instead of their placeholders, as ids beyond
        the vocabulary.
        """
        target, patches = self.target, self._find_patches(group, starts)
        if patches:
            prompts = prompts.copy()
            prompts[tuple(np.array([*patches]).T)] = target.shape.vocabulary + np.arange(len(patches))
            target = target.with_embeddings(images.embed([*patches.values()], target.embedding))
        chunks = [
            target.forward(
                prompts[:, chunk_start : chunk_start + _CHUNK_TOKENS],
                self._cache,
                starts + chunk_start,
                slot=slot,
                counts=(chunk_counts := np.minimum(counts - chunk_start, _CHUNK_TOKENS)),
                tap=self.drafter.tap,
                adapted=self._select_adapted(group, chunk_counts),
            )
            for chunk_start in range(0, prompts.shape[1], _CHUNK_TOKENS)
        ]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def _score_prompt(self, sequence: RunningSequence, hidden: NDArray[np.float32], end: int) -> None:
        """Store the requested log-probabilities of a prompt.

        ``end`` is the line of ``hidden`` after the prompt's last one.
        """
        top = sequence.request.prompt_logprobs
        # The choices of a request share one prompt: the first has its entries.
        if top is not None and sequence.index == 0 and not sequence.preempted:
            logits = self.prompt_logits(sequence, hidden[end - len(sequence.tokens) : end - 1])
            sequence.prompt_entries = entries(logits, sequence.tokens[1:], top)

    def prompt_logits(self, sequence: RunningSequence, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the raw logits of a prompt's tokens but the first, (tokens - 1, vocabulary)."""
        return self._numerics.vary(self.target.logits(hidden), Kernel.PREFILL, text_positions([], sequence.tokens[:-1])[1:], 1)

    def _draw_first_tokens(self, group: list[RunningSequence], logits: NDArray[np.float32]) -> list[Delta]:
        """Draw the token after each prompt.

        The first token of an answer is the prefill's and no step. A preempted sequence is in mid-answer: there the token is a step
        without a draft.
        """
        distribution = distributions(self._shape_logits(group, logits), Sampling.of(s.request for s in group))
        uniforms = np.concatenate([s.random.random(1) for s in group])
        for sequence in group:
            if sequence.preempted:
                sequence.drafted.append(0)
                sequence.accepted.append(0)
        return [
            s.take([token], _reported_entries(s, raw[None], [token]))
            for s, token, raw in zip(group, pick(distribution, uniforms).tolist(), logits, strict=True)
        ]

    def _decode_step(self) -> list[Delta]:
        """Draft, verify and emit one window for every row.

        A row's 2k + 1 random numbers are k to draft by, k to accept by and one to draw the last token by.
        """
        rows, n, k = self.rows, len(self.rows), self.drafter.tokens
        sampling = self._sampling = self._sampling or self._rules.sampling(rows)
        uniforms = self._rules.draw(rows, 2 * k + 1)
        draft = self._shrink_to_contexts(self.drafter.propose(rows, sampling, uniforms[:, :k]))
        fed = np.concatenate([np.array([[row.tokens[-1]] for row in rows], np.intp), draft.tokens], axis=1)
        span = self.place(rows, draft, self.target.rotations)
        adapted = self._select_adapted(rows, draft.counts + 1)
        hidden = self.target.forward_span(span, fed, self._cache, tap=self.drafter.tap, adapted=adapted)
        logits = self._apply_numerics(self.target.logits(hidden), draft)
        shaped = self._shape_logits(rows, logits, draft)
        p = self._rules.distribute(shaped, sampling.repeat(draft.counts + 1), draft)
        windows = self._rules.verify(rows, p, draft, self._rules.numbers_to_verify(uniforms, k, draft.width), self._rules)
        self.lengths[:n] = self._rules.keep(self.lengths[:n], windows.accepted, draft.counts, self._most)
        return self.hand_out(draft, windows, logits)

    def _select_adapted(self, rows: list[RunningSequence], counts: NDArray[np.intp]) -> tuple[AdaptedLines, ...]:
        """Return the lines of a forward by adapter; empty on a server without any."""
        return select_lines(self._rules.adapt(rows, counts.tolist()), self._adapters) if self._adapters else ()

    def place(self, rows: list[RunningSequence], draft: DraftProposal, rotations: NDArray[np.complex64]) -> Span:
        """Return the span of the verify step, with each row's last token and draft.

        It says at which positions they stand and which ones they see. ``rotations`` are RoPE's turns by position.
        """
        return Span.of(self.lengths[: len(rows)], draft.width + 1, rotations=rotations, slot=0, counts=draft.counts + 1)

    def _apply_numerics(self, logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
        """Return packed logits with the noise of the step's kernel, decode or verify.

        Without ``--numerics`` they are returned as they are.
        """
        if self._numerics.exact:
            return logits
        row_drafts = zip(self.rows, draft.tokens.tolist(), draft.counts.tolist(), strict=True)
        row_places = [place for row, tokens, count in row_drafts for place in text_positions(row.tokens, tokens[:count])]
        return self._numerics.vary(logits, Kernel.VERIFY if self.drafter.tokens else Kernel.DECODE, row_places, len(self.rows))

    def _shrink_to_contexts(self, draft: DraftProposal) -> DraftProposal:
        """Return a draft cut to the room in both contexts.

        The target's context must have room for it and for the token after it, the drafter's for the draft.
        """
        tokens = self.lengths[: len(draft.counts)] + 1  # those in the cache and the one that this step feeds
        return replace(draft, counts=self._rules.shrink(draft.counts, self._most - tokens, self.drafter.context - tokens))

    def hand_out(self, draft: DraftProposal, windows: VerifyWindows, logits: NDArray[np.float32]) -> list[Delta]:
        """Count the rows' windows, append them to the sequences, and return the deltas.

        ``logits`` are the raw ones to report, row after row.
        """
        deltas = []
        columns = (draft.tokens, draft.counts, windows.accepted, windows.last, draft.starts)
        # One row after the other, as Python's numbers.
        for row, tokens, drafted, accepted, last, start in zip(self.rows, *(column.tolist() for column in columns), strict=True):
            row.drafted.append(drafted)
            row.accepted.append(accepted)
            self._counters.count_step(drafted, accepted)
            window = [*tokens[:accepted], last]
            deltas.append(row.take(window, self.report(row, logits[start : start + len(window)], window)))
        return deltas

    def report(self, row: RunningSequence, logits: NDArray[np.float32], window: list[int]) -> list[Entry]:
        """Return the entries of a verified window, accepted drafts first."""
        return _reported_entries(row, logits, window)

    def mask(self, grammar: Grammar, drafted: list[int]) -> NDArray[np.bool_]:
        """Return the grammar's mask at each draft token and after the last, (len(drafted) + 1, vocabulary)."""
        return walk(grammar, drafted)

    def _shape_logits(
        self, rows: list[RunningSequence], logits: NDArray[np.float32], draft: DraftProposal | None = None
    ) -> NDArray[np.float32]:
        """Return packed logits with penalties, grammars, min_tokens and budgets applied.

        A token forbidden by a grammar, by min_tokens or by the reasoning's budget gets -inf. Where nothing applies, ``logits`` itself is
        returned. Without ``draft`` each row has one line.
        """
        states = self._rules.states(rows)
        shaped_slots = [
            slot for slot, state in enumerate(states) if state != (None, None) or rows[slot].held_back or rows[slot].limited_reasoning
        ]
        if not shaped_slots:
            return logits
        shaped = logits.copy()
        for slot in shaped_slots:
            length, start = (0, slot) if draft is None else (int(draft.counts[slot]), int(draft.starts[slot]))
            drafted = [] if draft is None else draft.tokens[slot, :length].tolist()
            window, (grammar, penalties) = shaped[start : start + length + 1], states[slot]
            if penalties is not None:
                window[:] = self._rules.penalise(window, penalties, drafted)
            if grammar is not None:
                window[~self.mask(grammar, drafted)] = -np.inf
            elif rows[slot].held_back:  # a document ends where its grammar says
                self._rules.forbid(window, rows[slot].end_ids, rows[slot].held_back)
            if split := rows[slot].limited_reasoning:
                forced = self._rules.force_end(split, drafted)
                window[forced] = -np.inf
                window[forced, split.end] = 0.0  # the only token left
        return shaped

    def _free_slots(self, slots: list[int]) -> None:
        """Free slots, in ascending order, and fill the gaps with the last rows."""
        for slot in reversed(slots):
            last_slot = len(self.rows) - 1
            if slot != last_slot:
                length = int(self.lengths[last_slot])
                self._cache[:, slot, :, :length] = self._cache[:, last_slot, :, :length]
                self.drafter.move(last_slot, slot, len(self.rows[last_slot].tokens))
                self.lengths[slot] = length
                self.rows[slot] = self.rows[last_slot]
            self.rows.pop()
        if slots:
            self._sampling = None
        self._update_gauges()

    def _update_gauges(self) -> None:
        self._counters.running = len(self.rows)
        self._counters.waiting = len(self._waiting)


def _reported_entries(row: RunningSequence, logits: NDArray[np.float32], window: list[int]) -> list[Entry]:
    """Return the entries of a window; empty without requested log-probabilities."""
    return [] if row.request.logprobs is None else entries(logits, window, row.request.logprobs)


def _pad_prompts(prompts: list[list[int]]) -> NDArray[np.intp]:
    """Return prompts as one array, filled up with zeros."""
    filled = np.zeros((len(prompts), max(map(len, prompts))), np.intp)
    for line, prompt in zip(filled, prompts, strict=True):
        line[: len(prompt)] = prompt
    return filled
