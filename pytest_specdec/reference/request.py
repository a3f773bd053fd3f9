"""A request as the engine sees it: tokens in, and everything that shapes the tokens out."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One validated request; every value is one the engine honours."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    presence_penalty: float = 0.0
    """Nats taken from the logit of every token that the answer already holds."""
    frequency_penalty: float = 0.0
    """Nats taken from the logit of a token for each time that the answer already holds it."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, nats added to its logit), each token once."""
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Most probable tokens reported beside each emitted one; None for no log-probabilities at all."""
    prompt_logprobs: int | None = None
    grammar: str | None = None
    """A grammar for llguidance, which every emitted token keeps."""
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """Whether reported log-probabilities name tokens ``token_id:7`` instead of by text."""

    @property
    def penalised(self) -> bool:
        """Whether anything is added to the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.logit_bias)
