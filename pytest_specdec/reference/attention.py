"""Attention: from packed queries, keys and values to what each position sees of its own row, over the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_specdec.reference.checkpoint import Shape

__all__ = ["Span"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Which positions one forward feeds: what its layers share.

    n rows of at most t tokens sit in neighbouring slots. Only live tokens have a line in the packed matrices; rows are filled up to t
    for the attention alone, with zeros that land behind the row's end and are overwritten when the row gets there.
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
    turn: NDArray[np.complex64]
    """(live, 1, head_dim / 2)."""
    hidden: NDArray[np.float32]
    """(n, t, columns from ``shortest`` on): 0 where a position may be seen, -inf where it may not."""
    live: NDArray[np.intp] | None
    """The live ones among the n * t positions; None where all are."""

    @classmethod
    def of(cls, lengths: NDArray[np.intp], t: int, *, rotations: NDArray[np.complex64], slot: int, counts: NDArray[np.intp] | None) -> Span:
        """Return the span of ``t`` positions behind ``lengths`` (n,), of which row i lives through ``counts[i]``, all for None."""
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
            turn=rotations[fed][:, None],
            hidden=np.where(np.arange(shortest, longest) > positions[..., None], np.float32(-np.inf), np.float32(0.0)),
            live=live,
        )

    @property
    def rows(self) -> int:
        """Lines of the packed matrices."""
        return len(self.turn)

    def attend(
        self, shape: Shape, head_scale: NDArray[np.float32], memory: NDArray[np.float32], qkv: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return what the packed ``qkv`` (rows, (heads + 2 kv_heads) * head_dim) see, (rows, heads * head_dim).

        ``memory`` is the layer's part of the cache, in which the keys and values are left; ``qkv`` is used up.
        """
        heads = qkv.reshape(self.rows, -1, shape.head_dim)
        self._turn(heads[:, : shape.heads + shape.kv_heads], head_scale, shape.norm_epsilon)
        heads = self._unpacked(heads)
        self._remember(memory, heads[:, shape.heads :])
        past = memory[self.slot : self.slot + self.n, :, : self.longest]
        groups = (shape.kv_heads, shape.heads // shape.kv_heads)
        q = heads[:, : shape.heads].reshape(self.n, self.t, *groups, shape.head_dim)
        look = self._see_one if self.t == 1 else self._see_several
        return self._packed(look(q, past[:, : shape.kv_heads], past[:, shape.kv_heads :]))

    def _turn(self, qk: NDArray[np.float32], head_scale: NDArray[np.float32], epsilon: float) -> None:
        scale = np.vecdot(qk, qk)
        scale /= np.float32(qk.shape[-1])
        scale += np.float32(epsilon)
        np.sqrt(scale, out=scale)
        qk /= scale[..., None]
        qk *= head_scale
        turned = qk.view(np.complex64)
        turned *= self.turn

    def _see_one(self, q: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        # A vector for each head: numpy hands these to gemv, which is twice as fast here as a product of two lines.
        scores: NDArray[np.float32] = (keys[:, :, None] @ q[:, 0, ..., None])[..., 0]
        self._weigh(scores[:, None])
        seen: NDArray[np.float32] = (scores[..., None, :] @ values[:, :, None])[..., 0, :]
        seen /= scores.sum(axis=-1, keepdims=True)
        return seen.reshape(self.n, -1)

    def _see_several(self, q: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        n, t, kv_heads, share, width = q.shape
        scores: NDArray[np.float32] = q.transpose(0, 2, 1, 3, 4).reshape(n, kv_heads, t * share, width) @ keys.swapaxes(2, 3)
        self._weigh(scores.reshape(n, kv_heads, t, share, -1).transpose(0, 2, 1, 3, 4))
        seen: NDArray[np.float32] = scores @ values
        seen /= scores.sum(axis=-1, keepdims=True)
        return seen.reshape(n, kv_heads, t, share, width).transpose(0, 2, 1, 3, 4).reshape(n * t, -1)

    def _weigh(self, scores: NDArray[np.float32]) -> None:
        """Make unnormalised weights of scores (n, t, kv_heads, heads a kv_head, longest), in place."""
        if self.hidden.shape[-1]:
            scores[..., self.shortest :] += self.hidden[:, :, None, None]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)

    def _remember(self, memory: NDArray[np.float32], kv: NDArray[np.float32]) -> None:
        if self.n == 1:
            memory[self.slot, :, self.shortest - 1 : self.longest] = kv.transpose(1, 0, 2)
        else:
            slots = np.arange(self.slot, self.slot + self.n)[:, None]
            memory[slots, :, self.positions] = kv.reshape(self.n, self.t, *kv.shape[1:])

    def _unpacked(self, heads: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.live is None:
            return heads
        padded = np.zeros((self.n * self.t, *heads.shape[1:]), np.float32)
        padded[self.live] = heads
        return padded

    def _packed(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        return seen if self.live is None else seen[self.live]
