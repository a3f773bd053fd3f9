"""The model: a Qwen3 decoder over a batched key-value cache, in float32.

A forward has n rows, sequences in neighbouring slots of the cache, of at most t new tokens. Rows with fewer are filled up. The other
tokens are live, and packed: each has one line in the matrices. A span says where all of these stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdec_reference.adapters import AdaptedLines
    from specdec_reference.checkpoint import Checkpoint, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The positions of one forward, shared by its layers.

    n rows of at most t tokens sit in neighbouring slots. Only live tokens have a line in the packed matrices;
    rows are filled up to t for the attention alone, with zeros that land after the row's end and are
    overwritten when the row gets there. The longest row attends to the first ``longest`` positions; every token sees
    the first ``shortest`` ones, so that the mask begins after these.
    """

    n: int
    t: int
    slot: int
    longest: int
    """Positions that the longest row attends to."""
    shortest: int
    """Positions that every token of every row may see."""
    positions: NDArray[np.intp]
    """(n, t)."""
    turns: NDArray[np.complex64]
    """RoPE's turn of each live token, (live, 1, head_dim / 2)."""
    mask: NDArray[np.float32]
    """(n, t, columns from ``shortest`` on): 0 where a position may be seen, -inf where it may not."""
    live: NDArray[np.intp] | None
    """The live ones among the n * t positions; None where all are."""

    @classmethod
    def of(cls, lengths: NDArray[np.intp], t: int, *, rotations: NDArray[np.complex64], slot: int, counts: NDArray[np.intp] | None) -> Span:
        """Return the span of ``t`` positions after each of ``lengths``.

        ``lengths``, (n,), are the tokens in the cache by row. Row i is live in its first ``counts[i]`` positions, in all of
        them for None. ``rotations`` are RoPE's turns by position.
        """
        positions = lengths[:, None] + np.arange(t)
        live = None if counts is None or (counts == t).all() else np.flatnonzero(np.arange(t) < counts[:, None])
        longest = int(positions[:, -1].max()) + 1
        shortest = int(lengths.min()) + 1
        fed = positions.ravel() if live is None else positions.ravel()[live]
        return cls(
            n=len(lengths),
            t=t,
            slot=slot,
            longest=longest,
            shortest=shortest,
            positions=positions,
            turns=rotations[fed][:, None],
            mask=np.where(np.arange(shortest, longest) > positions[..., None], np.float32(-np.inf), np.float32(0.0)),
            live=live,
        )

    @property
    def rows(self) -> int:
        """Lines of the packed matrices."""
        return len(self.turns)

    def attend(
        self, shape: Shape, head_scale: NDArray[np.float32], memory: NDArray[np.float32], qkv: NDArray[np.float32], *, normed: bool = True
    ) -> NDArray[np.float32]:
        """Return the attention's output for the packed ``qkv``.

        ``qkv`` is (rows, (heads + 2 kv_heads) * head_dim), the output (rows, heads * head_dim). ``memory`` is the layer's part
        of the cache, (slots, keys then values by head, positions, head_dim); the keys and values are left in it. ``qkv`` is
        overwritten. Queries and keys are normalised by head, as in Qwen3, if ``normed``, then multiplied by ``head_scale``. For
        the attention itself the packed lines are spread out to t a row.
        """
        heads = qkv.reshape(self.rows, -1, shape.head_dim)
        self._rotate(heads[:, : shape.heads + shape.kv_heads], head_scale, shape.norm_epsilon if normed else None)
        heads = self._unpack_rows(heads)
        self._store_keys_and_values(memory, heads[:, shape.heads :])
        past = memory[self.slot : self.slot + self.n, :, : self.longest]
        groups = (shape.kv_heads, shape.heads // shape.kv_heads)  # query heads by the keys and values that they share
        q = heads[:, : shape.heads].reshape(self.n, self.t, *groups, shape.head_dim)
        attend_rows = self._attend_one if self.t == 1 else self._attend_several
        return self._pack_live(attend_rows(q, past[:, : shape.kv_heads], past[:, shape.kv_heads :]))

    def _rotate(self, qk: NDArray[np.float32], head_scale: NDArray[np.float32], epsilon: float | None) -> None:
        """Normalise queries and keys, scale and rotate them, in place.

        A head is divided by its root mean square, unless ``epsilon`` is None. ``turns`` are RoPE's rotations as complex numbers.
        """
        if epsilon is not None:
            scale = np.vecdot(qk, qk)
            scale /= np.float32(qk.shape[-1])
            scale += np.float32(epsilon)
            np.sqrt(scale, out=scale)
            qk /= scale[..., None]
        qk *= head_scale
        pairs = qk.view(np.complex64)
        pairs *= self.turns

    def _attend_one(self, q: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the attention's output for one token a row.

        ``q`` is (n, 1, kv_heads, heads a kv_head, head_dim), ``keys`` and ``values`` are (n, kv_heads, longest, head_dim).
        """
        # A vector for each head: numpy hands these to gemv, which is twice as fast here as a product of two lines.
        scores: NDArray[np.float32] = (keys[:, :, None] @ q[:, 0, ..., None])[..., 0]
        self._weigh(scores[:, None])
        output: NDArray[np.float32] = (scores[..., None, :] @ values[:, :, None])[..., 0, :]
        output /= scores.sum(axis=-1, keepdims=True)
        return output.reshape(self.n, -1)

    def _attend_several(self, q: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the attention's output for t tokens a row.

        ``q`` is (n, t, kv_heads, heads a kv_head, head_dim), ``keys`` and ``values`` are (n, kv_heads, longest, head_dim).
        """
        n, t, kv_heads, group, width = q.shape
        scores: NDArray[np.float32] = q.transpose(0, 2, 1, 3, 4).reshape(n, kv_heads, t * group, width) @ keys.swapaxes(2, 3)
        self._weigh(scores.reshape(n, kv_heads, t, group, -1).transpose(0, 2, 1, 3, 4))
        output: NDArray[np.float32] = scores @ values
        output /= scores.sum(axis=-1, keepdims=True)
        return output.reshape(n, kv_heads, t, group, width).transpose(0, 2, 1, 3, 4).reshape(n * t, -1)

    def _weigh(self, scores: NDArray[np.float32]) -> None:
        """Turn scores into a softmax's weights before their normalisation, in place.

        ``scores`` is (n, t, kv_heads, heads a kv_head, longest). Weights of masked positions are 0.
        """
        if self.mask.shape[-1]:
            scores[..., self.shortest :] += self.mask[:, :, None, None]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)

    def _store_keys_and_values(self, memory: NDArray[np.float32], kv: NDArray[np.float32]) -> None:
        """Write the span's keys and values into a layer's part of the cache."""
        if self.n == 1:  # the positions of a single row are neighbours, so that a slice does
            memory[self.slot, :, self.shortest - 1 : self.longest] = kv.transpose(1, 0, 2)
        else:
            slots = np.arange(self.slot, self.slot + self.n)[:, None]
            memory[slots, :, self.positions] = kv.reshape(self.n, self.t, *kv.shape[1:])

    def _unpack_rows(self, heads: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the live lines with lines of zeros between, t a row."""
        if self.live is None:
            return heads
        padded = np.zeros((self.n * self.t, *heads.shape[1:]), np.float32)
        padded[self.live] = heads
        return padded

    def _pack_live(self, output: NDArray[np.float32]) -> NDArray[np.float32]:
        return output if self.live is None else output[self.live]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer: matrices are (in, out) and contiguous so, norms folded into the matrix after them.

    sgemm is a tenth faster on these than on views of (out, in). Query and key columns are interleaved so that
    a head is ``head_dim / 2`` complex numbers and RoPE is one product.
    """

    qkv: NDArray[np.float32]
    head_scale: NDArray[np.float32]
    """(heads + kv_heads, head_dim): the query and key norms, with the attention's 1/sqrt(head_dim) in the query's part."""
    out: NDArray[np.float32]
    gate_up: NDArray[np.float32]
    """The gate's half is halved, since silu(2 g) = g (1 + tanh g)."""
    down: NDArray[np.float32]


class Tap(Protocol):
    """An observer of a model's forwards."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the observed layers."""

    def take(self, span: Span, states: Sequence[NDArray[np.float32]]) -> None:
        """Take the observed layers' inputs at the live tokens of ``span``.

        Each input is (live, hidden).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder; it holds no state, the caches that it writes belong to the caller."""

    shape: Shape
    embedding: NDArray[np.float32]
    """(vocabulary, hidden)."""
    layers: tuple[Layer, ...]
    head: NDArray[np.float32]
    """(hidden, vocabulary), the final norm folded in."""
    rotations: NDArray[np.complex64]
    """(positions, head_dim / 2)."""

    def cache(self, slots: int) -> NDArray[np.float32]:
        """Return an empty cache.

        Its shape is (layers, slots, keys then values by head, positions, head_dim). It is zeroed because
        masked positions are multiplied by a zero probability, which a stray NaN would survive.
        """
        heads = 2 * self.shape.kv_heads
        return np.zeros((len(self.layers), slots, heads, len(self.rotations), self.shape.head_dim), np.float32)

    def forward(
        self,
        tokens: NDArray[np.intp],
        cache: NDArray[np.float32],
        lengths: NDArray[np.intp],
        *,
        slot: int = 0,
        counts: NDArray[np.intp] | None = None,
        tap: Tap | None = None,
        adapted: Sequence[AdaptedLines] = (),
    ) -> NDArray[np.float32]:
        """Return the last hidden states of the live tokens.

        ``tokens`` is (n, t); the live ones have one line each, row after row. Row i sits in slot ``slot +
        i``; its first ``counts[i]`` tokens are live, all for None. They take positions ``lengths[i]``
        onwards, and their keys and values are written there. ``adapted`` are the lines that adapters answer.
        """
        span = Span.of(lengths, tokens.shape[1], rotations=self.rotations, slot=slot, counts=counts)
        return self.forward_span(span, tokens, cache, tap=tap, adapted=adapted)

    def forward_span(
        self,
        span: Span,
        tokens: NDArray[np.intp],
        cache: NDArray[np.float32],
        *,
        tap: Tap | None = None,
        adapted: Sequence[AdaptedLines] = (),
    ) -> NDArray[np.float32]:
        """Return the last hidden states of the live tokens of a span.

        ``tokens`` is (n, t). Keys and values are written into ``cache``. ``tap`` takes the inputs of some layers; ``adapted`` are
        the lines that adapters answer. An adapter adds to a matrix's product by what the matrix was fed.
        """
        fed = tokens.ravel() if span.live is None else tokens.ravel()[span.live]
        workspace, epsilon = _Workspace.of(self.shape, span.rows), self.shape.norm_epsilon
        x = workspace.x
        np.take(self.embedding, fed, axis=0, out=x[: span.rows])
        tapped: list[NDArray[np.float32]] = []
        for index, (layer, memory) in enumerate(zip(self.layers, cache, strict=True)):
            if tap is not None and index in tap.layers:
                tapped.append(x[: span.rows].copy())
            qkv = np.matmul(rms_normalize(x, epsilon, workspace.spare), layer.qkv, out=workspace.qkv)[: span.rows]
            for part in adapted:
                part.add(index, "qkv", workspace.spare, qkv)
            workspace.mixed[: span.rows] = span.attend(self.shape, layer.head_scale, memory, qkv)
            x += np.matmul(workspace.mixed, layer.out, out=workspace.spare)
            for part in adapted:
                part.add(index, "out", workspace.mixed, x)
            np.matmul(rms_normalize(x, epsilon, workspace.spare), layer.gate_up, out=workspace.gate_up)
            for part in adapted:
                part.add(index, "gate_up", workspace.spare, workspace.gate_up)
            x += np.matmul(workspace.gated(), layer.down, out=workspace.spare)
            for part in adapted:
                part.add(index, "down", workspace.inner, x)
        if tap is not None:
            tap.take(span, tapped)
        return x[: span.rows]

    def with_embeddings(self, further: NDArray[np.float32]) -> Model:
        """Return the model with further embeddings after the vocabulary's.

        ``further`` is (n, hidden), as of patches of images. Tokens ``vocabulary`` to ``vocabulary + n - 1`` may then be fed; none of
        them is ever predicted.
        """
        return replace(self, embedding=np.concatenate([self.embedding, further]))

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the raw logits (rows, vocabulary) of hidden states (rows, hidden)."""
        rows = len(hidden)
        x = np.zeros((_padded_rows(rows), self.shape.hidden), np.float32)
        x[:rows] = hidden
        logits: NDArray[np.float32] = (rms_normalize(x, self.shape.norm_epsilon, x) @ self.head)[:rows]
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workspace:
    """The matrices of one forward, one line a live token; written over by layer after layer."""

    x: NDArray[np.float32]
    """The residual stream."""
    spare: NDArray[np.float32]
    """Normalised lines before a matrix, or what a matrix adds to the residual stream."""
    qkv: NDArray[np.float32]
    mixed: NDArray[np.float32]
    """The attention's output."""
    gate_up: NDArray[np.float32]
    inner: NDArray[np.float32]
    """The MLP's lines after the gate."""

    @classmethod
    def of(cls, shape: Shape, rows: int) -> _Workspace:
        """Return the matrices for ``rows`` live tokens, with as many lines as :func:`_padded_rows` gives."""
        lines = _padded_rows(rows)
        heads = shape.heads * shape.head_dim
        return cls(
            x=np.zeros((lines, shape.hidden), np.float32),
            spare=np.empty((lines, shape.hidden), np.float32),
            qkv=np.empty((lines, heads + 2 * shape.kv_heads * shape.head_dim), np.float32),
            mixed=np.zeros((lines, heads), np.float32),
            gate_up=np.empty((lines, 2 * shape.intermediate), np.float32),
            inner=np.empty((lines, shape.intermediate), np.float32),
        )

    def gated(self) -> NDArray[np.float32]:
        """Return the gated inner lines of the MLP."""
        # silu(2 g) = g (1 + tanh g): the matrix gives half of the gate. A third of the time of the form with exp, and it cannot overflow.
        width = self.inner.shape[1]
        gate, up = self.gate_up[:, :width], self.gate_up[:, width:]
        inner = np.tanh(gate, out=self.inner)
        inner += np.float32(1.0)
        inner *= gate
        inner *= up
        return inner


def _padded_rows(rows: int) -> int:
    """Return the number of matrix lines for ``rows`` live ones."""
    # OpenBLAS' sgemm is slower on 2, 3, 5, 6, 7 ... rows than on the next multiple of four (measured: 3 rows 8.2 ms, 4 rows 5.8 ms).
    return rows if rows == 1 else -(-rows // 4) * 4


def rms_normalize(x: NDArray[np.float32], epsilon: float, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return the rows of ``x`` [N, K], each divided by its root mean square.

    This is RMSNorm without weights; ``epsilon`` is added to the mean square. The result is written to ``out`` where
    given, which may be ``x``.
    """
    scale = np.vecdot(x, x)
    scale /= np.float32(x.shape[-1])
    scale += np.float32(epsilon)
    np.sqrt(scale, out=scale)
    divided: NDArray[np.float32] = np.divide(x, scale[:, None], out=out)
    return divided


def load(checkpoint: Checkpoint, positions: int) -> Model:
    """Return the model of a checkpoint.

    It has room for ``positions`` tokens a sequence.
    """
    shape, tensors = checkpoint.shape, checkpoint.tensors
    embedding = tensors["model.embed_tokens.weight"]
    head = tensors.get("lm_head.weight", embedding) * tensors["model.norm.weight"]
    return Model(
        shape=shape,
        embedding=embedding,
        layers=tuple(_build_layer(checkpoint, index) for index in range(shape.layers)),
        head=np.ascontiguousarray(head.T),
        rotations=rotations(shape, positions),
    )


def rotations(shape: Shape, positions: int) -> NDArray[np.complex64]:
    """Return RoPE's turns as complex numbers, (positions, head_dim / 2)."""
    frequency = shape.rope_theta ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    turns: NDArray[np.complex64] = np.exp(1j * np.outer(np.arange(positions), frequency)).astype(np.complex64)
    return turns


def _build_layer(checkpoint: Checkpoint, index: int) -> Layer:
    """Return one decoder layer of a checkpoint."""

    def tensor(name: str) -> NDArray[np.float32]:
        return checkpoint.tensors[f"model.layers.{index}.{name}.weight"]

    return fuse_layer(
        checkpoint.shape,
        q=tensor("self_attn.q_proj") * tensor("input_layernorm"),
        k=tensor("self_attn.k_proj") * tensor("input_layernorm"),
        v=tensor("self_attn.v_proj") * tensor("input_layernorm"),
        q_norm=tensor("self_attn.q_norm"),
        k_norm=tensor("self_attn.k_norm"),
        out=tensor("self_attn.o_proj"),
        gate=tensor("mlp.gate_proj") * tensor("post_attention_layernorm"),
        up=tensor("mlp.up_proj") * tensor("post_attention_layernorm"),
        down=tensor("mlp.down_proj"),
    )


def fuse_layer(
    shape: Shape,
    *,
    q: NDArray[np.float32],
    k: NDArray[np.float32],
    v: NDArray[np.float32],
    q_norm: NDArray[np.float32],
    k_norm: NDArray[np.float32],
    out: NDArray[np.float32],
    gate: NDArray[np.float32],
    up: NDArray[np.float32],
    down: NDArray[np.float32],
) -> Layer:
    """Return a layer from Hugging Face matrices (out, in), in the form of :class:`Layer`.

    The input norms are already folded into these. The layer's matrices are (in, out), and the gate's half is halved.
    """
    pairs = np.arange(shape.head_dim).reshape(2, -1).T.ravel()  # i beside i + head_dim / 2: one complex number each

    def interleaved(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return rows.reshape(-1, shape.head_dim, rows.shape[-1])[:, pairs].reshape(rows.shape)

    query_scale = np.tile(q_norm[pairs] / np.float32(shape.head_dim**0.5), (shape.heads, 1))
    return Layer(
        qkv=np.ascontiguousarray(np.concatenate([interleaved(q), interleaved(k), v]).T),
        head_scale=np.concatenate([query_scale, np.tile(k_norm[pairs], (shape.kv_heads, 1))]),
        out=np.ascontiguousarray(out.T),
        gate_up=np.ascontiguousarray(np.concatenate([gate * np.float32(0.5), up]).T),
        down=np.ascontiguousarray(down.T),
    )
