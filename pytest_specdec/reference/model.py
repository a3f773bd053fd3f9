"""The model: a Qwen3 decoder over a batched key-value cache, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_specdec.reference.checkpoint import Checkpoint, Shape

__all__ = ["Layer", "Model", "fused", "load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer: matrices are (in, out) views of contiguous (out, in), norms folded into the matrix behind them.

    Query and key rows are interleaved so that a head is ``head_dim / 2`` complex numbers and RoPE is one product.
    """

    qkv: NDArray[np.float32]
    head_scale: NDArray[np.float32]
    """(heads + kv_heads, head_dim): the query and key norms, with the attention's 1/sqrt(head_dim) in the query's part."""
    out: NDArray[np.float32]
    gate_up: NDArray[np.float32]
    down: NDArray[np.float32]


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
        """Return an empty cache: (layers, slots, keys then values by head, positions, head_dim).

        It is zeroed because masked positions are multiplied by a zero probability, which a stray NaN would survive.
        """
        heads = 2 * self.shape.kv_heads
        return np.zeros((len(self.layers), slots, heads, len(self.rotations), self.shape.head_dim), np.float32)

    def forward(
        self, tokens: NDArray[np.intp], cache: NDArray[np.float32], lengths: NDArray[np.intp], *, slot: int = 0
    ) -> NDArray[np.float32]:
        """Return the last hidden states, (n * t, hidden), of ``tokens`` (n, t).

        Row i sits in slot ``slot + i``; its tokens take positions ``lengths[i]`` onwards, and their keys and values are written there.
        """
        n, t = tokens.shape
        rows = n * t
        step = _Step.of(self, lengths, n, t, slot)
        x = np.zeros((_padded(rows), self.shape.hidden), np.float32)
        np.take(self.embedding, tokens.ravel(), axis=0, out=x[:rows])
        mixed = np.zeros((len(x), self.shape.heads * self.shape.head_dim), np.float32)
        with np.errstate(over="ignore"):
            for layer, memory in zip(self.layers, cache, strict=True):
                self._attend(layer, memory, _unit(x, self.shape.norm_epsilon) @ layer.qkv, step, mixed)
                x += mixed @ layer.out
                x += _gated(_unit(x, self.shape.norm_epsilon) @ layer.gate_up) @ layer.down
        return x[:rows]

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the raw logits (rows, vocabulary) of hidden states (rows, hidden)."""
        return _unit(hidden, self.shape.norm_epsilon) @ self.head

    def _attend(self, layer: Layer, memory: NDArray[np.float32], qkv: NDArray[np.float32], step: _Step, mixed: NDArray[np.float32]) -> None:
        shape = self.shape
        heads = qkv[: step.rows].reshape(step.rows, -1, shape.head_dim)
        qk = heads[:, : shape.heads + shape.kv_heads]
        scale = 1.0 / np.sqrt(np.vecdot(qk, qk) / shape.head_dim + shape.norm_epsilon)
        qk *= scale[..., None] * layer.head_scale
        turned = qk.view(np.complex64)
        turned *= step.turn
        step.remember(memory, heads[:, shape.heads :])
        groups = (shape.kv_heads, shape.heads // shape.kv_heads)
        q = heads[:, : shape.heads].reshape(step.n, step.t, *groups, shape.head_dim).transpose(0, 2, 3, 1, 4)
        past = memory[step.slot : step.slot + step.n, :, : step.longest]
        scores = q.reshape(step.n, shape.kv_heads, -1, shape.head_dim) @ past[:, : shape.kv_heads].swapaxes(2, 3)
        step.hide(scores, groups)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        seen = scores @ past[:, shape.kv_heads :]
        seen /= scores.sum(axis=-1, keepdims=True)
        seen = seen.reshape(step.n, *groups, step.t, shape.head_dim).transpose(0, 3, 1, 2, 4)
        mixed[: step.rows].reshape(step.n, step.t, *groups, shape.head_dim)[...] = seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What all layers of one forward share."""

    n: int
    t: int
    slot: int
    longest: int
    positions: NDArray[np.intp]
    turn: NDArray[np.complex64]
    shortest: int
    hidden: NDArray[np.float32]
    """(n, t, columns from ``shortest`` on): 0 where a position may be seen, -inf where it may not."""

    @classmethod
    def of(cls, model: Model, lengths: NDArray[np.intp], n: int, t: int, slot: int) -> _Step:
        positions = lengths[:, None] + np.arange(t)
        longest = int(positions[:, -1].max()) + 1
        shortest = int(lengths.min()) + 1
        hidden = np.where(np.arange(shortest, longest) > positions[..., None], np.float32(-np.inf), np.float32(0.0))
        turn = model.rotations[positions.ravel()][:, None]
        return cls(n=n, t=t, slot=slot, longest=longest, positions=positions, turn=turn, shortest=shortest, hidden=hidden)

    @property
    def rows(self) -> int:
        return self.n * self.t

    def remember(self, memory: NDArray[np.float32], kv: NDArray[np.float32]) -> None:
        if self.n == 1:
            memory[self.slot, :, self.shortest - 1 : self.longest] = kv.transpose(1, 0, 2)
        else:
            slots = np.arange(self.slot, self.slot + self.n)[:, None]
            memory[slots, :, self.positions] = kv.reshape(self.n, self.t, *kv.shape[1:])

    def hide(self, scores: NDArray[np.float32], groups: tuple[int, int]) -> None:
        if self.hidden.shape[-1]:
            by_token = scores.reshape(self.n, *groups, self.t, self.longest)
            by_token[..., self.shortest :] += self.hidden[:, None, None]


