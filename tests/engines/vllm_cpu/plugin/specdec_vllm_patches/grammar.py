"""Faults of structured output: masks that are missing or misplaced, grammars that lose their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_vllm_patches.registry import patch

if TYPE_CHECKING:
    import torch


@patch
def grammar_skipped() -> None:
    """Mask only the last position of a verify step by the grammar, not those of the draft tokens."""
    from vllm.v1.worker import gpu_model_runner

    stock = gpu_model_runner.apply_grammar_bitmask

    def apply_grammar_bitmask(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: torch.Tensor) -> None:
        before = logits.clone()
        stock(scheduler_output, grammar_output, input_batch, logits)
        start = 0
        for request in input_batch.req_ids:
            drafted = len(scheduler_output.scheduled_spec_decode_tokens.get(request, ()))
            logits[start : start + drafted] = before[start : start + drafted]
            start += drafted + 1

    gpu_model_runner.apply_grammar_bitmask = apply_grammar_bitmask
