"""EAGLE-3: the shipped head's distribution at its first draft position, from the target's hidden states (Li et al. 2025, arXiv 2503.01840).

Further draft positions of a window use the head's own states in a real engine; here every position is taken for a first one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file

from specdec_reference.checkpoint import PACKAGED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.stats.token_distribution import Floats, Ints
    from specdec_reference.model import Model

__all__ = ["Head", "load"]

HEADS, WIDTH, THETA, EPSILON = 4, 64, 10_000.0, 1e-6
LAYERS = (1, 2, 3)
"""After how many layers of the target its hidden states are taken: ``eagle_aux_hidden_state_layer_ids``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """One decoder layer over the target's embeddings and hidden states."""

    tensors: Mapping[str, Floats]
    target: Model

    def logits(self, ids: Ints) -> Floats:
        """Return logits [T - 1, V]: what is drafted behind each token but the first; the last line stands behind the last but one."""
        whole = np.zeros(1, np.intp)
        states = [part.forward(ids[None], part.cache(1), whole).copy() for part in self._beginnings()]
        features = np.concatenate(states, axis=1)[:-2] @ self._of("fc").T
        fed = self.target.embedding[ids[1:-1]]
        x = np.concatenate(
            [_normed(fed, self._of("midlayer.input_layernorm")), _normed(features, self._of("midlayer.hidden_norm"))], axis=1
        )
        hidden = features + self._attended(x)
        y = _normed(hidden, self._of("midlayer.post_attention_layernorm"))
        gate, up = (y @ self._of(f"midlayer.mlp.{name}_proj").T for name in ("gate", "up"))
        hidden = hidden + (gate / (1.0 + np.exp(-gate)) * up) @ self._of("midlayer.mlp.down_proj").T
        return np.asarray(_normed(hidden, self._of("norm")) @ self._of("lm_head").T)

    def _beginnings(self) -> list[Model]:
        return [replace(self.target, layers=self.target.layers[:count]) for count in LAYERS]

    def _of(self, name: str) -> Floats:
        return self.tensors[f"{name}.weight"]

    def _attended(self, x: Floats) -> Floats:
        query, key, value = ((x @ self._of(f"midlayer.self_attn.{name}_proj").T).reshape(len(x), -1, WIDTH) for name in ("q", "k", "v"))
        query, key = _turned(query), _turned(key).repeat(HEADS // key.shape[1], axis=1)
        scores = np.einsum("ihd,jhd->hij", query, key) / np.sqrt(WIDTH)
        scores[:, np.triu(np.ones((len(x), len(x)), dtype=np.bool_), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", weights, value.repeat(HEADS // value.shape[1], axis=1))
        return np.asarray(mixed.reshape(len(x), -1) @ self._of("midlayer.self_attn.o_proj").T)


def load(target: Model) -> Head:
    """Return the packaged head of ``target``."""
    stored = load_file(PACKAGED / "eagle3" / "model.safetensors")
    return Head(tensors={name: tensor.astype(np.float32) for name, tensor in stored.items()}, target=target)


def _normed(x: Floats, scale: Floats) -> Floats:
    return np.asarray(x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * scale)


def _turned(x: Floats) -> Floats:
    """Return the rotary embedding of x [T, heads, WIDTH] at positions 0 to T - 1."""
    angle = np.arange(len(x))[:, None] * THETA ** -(np.arange(0, WIDTH, 2) / WIDTH)
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=2)
