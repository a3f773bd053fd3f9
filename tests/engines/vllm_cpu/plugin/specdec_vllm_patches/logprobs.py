"""Faults of reported log-probabilities; the tokens themselves are right."""

from __future__ import annotations

import torch

from specdec_vllm_patches.registry import patch

WARM = 0.8


@patch
def report_warm_logprobs() -> None:
    """Report log-probabilities after a temperature of 0.8."""
    from vllm.v1.sample import sampler

    sampler.Sampler.compute_logprobs = staticmethod(lambda logits: (logits / WARM).log_softmax(dim=-1, dtype=torch.float32))
