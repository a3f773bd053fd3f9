"""The EAGLE-3 head in torch, by the names that vLLM's ``llama_eagle3`` loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["Head"]


class Head(nn.Module):
    """One decoder layer over a token's embedding beside the hidden state before it; the embedding is the target's and is not trained."""

    def __init__(self, config: Mapping[str, Any], embedding: torch.Tensor) -> None:
        super().__init__()
        hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.tapped: tuple[int, ...] = tuple(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        self._sizes = (heads, kv_heads, width)
        self._epsilon, self._theta = config["rms_norm_eps"], config["rope_theta"]
        self._embedding = [embedding]  # in a list, so that it is no parameter of this module
        self.fc = nn.Linear(len(self.tapped) * hidden, hidden, bias=False)
        self.q = nn.Linear(2 * hidden, heads * width, bias=False)
        self.k = nn.Linear(2 * hidden, kv_heads * width, bias=False)
        self.v = nn.Linear(2 * hidden, kv_heads * width, bias=False)
        self.o = nn.Linear(heads * width, hidden, bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.lm_head = nn.Linear(hidden, config["draft_vocab_size"], bias=False)
        self.norms = nn.ParameterDict({name: nn.Parameter(torch.ones(hidden)) for name in ("input", "hidden", "post", "last")})

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the head is fed of the target's layers, (batch, length, hidden)."""
        return self.fc(states)

    def forward(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the hidden states behind ``tokens`` (batch, length), given ``states`` (batch, length, hidden) before them."""
        batch, length = tokens.shape
        heads, kv_heads, width = self._sizes
        embedded = functional.embedding(tokens, self._embedding[0])
        fed = torch.cat([self._norm(embedded, "input"), self._norm(states, "hidden")], dim=-1)
        q = self._turned(self.q(fed).view(batch, length, heads, width)).transpose(1, 2)
        k = self._turned(self.k(fed).view(batch, length, kv_heads, width)).transpose(1, 2)
        v = self.v(fed).view(batch, length, kv_heads, width).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        hidden = states + self.o(seen.transpose(1, 2).reshape(batch, length, -1))
        inner = self._norm(hidden, "post")
        return hidden + self.down(functional.silu(self.gate(inner)) * self.up(inner))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, length, vocabulary)."""
        return self.lm_head(self._norm(hidden, "last"))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights by the names of a checkpoint."""
        linear = {
            "fc": self.fc,
            "lm_head": self.lm_head,
            **{f"midlayer.self_attn.{name}_proj": getattr(self, name) for name in "qkvo"},
            **{f"midlayer.mlp.{name}_proj": getattr(self, name) for name in ("gate", "up", "down")},
        }
        names = {
            "midlayer.input_layernorm": "input",
            "midlayer.hidden_norm": "hidden",
            "midlayer.post_attention_layernorm": "post",
            "norm": "last",
        }
        norms = {f"{name}.weight": self.norms[own] for name, own in names.items()}
        return {**{f"{name}.weight": module.weight for name, module in linear.items()}, **norms}

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.norms[name], self._epsilon)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries or keys (batch, length, heads, width) under RoPE."""
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * self._theta ** (-torch.arange(half, device=x.device) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
