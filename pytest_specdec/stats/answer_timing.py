"""The timing of one streamed answer: time to first token, time per token, and what a chunk brings, from stamps and the server's counts.

t_sent, t_first and t_last are when the request was sent, and when its first and last chunk came that bring tokens: text, reasoning, or a
part of a tool call. n is the server's own count of completion tokens, n1 how many of them were there at t_first. Tokens are never counted
by chunks: under speculation a chunk brings as many as a step accepts.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.timing import Timing
    from pytest_specdec.model.transcript import Answer

__all__ = [
    "content_ttft_s",
    "in_one_burst",
    "latency_s",
    "prompt_tokens_per_s",
    "response_tokens_per_s",
    "seconds_per_token",
    "step_gap_s",
    "tokens_after_first",
    "tokens_per_chunk",
    "tokens_per_s",
    "ttft_s",
]


def ttft_s(answer: Answer) -> float | None:
    """Return t_first - t_sent, in seconds. None if not streamed or not answered."""
    timing = _stream_timing(answer)
    return None if timing is None else _positive(timing.ttft_s)


def content_ttft_s(answer: Answer) -> float | None:
    """Return the seconds from sending to the first text or tool call. Reasoning comes before it. None if unknown."""
    timing = _stream_timing(answer)
    return None if timing is None else _positive(timing.content_ttft_s)


def latency_s(answer: Answer) -> float | None:
    """Return t_last - t_sent, the seconds of the request. None if not streamed or not answered."""
    timing = _stream_timing(answer)
    return None if timing is None else _positive(_last_s(timing) - timing.sent_s)


def seconds_per_token(answer: Answer) -> float | None:
    """Return (t_last - t_first) / (n - n1), the time per output token.

    This TPOT is of the answer after its first tokens. n1 is one token as a rule, more where a busy machine kept the client from reading.
    The last of them came at most one step before t_first, so that the figure is off by one step in n - n1 tokens. None where that cannot be
    known.
    """
    timing, tokens = _stream_timing(answer), tokens_after_first(answer)
    if timing is None or timing.first_s is None or tokens <= 0:
        return None
    return _positive((_last_s(timing) - timing.first_s) / tokens)


def response_tokens_per_s(answer: Answer) -> float | None:
    """Return (n - n1) / (t_last - t_first), the decode speed. None if unknown."""
    seconds = seconds_per_token(answer)
    return None if seconds is None else 1.0 / seconds


def tokens_per_s(answer: Answer) -> float | None:
    """Return n / (t_last - t_sent), free of stamps in between. None if not streamed or not answered."""
    seconds, tokens = latency_s(answer), answer.reported_tokens
    return tokens / seconds if seconds is not None and tokens else None


def prompt_tokens_per_s(answer: Answer) -> float | None:
    """Return prompt tokens over time to first token. Queueing and the first token's own step are included."""
    waited = ttft_s(answer)
    tokens = answer.usage.prompt_tokens if answer.usage else len(answer.prompt_token_ids)
    return tokens / waited if waited is not None and tokens > 0 else None


_PAUSE = 10.0
"""Median gaps, of a gap that is no step: a pause of the client, of the machine, or between what a client reads in bursts."""


def step_gap_s(answer: Answer) -> float | None:
    """Return the mean seconds from one chunk to the next.

    Pauses of more than ten medians are left out; None where unknown. A step, where a server sends a chunk per step; under speculation it is
    no inter-token latency. Without the pauses it does not follow from t_first and t_last: a client that reads in bursts has a step gap of
    next to nothing. A median instead would leave out the dearer of two kinds of steps, as prompt lookup has them with a draft and without.
    """
    timing = _stream_timing(answer)
    if timing is None or not timing.gaps_us:
        return None
    most_us = _PAUSE * median(timing.gaps_us)
    return max(1.0, fmean(gap for gap in timing.gaps_us if gap <= most_us)) / 1e6


def tokens_per_chunk(answer: Answer) -> float | None:
    """Return (n - n1) / (chunks - those at t_first), tokens per chunk.

    None where unknown. It is the server's tokens per step at one chunk per step. Intervals between chunks, parsers of reasoning and the
    handling of stop strings put several steps into one.
    """
    timing, tokens = _stream_timing(answer), tokens_after_first(answer)
    chunks = 0 if timing is None else timing.chunks_behind_first
    return tokens / chunks if chunks and tokens > 0 else None


def in_one_burst(answer: Answer) -> bool:
    """Whether most tokens were there when the client read the first. Their time is unknown, and t_first is late by as much."""
    first_tokens = answer.timing.first_tokens if answer.ok and answer.timing else None
    return first_tokens is not None and first_tokens > _prefill_tokens(answer) and 2 * first_tokens > answer.reported_tokens


def tokens_after_first(answer: Answer) -> int:
    """Return n - n1, the tokens after those at t_first."""
    first_tokens = answer.timing.first_tokens if answer.timing else None
    return answer.reported_tokens - (_prefill_tokens(answer) if first_tokens is None else first_tokens)


def _stream_timing(answer: Answer) -> Timing | None:
    timing = answer.timing
    return timing if answer.ok and timing is not None and timing.first_s is not None else None


def _last_s(timing: Timing) -> float:
    """Return t_last, in runs without it the later last byte."""
    return timing.done_s if timing.last_s is None else timing.last_s


def _positive(seconds: float | None) -> float | None:
    return seconds if seconds is not None and seconds > 0.0 else None


def _prefill_tokens(answer: Answer) -> int:
    return answer.choice.windows[0] if answer.choice.windows else 1
