"""Faults of seeds and random streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from specdec_vllm_patches.registry import patch

if TYPE_CHECKING:
    from collections.abc import Callable


def _streams(streams: Callable[[Any, int], dict[int, torch.Generator]]) -> None:
    """Let ``streams`` say which rows draw from which generators, given what the batch samples by and its number of rows."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.RejectionSampler.forward

    def forward(self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling: Any) -> Any:
        return stock(self, metadata, draft_probs, logits, replace(sampling, generators=streams(sampling, len(metadata.num_draft_tokens))))

    rejection_sampler.RejectionSampler.forward = forward


@patch
def seed_ignored() -> None:
    """Draw a request with a seed like one without."""
    _streams(lambda _sampling, _rows: {})


@patch
def stream_of_first_row() -> None:
    """Give every row of a batch the random numbers of the first."""

    def streams(sampling: Any, rows: int) -> dict[int, torch.Generator]:
        first = sampling.generators.get(0)
        if first is None:
            first = torch.Generator()
            first.seed()
        copies = [torch.Generator() for _ in range(1, rows)]
        for copy in copies:
            copy.set_state(first.get_state())
        return dict(enumerate([first, *copies]))

    _streams(streams)
