"""Faults of the acceptance rule, the recovered token and the bonus token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specdec_vllm_patches.registry import PADDING, patch

if TYPE_CHECKING:
    from collections.abc import Callable

LENIENCE = 1.5


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


def _corrected(correct: Callable[[torch.Tensor, int, torch.Tensor, int, int], None]) -> None:
    """Let ``correct`` change the row of each sequence, given its index, its draft tokens, how many tokens it emits, and its bonus token."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.rejection_sample

    def rejection_sample(draft_token_ids: torch.Tensor, num_draft_tokens: list[int], *args: Any, **kwargs: Any) -> torch.Tensor:
        output = stock(draft_token_ids, num_draft_tokens, *args, **kwargs)
        bonus = args[4]
        emitted = (output != PADDING).sum(dim=1).tolist()
        start = 0
        for row, drafted in enumerate(num_draft_tokens):
            if 0 < emitted[row] <= drafted:
                correct(output, row, draft_token_ids[start : start + drafted], emitted[row], int(bonus[row, 0]))
            start += drafted
        return output

    rejection_sampler.rejection_sample = rejection_sample


@patch
def rejected_emitted() -> None:
    """Emit the rejected draft token itself in its place."""

    def correct(output: torch.Tensor, row: int, drafts: torch.Tensor, emitted: int, _bonus: int) -> None:
        output[row, emitted - 1] = drafts[emitted - 1]

    _corrected(correct)
