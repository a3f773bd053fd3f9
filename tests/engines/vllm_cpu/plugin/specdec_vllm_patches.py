"""Patches of the CPU build of vLLM 0.32.0, chosen by ``SPECDEC_VLLM_PATCHES``: two fixes of its own bugs, and faults to be caught.

vLLM loads this in the API server, the engine core and the worker. Without the variable nothing is touched: that is the stock build.
An unknown name stops the server, so that a misspelt fault can not pass for a healthy engine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

LENIENCE = 1.5
PADDING = -1
PATCHES: dict[str, Callable[[], None]] = {}
"""By name: what each does to the loaded vLLM."""


def patch(apply_patch: Callable[[], None]) -> Callable[[], None]:
    """Register a patch under its own name in kebab-case: of a fault, its id in ``pytest_specdec/reference/faults/``."""
    PATCHES[apply_patch.__name__.replace("_", "-")] = apply_patch
    return apply_patch


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
def accept_all() -> None:
    """Emit every draft token and then the bonus token, whatever the target says."""
    from vllm.v1.sample import rejection_sampler

    def rejection_sample(
        draft_token_ids: torch.Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        _cu_num_draft_tokens: torch.Tensor,
        _draft_probs: torch.Tensor | None,
        _target_logits: torch.Tensor,
        bonus_token_ids: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        output = torch.full((len(num_draft_tokens), max_spec_len + 1), PADDING, dtype=torch.int32)
        start = 0
        for row, drafted in enumerate(num_draft_tokens):
            output[row, :drafted] = draft_token_ids[start : start + drafted]
            output[row, drafted] = bonus_token_ids[row, 0]
            start += drafted
        return output

    rejection_sampler.rejection_sample = rejection_sample


@patch
def lenient() -> None:
    """Accept with probability min(1, 1.5 p / q): p/q >= u/1.5."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.generate_uniform_probs

    def generate_uniform_probs(*args: Any, **kwargs: Any) -> torch.Tensor:
        return stock(*args, **kwargs) / LENIENCE

    rejection_sampler.generate_uniform_probs = generate_uniform_probs


@patch
def accept_all_unseeded() -> None:
    """Accept every drawn draft token while no request of the batch brings a seed, which is when engines take their fast path."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.generate_uniform_probs

    def generate_uniform_probs(
        num_tokens: int, num_draft_tokens: list[int], generators: dict[int, torch.Generator], device: torch.device
    ) -> torch.Tensor:
        uniforms = stock(num_tokens, num_draft_tokens, generators, device)
        return uniforms if generators else torch.zeros_like(uniforms)

    rejection_sampler.generate_uniform_probs = generate_uniform_probs


def _recover(
    choose: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, dict[int, torch.Generator], list[int]], torch.Tensor],
) -> None:
    from vllm.v1.sample import rejection_sampler

    def sample_recovered_tokens(
        _max_spec_len: int,
        num_draft_tokens: list[int],
        _cu_num_draft_tokens: torch.Tensor,
        draft_token_ids: torch.Tensor,
        draft_probs: torch.Tensor | None,
        target_probs: torch.Tensor,
        sampling_metadata: Any,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        chosen = choose(target_probs, draft_probs, draft_token_ids, sampling_metadata.generators, num_draft_tokens)
        return chosen.to(draft_token_ids.dtype)

    rejection_sampler.sample_recovered_tokens = sample_recovered_tokens


@patch
def recover_argmax() -> None:
    """After a rejection emit the target's favourite instead of drawing from the residual."""
    _recover(lambda p, _q, _drafts, _generators, _counts: p.argmax(dim=-1))


@patch
def resample_from_p() -> None:
    """After a rejection draw from the target's distribution instead of the residual."""

    def draw(p: torch.Tensor, _q: Any, _drafts: Any, generators: dict[int, torch.Generator], counts: list[int]) -> torch.Tensor:
        noise = torch.empty_like(p).exponential_()
        start = 0
        for row, drafted in enumerate(counts):
            if drafted and row in generators:
                noise[start : start + drafted].exponential_(generator=generators[row])
            start += drafted
        return (p / noise).argmax(dim=-1)

    _recover(draw)


@patch
def stale_bonus() -> None:
    """Draw the bonus token from the distribution one position early: that of the last draft token."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.RejectionSampler.forward

    def forward(self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        drafted = torch.tensor(metadata.num_draft_tokens, device=metadata.bonus_logits_indices.device)
        shifted = logits.clone()
        bonus = metadata.bonus_logits_indices.long()
        shifted[bonus] = logits[bonus - (drafted > 0).long()]
        return stock(self, metadata, draft_probs, shifted, sampling_metadata)

    rejection_sampler.RejectionSampler.forward = forward


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
def penalties_ignored() -> None:
    """Leave penalties out at draft positions; the bonus position still has them."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.RejectionSampler.apply_penalties = staticmethod(lambda logits, *_, **__: logits)


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


def apply() -> None:
    """Apply the patches named in ``SPECDEC_VLLM_PATCHES``, separated by commas; called by vLLM in each of its processes."""
    wanted = [name for name in os.environ.get("SPECDEC_VLLM_PATCHES", "").split(",") if name]
    unknown = sorted(set(wanted) - set(PATCHES))
    if unknown:
        msg = f"SPECDEC_VLLM_PATCHES: unknown {', '.join(unknown)}; known are {', '.join(PATCHES)}"
        raise SystemExit(msg)
    for name in wanted:
        PATCHES[name]()
