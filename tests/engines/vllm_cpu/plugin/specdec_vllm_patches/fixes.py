"""Fixes of two bugs of the build itself."""

from __future__ import annotations

import torch

from specdec_vllm_patches.registry import patch


@patch
def fix_expand() -> None:
    """Give every draft position its own request's parameter.

    ``utils/cpu_triton_utils.py:_expand_kernel_impl`` hands the C++ kernel an int64 *copy* of the output and never copies back, so the
    temperature (and top-k, top-p) at draft positions is whatever memory held.
    """
    from vllm.v1.sample import rejection_sampler

    def expand(x: torch.Tensor, ends: torch.Tensor, total: int, replace_from: int = 0, replace_to: int = 0) -> torch.Tensor:
        counts = torch.diff(ends.to(torch.int64), prepend=ends.new_zeros(1, dtype=torch.int64))
        expanded = torch.repeat_interleave(x, counts, output_size=total)
        return torch.where(expanded == replace_from, torch.full_like(expanded, replace_to), expanded)

    rejection_sampler.expand_batch_to_tokens = expand


@patch
def fix_topk() -> None:
    """Let ``apply_top_k_only`` take a batch without rows, which every prefill step of a speculating server sends it."""
    from vllm.v1.sample.ops import topk_topp_sampler

    stock = topk_topp_sampler.apply_top_k_only

    def apply_top_k_only(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return stock(logits, k) if logits.shape[0] else logits

    topk_topp_sampler.apply_top_k_only = apply_top_k_only
