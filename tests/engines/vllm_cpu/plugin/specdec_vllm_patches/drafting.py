"""Faults of drafting for one kind of traffic: the tokens are right, and come later than they could."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_vllm_patches.registry import patch

if TYPE_CHECKING:
    from collections.abc import Callable


UNLIKELY = 1
"""The id of a token that answers hold next to never."""


def _undrafted(kind: Callable[[Any], bool]) -> None:
    """Throw the drafts of requests of a kind away."""
    from vllm.v1.core.sched import scheduler

    stock = scheduler.Scheduler.update_draft_token_ids

    def update(self: Any, draft_token_ids: Any) -> None:
        stock(self, draft_token_ids)
        for request in self.running:
            if kind(request):
                request.spec_token_ids = []

    scheduler.Scheduler.update_draft_token_ids = update


@patch
def dead_drafts() -> None:
    """Draft a token that the target does not take, but in a grammar, which would not take it either."""
    from vllm.v1.core.sched import scheduler

    stock = scheduler.Scheduler.update_draft_token_ids

    def update(self: Any, draft_token_ids: Any) -> None:
        stock(self, draft_token_ids)
        for request in self.running:
            if request.structured_output_request is None:
                request.spec_token_ids = [UNLIKELY] * len(request.spec_token_ids)

    scheduler.Scheduler.update_draft_token_ids = update


@patch
def drafts_off_logprobs() -> None:
    """Draft nothing for requests that report log-probabilities."""
    _undrafted(lambda request: request.sampling_params.num_logprobs is not None)
