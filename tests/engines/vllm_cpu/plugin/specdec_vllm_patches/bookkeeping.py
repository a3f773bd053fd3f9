"""Faults of what is said about an answer: its finish reason, the counters of the server."""

from __future__ import annotations

from typing import Any

from specdec_vllm_patches.registry import patch


@patch
def stop_at_limit() -> None:
    """Give answers that reach max_tokens the finish_reason stop."""
    from vllm.v1.engine import output_processor

    stock = output_processor.RequestState._new_completion_output

    def completed(self: Any, *args: Any) -> Any:
        output = stock(self, *args)
        output.finish_reason = {"length": "stop"}.get(output.finish_reason, output.finish_reason)
        return output

    output_processor.RequestState._new_completion_output = completed


@patch
def counters_accept_more() -> None:
    """Count one draft token for each verify step, however many were drafted, and all accepted ones."""
    from vllm.v1.spec_decode import metrics

    stock = metrics.SpecDecodingStats.observe_draft

    def observe_draft(self: Any, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        stock(self, min(num_draft_tokens, 1), num_accepted_tokens)

    metrics.SpecDecodingStats.observe_draft = observe_draft


@patch
def counters_frozen() -> None:
    """Count no draft at all in the metrics."""
    from vllm.v1.spec_decode import metrics

    metrics.SpecDecodingStats.observe_draft = lambda *_, **__: None
