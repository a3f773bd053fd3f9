"""EAGLE-3: one decoder layer that drafts from the target's hidden states.

Li, Wei, Zhang, Zhang (2025), "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test". Position i of
the head is fed the target's hidden states at token i, fused from several layers, together with the embedding of token i + 1, as in
vLLM's ``llama_eagle3``. After the last token it goes on with its own hidden states.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from pytest_specdec.errors import EngineError
from specdec_reference.drafters import draw_draft
from specdec_reference.model import Layer, Span, fuse_layer, rms_normalize, rotations

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.checkpoint import Checkpoint, Shape
    from specdec_reference.drafters import DraftWeights
    from specdec_reference.model import Model
    from specdec_reference.prefix_cache import DraftBlock
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sampler import Sampling
    from specdec_reference.sequence import RunningSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleHead:
    """The head's weights; norms are folded into the matrix after them."""

    shape: Shape
    tapped: tuple[int, ...]
    """Layers of the target whose input it is fed."""
    fuse: NDArray[np.float32]
    """(tapped layers * hidden, hidden)."""
    embedding: NDArray[np.float32]
    """The target's, (vocabulary, hidden)."""
    layer: Layer
    """Its ``qkv`` takes 2 * hidden: the embedding, then the hidden state. Queries and keys are not normalised."""
    head: NDArray[np.float32]
    """(hidden, vocabulary)."""
    rotations: NDArray[np.complex64]

    def cache(self, slots: int) -> NDArray[np.float32]:
        """Return an empty cache.

        Its shape is (slots, keys then values by head, positions, head_dim).
        """
        return np.zeros((slots, 2 * self.shape.kv_heads, len(self.rotations), self.shape.head_dim), np.float32)

    def forward(
        self,
        tokens: NDArray[np.intp],
        states: NDArray[np.float32],
        cache: NDArray[np.float32],
        lengths: NDArray[np.intp],
        *,
        slot: int = 0,
        counts: NDArray[np.intp] | None = None,
    ) -> NDArray[np.float32]:
        """Return the hidden states of the live tokens, one line each.

        ``tokens`` is (n, t); ``states`` (n, t, hidden) are the hidden states before them. Row i sits in slot ``slot + i`` of
        ``cache``, from position ``lengths[i]`` on. Its first ``counts[i]`` tokens are live, all for None; others fill the row up.
        """
        span = Span.of(lengths, tokens.shape[1], rotations=self.rotations, slot=slot, counts=counts)
        live = slice(None) if span.live is None else span.live
        embedded = self.embedding[tokens.ravel()[live]]
        residual: NDArray[np.float32] = states.reshape(-1, self.shape.hidden)[live].copy()
        epsilon = self.shape.norm_epsilon
        fed = np.concatenate([rms_normalize(embedded, epsilon), rms_normalize(residual, epsilon)], axis=1)
        residual += span.attend(self.shape, self.layer.head_scale, cache, fed @ self.layer.qkv, normed=False) @ self.layer.out
        gate, up = np.split(rms_normalize(residual, epsilon) @ self.layer.gate_up, 2, axis=1)
        # silu(2 g) = g (1 + tanh g), and the matrix gives half of the gate, as for the layers of a model.
        residual += (gate * (1.0 + np.tanh(gate)) * up) @ self.layer.down
        return residual

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the raw logits (rows, vocabulary) of hidden states (rows, hidden)."""
        logits: NDArray[np.float32] = rms_normalize(hidden, self.shape.norm_epsilon) @ self.head
        return logits


def load(checkpoint: Checkpoint, target: Model) -> EagleHead:
    """Return the head of a checkpoint for ``target``.

    It uses the target's embedding. Raises EngineError where the two do not fit.
    """
    shape, tensors = checkpoint.shape, checkpoint.tensors
    config = json.loads((checkpoint.folder / "config.json").read_text("utf-8"))
    tapped = tuple(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    _refuse_unfit(checkpoint, target, tapped)

    def tensor(name: str) -> NDArray[np.float32]:
        return tensors[f"midlayer.{name}.weight"]

    norms = np.concatenate([tensor("input_layernorm"), tensor("hidden_norm")])  # of the embedding and of the hidden state
    ones = np.ones(shape.head_dim, np.float32)  # a head has no norms of queries and keys
    layer = fuse_layer(
        shape,
        q=tensor("self_attn.q_proj") * norms,
        k=tensor("self_attn.k_proj") * norms,
        v=tensor("self_attn.v_proj") * norms,
        q_norm=ones,
        k_norm=ones,
        out=tensor("self_attn.o_proj"),
        gate=tensor("mlp.gate_proj") * tensor("post_attention_layernorm"),
        up=tensor("mlp.up_proj") * tensor("post_attention_layernorm"),
        down=tensor("mlp.down_proj"),
    )
    return EagleHead(
        shape=shape,
        tapped=tapped,
        fuse=np.ascontiguousarray(tensors["fc.weight"].T),
        embedding=target.embedding,
        layer=layer,
        head=np.ascontiguousarray((tensors["lm_head.weight"] * tensors["norm.weight"]).T),
        rotations=rotations(shape, len(target.rotations)),
    )


def _refuse_unfit(checkpoint: Checkpoint, target: Model, tapped: tuple[int, ...]) -> None:
    """Raise EngineError where the head does not fit ``target``.

    ``tapped`` are the target's layers whose hidden states the head reads.
    """
    hidden, vocabulary = target.shape.hidden, target.shape.vocabulary
    expected = {"fc.weight": (hidden, len(tapped) * hidden), "lm_head.weight": (vocabulary, hidden)}
    for name, size in expected.items():
        if checkpoint.tensors[name].shape != size:
            raise EngineError(
                what="the head does not fit the target",
                where=f"--speculative-config: model, {name} in {checkpoint.folder}",
                found=str(checkpoint.tensors[name].shape),
                expected=str(size),
                remedy="use a head that was trained on this target",
            )
    if max(tapped) >= target.shape.layers:
        raise EngineError(
            what="the head does not fit the target",
            where=f"--speculative-config: model, eagle_aux_hidden_state_layer_ids in {checkpoint.folder}",
            found=str(list(tapped)),
            expected=f"layers below {target.shape.layers}",
            remedy="use a head that was trained on this target",
        )


class EagleDrafter:
    """Drafts with a head; it watches every forward of the target and keeps the fused hidden states by position.

    Tokens of a sequence are fed to the head with hidden states of the target. In a draft it goes on with its own: what that writes into
    the cache is overwritten in later steps.
    """

    context = sys.maxsize

    def __init__(self, head: EagleHead, *, tokens: int, slots: int, probabilistic: bool) -> None:
        self.tokens = tokens
        self.layers = head.tapped
        self._head = head
        self._cache = head.cache(slots)
        self._states = np.zeros((slots, len(head.rotations), head.shape.hidden), np.float32)
        """The target's, fused, by slot and position."""
        self._fed = np.zeros(slots, np.intp)
        """Positions in the cache by slot whose hidden states were the target's."""
        self._probabilistic = probabilistic

    @property
    def weights(self) -> EagleHead:
        """The head."""
        return self._head

    def put_weights(self, weights: DraftWeights | None) -> None:
        """Draft with another head of the same form."""
        self._head = cast("EagleHead", weights)

    @property
    def tap(self) -> EagleDrafter:
        """The drafter itself."""
        return self

    def take(self, span: Span, states: Rows[NDArray[np.float32]]) -> None:
        """Store the inputs of the target's layers tapped by the head, fused.

        Each forward of the target calls this. ``states`` are these inputs, (live, hidden) each; ``span`` has the slots and positions
        of the live tokens.
        """
        live = slice(None) if span.live is None else span.live
        slots = np.repeat(np.arange(span.slot, span.slot + span.n), span.t)[live]
        self._states[slots, span.positions.ravel()[live]] = np.concatenate(states, axis=1) @ self._head.fuse

    def enter(self, slot: int, prompts: NDArray[np.intp], starts: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """Fill the slots' cache with the prompts.

        Row i of ``prompts`` has ``counts[i]`` tokens for slot ``slot + i``, from position ``starts[i]`` on: those before are a reused
        prefix. Each token is fed together with the hidden state before it. The first token of a sequence has none and is not fed.
        """
        n, longest = prompts.shape
        self._fed[slot : slot + n] = starts + counts - 1  # the last hidden state waits for the token after it
        if not starts.any():  # no row has a reused prefix: all first tokens are one column, which is cut off
            prompts, starts, counts, longest = prompts[:, 1:], starts + 1, counts - 1, longest - 1
        if not longest:
            return
        if not starts.all():  # some rows have one: in each of the others the first token is moved out
            prompts = prompts.copy()
            for row in np.flatnonzero(starts == 0).tolist():
                prompts[row, :-1] = prompts[row, 1:]
            starts, counts = np.maximum(starts, 1), counts - (starts == 0)
        positions = np.minimum(starts[:, None] - 1 + np.arange(longest), len(self._head.rotations) - 1)
        states = self._states[np.arange(slot, slot + n)[:, None], positions]
        self._head.forward(prompts, states, self._cache, starts - 1, slot=slot, counts=counts)

    def block(self, slot: int, start: int, end: int) -> DraftBlock | None:
        """Return copies of hidden states, and of the cache one position earlier.

        The tokens from ``start`` up to ``end`` are a block of the prefix cache. The cache's position of the last one depends on
        the token after it, so it is left out.
        """
        return self._states[slot, start:end].copy(), self._cache[slot, :, max(start - 1, 0) : end - 1].copy()

    def put(self, slot: int, start: int, block: DraftBlock) -> None:
        """Write a block of :meth:`block` into a slot, from position ``start``."""
        states, cache = block
        cache_start = max(start - 1, 0)
        self._states[slot, start : start + len(states)] = states
        self._cache[slot, :, cache_start : cache_start + cache.shape[1]] = cache

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the slot's cache and hidden states."""
        self._cache[target, :, :length] = self._cache[source, :, :length]
        self._states[target, :length] = self._states[source, :length]
        self._fed[target] = self._fed[source]

    def propose(self, rows: Rows[RunningSequence], sampling: Sampling, uniforms: NDArray[np.float64]) -> DraftProposal:
        """Return k draft tokens for each row.

        They are drawn from the head's processed distribution, or are its best tokens when it drafts greedily.
        """
        n = len(rows)
        ends = np.array([len(row.tokens) - 1 for row in rows], np.intp)  # hidden states by row: the last token has none yet
        hidden = self._catch_up(rows, ends)
        step = 0

        def next_logits(drafted: NDArray[np.intp] | None) -> NDArray[np.float32]:
            """Feed the tokens drafted last, if any, and return the logits after them."""
            nonlocal hidden, step
            if drafted is not None:
                hidden = self._head.forward(drafted[:, None], hidden[:, None], self._cache, ends + step)
                step += 1
            return self._head.logits(hidden)

        self._fed[:n] = ends
        return draw_draft(rows, sampling, uniforms, next_logits, probabilistic=self._probabilistic)

    def _catch_up(self, rows: Rows[RunningSequence], ends: NDArray[np.intp]) -> NDArray[np.float32]:
        """Feed the tokens of the last window and return the newest hidden states.

        They are (n, hidden), one after each row's last token. ``ends`` are the rows' lengths less one: as many tokens have to be fed,
        of which the head has seen ``_fed``.
        """
        n, fed = len(rows), self._fed[: len(rows)]
        counts = ends - fed
        width = int(counts.max())
        tokens = np.zeros((n, width), np.intp)
        for line, row, start in zip(tokens, rows, fed.tolist(), strict=True):
            unfed_tokens = row.tokens[start + 1 :]
            line[: len(unfed_tokens)] = unfed_tokens
        positions = np.minimum(fed[:, None] + np.arange(width), ends[:, None])
        states = self._states[np.arange(n)[:, None], positions]
        hidden: NDArray[np.float32] = self._head.forward(tokens, states, self._cache, fed, counts=counts)[np.cumsum(counts) - 1]
        return hidden