def _padded(rows: int) -> int:
    # OpenBLAS' sgemm is slower on 2, 3, 5, 6, 7 ... rows than on the next multiple of four (measured: 3 rows 8.2 ms, 4 rows 5.8 ms).
    return rows if rows == 1 else -(-rows // 4) * 4


def _unit(x: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = x * (1.0 / np.sqrt(np.vecdot(x, x) / x.shape[-1] + epsilon))[:, None]
    return scaled


def _gated(gate_up: NDArray[np.float32]) -> NDArray[np.float32]:
    half = gate_up.shape[1] // 2
    gate, up = gate_up[:, :half], gate_up[:, half:]
    silu = np.exp(-gate)
    silu += 1.0
    np.divide(gate, silu, out=silu)
    silu *= up
    return silu


def load(checkpoint: Checkpoint, positions: int) -> Model:
    """Return the model of a checkpoint, with room for ``positions`` tokens a sequence."""
    shape, tensors = checkpoint.shape, checkpoint.tensors
    embedding = tensors["model.embed_tokens.weight"]
    head = tensors.get("lm_head.weight", embedding) * tensors["model.norm.weight"]
    frequency = shape.rope_theta ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    return Model(
        shape=shape,
        embedding=embedding,
        layers=tuple(_layer(checkpoint, index) for index in range(shape.layers)),
        head=head.T,
        rotations=np.exp(1j * np.outer(np.arange(positions), frequency)).astype(np.complex64),
    )


def _layer(checkpoint: Checkpoint, index: int) -> Layer:
    def tensor(name: str) -> NDArray[np.float32]:
        return checkpoint.tensors[f"model.layers.{index}.{name}.weight"]

    return fused(
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


def fused(
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
    """Return a layer from Hugging Face matrices (out, in) whose input norms are already folded in."""
    pairs = np.arange(shape.head_dim).reshape(2, -1).T.ravel()  # i beside i + head_dim / 2: one complex number each

    def interleaved(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return rows.reshape(-1, shape.head_dim, rows.shape[-1])[:, pairs].reshape(rows.shape)

    query_scale = np.tile(q_norm[pairs] / np.float32(shape.head_dim**0.5), (shape.heads, 1))
    return Layer(
        qkv=np.concatenate([interleaved(q), interleaved(k), v]).T,
        head_scale=np.concatenate([query_scale, np.tile(k_norm[pairs], (shape.kv_heads, 1))]),
        out=out.T,
        gate_up=np.concatenate([gate, up]).T,
        down=down.T,
    )
