"""Drafters: prompt lookup and a draft model, each proposing tokens for a whole batch; the EAGLE head is in ``eagle.py``.

A batch has n rows, the running sequences; row i sits in slot i of every cache. A draft has at most k tokens a row. ``uniforms`` are random
numbers in [0, 1) that draft tokens are drawn by. A row's ``grammar`` says which tokens may come next; None where any may.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import numpy as np

from specdec_reference.rejection_sampler import DraftProposal
from specdec_reference.sampler import distributions, pick

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.eagle import EagleHead
    from specdec_reference.model import Model, Tap
    from specdec_reference.prefix_cache import DraftBlock
    from specdec_reference.rules import EngineRules
    from specdec_reference.sampler import Sampling
    from specdec_reference.sequence import RunningSequence


DraftWeights: TypeAlias = "Model | EagleHead"


class Drafter(Protocol):
    """Proposes tokens for a batch; row i of it sits in slot i."""

    tokens: int
    """Draft tokens a step at most: k."""
    context: int
    """The longest sequence, in tokens, with useful drafts; its proposals for a longer one are not verified."""

    @property
    def tap(self) -> Tap | None:
        """Observer of the target's forwards.

        None where the drafter needs none of the target's hidden states.
        """

    @property
    def weights(self) -> DraftWeights | None:
        """Its weights; None for a drafter without any."""

    def put_weights(self, weights: DraftWeights | None) -> None:
        """Take other weights of the same form."""

    def enter(self, slot: int, prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """Take in the prompts of the slots from ``slot`` on.

        ``prompts`` is (n, longest). Row i holds ``counts[i]`` tokens for slot ``slot + i``, from position
        ``starts[i]`` on; :meth:`put` has restored those before.
        """

    def block(self, slot: int, start: int, end: int) -> DraftBlock | None:
        """Return a copy of the slot's state for some tokens.

        They are the tokens from ``start`` up to ``end``, a block of the prefix cache. None for a drafter without a cache.
        """

    def put(self, slot: int, start: int, block: DraftBlock) -> None:
        """Restore a copy made by :meth:`block`."""

    def move(self, source: int, target: int, length: int) -> None:
        """Follow a sequence of ``length`` tokens to another slot."""

    def propose(self, rows: Rows[RunningSequence], sampling: Sampling, uniforms: NDArray[np.float64]) -> DraftProposal:
        """Return a draft for every row; ``uniforms`` is (n, k)."""


class NoDrafter:
    """The baseline's drafter: it never proposes anything."""

    tokens = 0
    context = sys.maxsize
    tap: Tap | None = None
    weights: DraftWeights | None = None

    def put_weights(self, weights: DraftWeights | None) -> None:
        """Do nothing: it has no weights."""

    def enter(self, slot: int, prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """Do nothing: it needs no prompt."""

    def block(self, slot: int, start: int, end: int) -> DraftBlock | None:
        """Return None: it has no cache."""

    def put(self, slot: int, start: int, block: DraftBlock) -> None:
        """Do nothing: it has no cache."""

    def move(self, source: int, target: int, length: int) -> None:
        """Do nothing: it has no cache."""

    def propose(self, rows: Rows[RunningSequence], sampling: Sampling, uniforms: NDArray[np.float64]) -> DraftProposal:  # noqa: ARG002 - the protocol's
        """Return an empty draft."""
        return DraftProposal(tokens=np.zeros((len(rows), 0), np.intp), counts=np.zeros(len(rows), np.intp))


def lookup(tokens: Rows[int], n_min: int, n_max: int, k: int) -> tuple[int, ...]:
    """Return the tokens after an earlier occurrence of the last n-gram.

    At most ``k`` tokens; () without an earlier occurrence.

    ``tokens`` are the prompt and everything emitted so far. n runs from ``n_max`` down to ``n_min``; the
    first n for which ``tokens[i:i+n] == tokens[len(tokens)-n:]`` for some ``i < len(tokens) - n`` decides,
    with the smallest such ``i``: the earliest occurrence of the longest matching n-gram, as in vLLM.
    Occurrences may overlap the suffix. The draft is ``tokens[i+n:i+n+k]``. It stops at the end of ``tokens``,
    so it may be shorter than ``k`` but never empty.
    """
    # Ids as bytes of equal width: ``bytes.find`` searches all positions in one call.
    ids = array("I", tokens)
    id_bytes, bytes_per_id, total = ids.tobytes(), ids.itemsize, len(ids)
    for n in range(min(n_max, total - 1), n_min - 1, -1):
        suffix = id_bytes[-n * bytes_per_id :]
        byte_offset = id_bytes.find(suffix, 0, (total - 1) * bytes_per_id)  # without the last id: the suffix is not its own match
        # A match that begins inside an id is none.
        while byte_offset % bytes_per_id and byte_offset != -1:
            byte_offset = id_bytes.find(suffix, byte_offset + 1, (total - 1) * bytes_per_id)
        if byte_offset != -1:
            start = byte_offset // bytes_per_id + n
            return tuple(ids[start : start + k])
    return ()


class NgramDrafter:
    """Prompt lookup: no model, the sequence's own past proposes; see :func:`lookup`."""

    context = sys.maxsize
    tap: Tap | None = None
    weights: DraftWeights | None = None

    def put_weights(self, weights: DraftWeights | None) -> None:
        """Do nothing: it has no weights."""

    def __init__(self, *, tokens: int, n_min: int, n_max: int) -> None:
        self.tokens = tokens
        self.n_min = n_min
        self.n_max = n_max

    def enter(self, slot: int, prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """Do nothing: it reads the prompt off the sequence."""

    def block(self, slot: int, start: int, end: int) -> DraftBlock | None:
        """Return None: it has no cache."""

    def put(self, slot: int, start: int, block: DraftBlock) -> None:
        """Do nothing: it has no cache."""

    def move(self, source: int, target: int, length: int) -> None:
        """Do nothing: it has no cache."""

    def propose(self, rows: Rows[RunningSequence], sampling: Sampling, uniforms: NDArray[np.float64]) -> DraftProposal:  # noqa: ARG002 - the protocol's
        """Return the draft found by prompt lookup for each row.

        A row without an earlier occurrence proposes nothing. A draft ends before the first token that the
        row's grammar would refuse.
        """
        drafts = [self._look_up_draft(row) for row in rows]
        counts = np.array([len(draft) for draft in drafts], np.intp)
        tokens = np.zeros((len(rows), int(counts.max(initial=0))), np.intp)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft)] = draft
        return DraftProposal(tokens=tokens, counts=counts)

    def _look_up_draft(self, row: RunningSequence) -> tuple[int, ...]:
        """Return one row's draft; empty without an earlier occurrence."""
        draft = lookup(row.tokens, self.n_min, self.n_max, self.tokens)
        return draft if row.grammar is None else row.grammar.allowed_prefix(draft)


