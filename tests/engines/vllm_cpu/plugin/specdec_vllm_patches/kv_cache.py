"""Faults of the key-value cache and of the prefix cache."""

from __future__ import annotations

from typing import Any

import torch

from specdec_vllm_patches.registry import PADDING, patch


@patch
def kv_stale() -> None:
    """Keep a rejected draft token's key and value: the token that replaced it never writes its own."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker import gpu_model_runner

    rejected: set[int] = set()
    stock_sample = rejection_sampler.rejection_sample
    runner = gpu_model_runner.GPUModelRunner
    stock_slots = runner._get_slot_mappings
    stock_update = runner._update_states_after_model_execute

    def rejection_sample(draft_token_ids: Any, num_draft_tokens: list[int], *args: Any, **kwargs: Any) -> torch.Tensor:
        output = stock_sample(draft_token_ids, num_draft_tokens, *args, **kwargs)
        emitted = (output != PADDING).sum(dim=1).tolist()
        rejected.clear()
        rejected.update(row for row, (got, drafted) in enumerate(zip(emitted, num_draft_tokens, strict=True)) if 0 < got <= drafted)
        return output

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.specdec_rejected = {self.input_batch.req_ids[row] for row in rejected}
        rejected.clear()
        return stock_update(self, *args, **kwargs)

    def slots(self: Any, *args: Any, **kwargs: Any) -> Any:
        after = getattr(self, "specdec_rejected", set())
        for row, request in enumerate(self.input_batch.req_ids):
            if request in after:
                first = int(self.query_start_loc.np[row])
                for group in range(len(self.kv_cache_config.kv_cache_groups)):
                    self.input_batch.block_table[group].slot_mapping.gpu[first] = PADDING
        return stock_slots(self, *args, **kwargs)

    rejection_sampler.rejection_sample = rejection_sample
    runner._update_states_after_model_execute = update
    runner._get_slot_mappings = slots


@patch
def prefix_defeated() -> None:
    """Look nothing up in the prefix cache."""
    from vllm.v1.core import kv_cache_manager

    kv_cache_manager.KVCacheManager.get_computed_blocks = lambda self, _request: (self.empty_kv_cache_blocks, 0, 0)


@patch
def prefix_without_parent() -> None:
    """Know a block of the prefix cache by its own tokens, whatever came before them."""
    from vllm.v1.core import kv_cache_utils

    stock = kv_cache_utils.hash_block_tokens

    def hash_block_tokens(hash_function: Any, _parent: Any, tokens: Any, extra_keys: Any = None) -> Any:
        return stock(hash_function, None, tokens, extra_keys)

    kv_cache_utils.hash_block_tokens = hash_block_tokens
