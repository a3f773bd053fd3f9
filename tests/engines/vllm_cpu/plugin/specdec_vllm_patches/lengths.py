"""Faults of ends and limits inside a verify window, where the scheduler looks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_vllm_patches.registry import patch

if TYPE_CHECKING:
    from collections.abc import Callable


def _ended(end: Callable[[Any, int, list[int], int], bool]) -> None:
    """Let ``end`` say after each token whether the answer ends there, given the request, the context, the window and its tokens so far."""
    from vllm.v1.core.sched import scheduler

    def update(self: Any, request: Any, new_token_ids: list[int], *_: Any, **__: Any) -> tuple[list[int], bool]:
        window = list(new_token_ids)
        for count, token in enumerate(window, 1):
            request.append_output_token_ids(token)
            if end(request, self.max_model_len, window, count):
                return window[:count], True
        return window, False

    scheduler.Scheduler._update_request_with_output = update


def _stops(request: Any, context: int) -> bool:
    from vllm.v1.core.sched.utils import check_stop

    return bool(check_stop(request, context))


def _capped(request: Any) -> bool:
    """End the answer by length."""
    from vllm.v1.request import RequestStatus

    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    request.stop_reason = None
    return True


def _missed(kind: Callable[[Any, int], bool]) -> None:
    """Miss tokens of a kind that end an answer, given its request, where they are not the last of their window."""
    from vllm.v1.request import RequestStatus

    def end(request: Any, context: int, window: list[int], count: int) -> bool:
        if count == len(window) or not kind(request, window[count - 1]):
            return _stops(request, context)
        request.status = RequestStatus.RUNNING
        return request.num_output_tokens >= request.max_tokens and _capped(request)

    _ended(end)


@patch
def end_missed_mid_window() -> None:
    """Look for an end of sequence at the last token of a window only."""
    _missed(lambda request, token: token == request.sampling_params.eos_token_id)


@patch
def stop_ids_at_last_only() -> None:
    """Look for stop_token_ids at the last token of a window only."""
    _missed(lambda request, token: token in (request.sampling_params.stop_token_ids or ()))


@patch
def limit_overrun() -> None:
    """Hand out the whole window in which max_tokens is reached."""

    def end(request: Any, context: int, window: list[int], count: int) -> bool:
        from vllm.v1.request import RequestStatus

        return _stops(request, context) and (request.status != RequestStatus.FINISHED_LENGTH_CAPPED or count == len(window))

    _ended(end)


@patch
def limit_undershot() -> None:
    """End an answer by length where another window as long as the last no longer fits."""

    def end(request: Any, context: int, window: list[int], count: int) -> bool:
        fits = request.num_output_tokens + len(window) <= request.max_tokens
        return _stops(request, context) or (1 < count == len(window) and not fits and _capped(request))

    _ended(end)


@patch
def context_ends_early() -> None:
    """End answers by length where a whole window no longer fits the context."""

    def end(request: Any, context: int, window: list[int], count: int) -> bool:
        whole = 4
        return _stops(request, context) or (count == len(window) and request.num_tokens + whole > context and _capped(request))

    _ended(end)


@patch
def min_tokens_at_bonus() -> None:
    """Keep ends of sequence from the last position of a window only until min_tokens is reached."""
    from vllm.v1.sample.logits_processor import builtin

    builtin.MinTokensLogitsProcessor.apply_with_spec_decode = lambda _self, logits, _counts: logits
