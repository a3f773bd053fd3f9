"""Faults of sampling parameters at the positions of draft tokens."""

from __future__ import annotations

from specdec_vllm_patches.registry import patch


@patch
def penalties_ignored() -> None:
    """Leave penalties out at draft positions; the bonus position still has them."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.RejectionSampler.apply_penalties = staticmethod(lambda logits, *_, **__: logits)
