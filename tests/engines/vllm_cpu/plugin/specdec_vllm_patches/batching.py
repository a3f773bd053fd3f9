"""Faults of requests that touch each other in a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from specdec_vllm_patches.registry import PADDING, patch

if TYPE_CHECKING:
    from collections.abc import Callable


def _sampled(change: Callable[[Any], Any]) -> None:
    """Let ``change`` alter what each batch samples by."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.RejectionSampler.forward

    def forward(self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling: Any) -> Any:
        return stock(self, metadata, draft_probs, logits, change(sampling))

    rejection_sampler.RejectionSampler.forward = forward


@patch
def first_temperature() -> None:
    """Sample every row of a batch under the temperature of the first."""

    def change(sampling: Any) -> Any:
        if sampling.temperature is None:
            return sampling
        first = sampling.temperature[0]
        greedy = bool(first == 0)
        return replace(sampling, temperature=torch.full_like(sampling.temperature, first), all_greedy=greedy, all_random=not greedy)

    _sampled(change)


@patch
def rows_swapped() -> None:
    """Give each row of a batch of greedy and sampled requests the last token of the row before."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.rejection_sample

    def rejection_sample(*args: Any, **kwargs: Any) -> torch.Tensor:
        output = stock(*args, **kwargs)
        sampling = args[7]
        if not (sampling.all_greedy or sampling.all_random):
            rows = torch.arange(len(output))
            last = (output != PADDING).sum(dim=1).clamp_min(1) - 1
            output[rows, last] = output[rows, last].roll(1)
        return output

    rejection_sampler.rejection_sample = rejection_sample
