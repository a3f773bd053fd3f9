"""Faults of preemption: what a request loses when it is put off for want of cache."""

from __future__ import annotations

from typing import Any

from specdec_vllm_patches.registry import patch


def _after_preemption(repeat: bool) -> None:
    """Change the first window after a preemption: repeat the token before it, or leave its first one out."""
    from vllm.v1.core.sched import scheduler

    put_off: set[str] = set()
    stock_preempt = scheduler.Scheduler._preempt_request
    stock_update = scheduler.Scheduler._update_request_with_output

    def preempt(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        put_off.add(request.request_id)
        stock_preempt(self, request, *args, **kwargs)

    def update(self: Any, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any) -> tuple[list[int], bool]:
        before = list(request.output_token_ids[-1:])
        tokens, stopped = stock_update(self, request, new_token_ids, *args, **kwargs)
        if request.request_id not in put_off:
            return tokens, stopped
        put_off.discard(request.request_id)
        return (before + tokens if repeat else tokens[1:]), stopped

    scheduler.Scheduler._preempt_request = preempt
    scheduler.Scheduler._update_request_with_output = update


@patch
def preempted_token_lost() -> None:
    """Leave the first token after a preemption out of the stream."""
    _after_preemption(repeat=False)
