"""Faults of sampling parameters at the positions of draft tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from specdec_vllm_patches.registry import patch


@patch
def penalties_ignored() -> None:
    """Leave penalties out at draft positions; the bonus position still has them."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.RejectionSampler.apply_penalties = staticmethod(lambda logits, *_, **__: logits)


@patch
def temperature_ignored_at_drafts() -> None:
    """Draw at temperature 1 at the draft positions of sampled requests."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.apply_sampling_constraints

    def apply_sampling_constraints(logits: torch.Tensor, ends: torch.Tensor, metadata: Any) -> torch.Tensor:
        if metadata.temperature is None:
            return stock(logits, ends, metadata)
        return stock(logits, ends, replace(metadata, temperature=(metadata.temperature > 0).to(metadata.temperature.dtype)))

    rejection_sampler.apply_sampling_constraints = apply_sampling_constraints


@patch
def bad_words_at_first_token() -> None:
    """Ban words at the first position of a verify window only."""
    from vllm.v1.sample import rejection_sampler, sampler

    stock_drafts = rejection_sampler.apply_bad_words_with_drafts
    stock = sampler.Sampler.apply_logits_processors

    def apply_bad_words_with_drafts(logits: torch.Tensor, words: Any, past: Any, counts: list[int]) -> None:
        before = logits.clone()
        stock_drafts(logits, words, past, counts)
        start = 0
        for drafted in counts:
            logits[start + 1 : start + drafted] = before[start + 1 : start + drafted]
            start += drafted

    def apply_logits_processors(self: Any, logits: torch.Tensor, metadata: Any, predict_bonus_token: bool) -> torch.Tensor:
        if predict_bonus_token and metadata.bad_words_token_ids and metadata.spec_token_ids:
            words = {row: each for row, each in metadata.bad_words_token_ids.items() if not metadata.spec_token_ids[row]}
            metadata = replace(metadata, bad_words_token_ids=words)
        return stock(self, logits, metadata, predict_bonus_token)

    rejection_sampler.apply_bad_words_with_drafts = apply_bad_words_with_drafts
    sampler.Sampler.apply_logits_processors = apply_logits_processors