class ModelDrafter:
    """A smaller model of the same vocabulary, with a cache of its own.

    Its cache holds the tokens fed to it: those of accepted drafts are in place, those of a rejected draft are
    overwritten. A sequence longer than its own context goes on without drafts.
    """

    tap: Tap | None = None

    def __init__(self, model: Model, *, tokens: int, slots: int, probabilistic: bool, context: int, rules: EngineRules) -> None:
        """Take the model and its settings.

        ``tokens`` is k, the draft tokens a step; ``slots`` the sequences that its cache holds at once;
        ``probabilistic`` drafts are drawn, others are the best tokens. Sequences longer than ``context`` tokens
        get no useful drafts: the model has positions for ``context`` tokens and for a window more.
        """
        self.tokens = tokens
        self.context = context
        self._model = model
        self._rules = rules
        self._cache = model.cache(slots)
        self._probabilistic = probabilistic

    @property
    def weights(self) -> DraftWeights:
        """The model."""
        return self._model

    def put_weights(self, weights: DraftWeights | None) -> None:
        """Draft with another model of the same form."""
        self._model = cast("Model", weights)

    def enter(self, slot: int, prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """Fill the slots' cache with the prompts.

        Row i of ``prompts`` has ``counts[i]`` tokens for slot ``slot + i``, from position ``starts[i]`` on. Those beyond the
        draft model's context are left out.
        """
        counts = np.clip(self.context - starts, 0, counts)
        if counts.any():
            self._model.forward(prompts[:, : counts.max()], self._cache, starts, slot=slot, counts=counts)

    def block(self, slot: int, start: int, end: int) -> DraftBlock | None:
        """Copy a part of the slot's cache."""
        return (self._cache[:, slot, :, start:end].copy(),)

    def put(self, slot: int, start: int, block: DraftBlock) -> None:
        """Write a part of the slot's cache."""
        (copied,) = block
        self._cache[:, slot, :, start : start + copied.shape[2]] = copied

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the slot's cache."""
        self._cache[:, target, :, :length] = self._cache[:, source, :, :length]

    def propose(self, rows: Rows[RunningSequence], sampling: Sampling, uniforms: NDArray[np.float64]) -> DraftProposal:
        """Return k draft tokens for each row.

        They are drawn from the draft's own processed distribution, or are its best tokens when it drafts
        greedily.
        """
        n = len(rows)
        # A row beyond the draft's context is fed at its last positions: nothing of it is used, then or later.
        lengths = np.minimum(np.array(self._rules.draft_lengths(rows), np.intp), self.context)
        # The last two tokens are fed: when a whole draft was accepted, its last token has not been fed yet.
        fed = np.array([row.tokens[-2:] for row in rows], np.intp)
        step = 0

        def next_logits(drafted: NDArray[np.intp] | None) -> NDArray[np.float32]:
            """Feed the tokens drafted last and return the logits after them."""
            nonlocal step
            tokens = fed if drafted is None else drafted[:, None]
            hidden = self._model.forward(tokens, self._cache, lengths - tokens.shape[1] + step)
            step += 1
            return self._model.logits(hidden.reshape(n, tokens.shape[1], -1)[:, -1])

        return draw_draft(rows, sampling, uniforms, next_logits, probabilistic=self._probabilistic)


def draw_draft(
    rows: Rows[RunningSequence],
    sampling: Sampling,
    uniforms: NDArray[np.float64],
    logits_after: Callable[[NDArray[np.intp] | None], NDArray[np.float32]],
    *,
    probabilistic: bool,
) -> DraftProposal:
    """Return k draft tokens for each row, drawn or greedy.

    They are drawn by ``uniforms`` (n, k) from the distribution after temperature, top-k and the like, which then is the proposal's ``q``,
    or are the best ones when drafting greedily. ``logits_after`` gives the draft's logits (n, vocabulary). It is called k times: with None
    for the first draft token, then with the tokens (n,) drafted last.
    """
    n, k = uniforms.shape
    drafted = np.zeros((n, k), np.intp)
    q: list[NDArray[np.float32]] = []
    for step in range(k):
        logits = logits_after(drafted[:, step - 1] if step else None)
        _mask_by_grammars(rows, logits)
        if probabilistic:
            q.append(distributions(logits, sampling))
            drafted[:, step] = pick(q[-1], uniforms[:, step])
        else:
            drafted[:, step] = logits.argmax(axis=1)
        _advance_grammars(rows, drafted[:, step])
    _retreat_grammars(rows, k)  # none of the draft tokens is accepted yet
    return DraftProposal(tokens=drafted, counts=np.full(n, k, np.intp), q=np.stack(q, axis=1) if probabilistic else None)


def _mask_by_grammars(rows: Rows[RunningSequence], logits: NDArray[np.float32]) -> None:
    """Set each row's logits outside its grammar to -inf."""
    for row, row_logits in zip(rows, logits, strict=True):
        if row.grammar is not None:
            row_logits[~row.grammar.mask()] = -np.inf


def _advance_grammars(rows: Rows[RunningSequence], tokens: NDArray[np.intp]) -> None:
    """Advance each row's grammar by its newest draft token."""
    for row, token in zip(rows, tokens.tolist(), strict=True):
        if row.grammar is not None:
            row.grammar.advance(token)


def _retreat_grammars(rows: Rows[RunningSequence], count: int) -> None:
    """Take back ``count`` draft tokens from each row's grammar."""
    for row in rows:
        if row.grammar is not None:
            row.grammar.retreat(count)
