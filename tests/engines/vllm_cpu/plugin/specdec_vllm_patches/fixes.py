"""Fixes of three bugs of the build itself."""

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


@patch
def fix_lora() -> None:
    """Leave rows without an adapter alone in a batch in which others have one.

    Their index is -1, by which ``lora/ops/torch_ops/lora_ops.py`` takes the weights of the last slot: they are answered under an adapter.
    The logits of a whole prompt, for ``prompt_logprobs``, are left alone too: ``add_lora_logits`` has an index for each request of the
    batch and none for each token, which ends the engine where there are several. The adapters here do not change the head.
    """
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    def mend(name: str) -> None:
        stock = getattr(lora_ops, name)

        def bgmv(
            inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, indices: torch.Tensor, *rest: object, **named: object
        ) -> None:
            chosen = (indices >= 0).to(inputs.dtype).unsqueeze(1)
            stock(inputs * chosen, weights, output, indices.clamp(min=0), *rest, **named)

        setattr(lora_ops, name, bgmv)
        setattr(punica_cpu, name, bgmv)

    for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
        mend(name)
    stock_logits = punica_cpu.PunicaWrapperCPU.add_lora_logits

    def add_lora_logits(self: punica_cpu.PunicaWrapperCPU, y: torch.Tensor, x: torch.Tensor, *rest: object, **named: object) -> object:
        is_sampled = x.view(-1, x.shape[-1]).shape[0] == self.sampler_indices.shape[0]
        return stock_logits(self, y, x, *rest, **named) if is_sampled else None

    punica_cpu.PunicaWrapperCPU.add_lora_logits = add_lora_logits
