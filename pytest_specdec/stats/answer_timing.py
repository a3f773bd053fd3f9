"""The timing of one streamed answer: time to first token, time per token and tokens per chunk, from stamps and the server's counts.

t_sent is the time at which the request was sent; t_first and t_last are the times of the first and the last chunk with tokens: text,
reasoning, or a piece of a tool call. n is the server's own count of completion tokens, n1 the number of them received at t_first. Tokens
are never counted by chunks: under speculation a chunk has as many as a step emits.
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
    """Return the seconds from sending to the first token.

    It is t_first - t_sent; reasoning counts. None if the answer was not streamed or has no status 200, or if the stamps are equal.
    """
    timing = _stream_timing(answer)
    return None if timing is None else _positive(timing.ttft_s)


def content_ttft_s(answer: Answer) -> float | None:
    """Return the seconds until the first text or tool call.

    Reasoning before it does not count as text. None if the time is unknown or 0.
    """
    timing = _stream_timing(answer)
    return None if timing is None else _positive(timing.content_ttft_s)


def latency_s(answer: Answer) -> float | None:
    """Return the seconds from sending to the last token.

    It is t_last - t_sent, or to the last byte if t_last is unknown. None if the answer was not streamed or has no status 200, or if the
    stamps are equal.
    """
    timing = _stream_timing(answer)
    return None if timing is None else _positive(_last_s(timing) - timing.sent_s)


def seconds_per_token(answer: Answer) -> float | None:
    """Return the time per output token after the first ones.

    It is (t_last - t_first) / (n - n1), in seconds: the TPOT. n1, the number of tokens received at t_first, is usually one. It is more if a
    busy machine kept the client from reading; the last of them then came up to one step before t_first. So t_last - t_first may lack the
    time of one step, out of those of n - n1 tokens. None if the times are unknown or equal, or no token came after t_first.
    """
    timing, tokens = _stream_timing(answer), tokens_after_first(answer)
    if timing is None or timing.first_s is None or tokens <= 0:
        return None
    return _positive((_last_s(timing) - timing.first_s) / tokens)


def response_tokens_per_s(answer: Answer) -> float | None:
    """Return (n - n1) / (t_last - t_first), the decode speed; None if unknown."""
    seconds = seconds_per_token(answer)
    return None if seconds is None else 1.0 / seconds


def tokens_per_s(answer: Answer) -> float | None:
    """Return the tokens per second of the whole request.

    It is n / (t_last - t_sent). None if :func:`latency_s` is, or if the server counted no tokens.
    """
    seconds, tokens = latency_s(answer), answer.reported_tokens
    return tokens / seconds if seconds is not None and tokens else None


def prompt_tokens_per_s(answer: Answer) -> float | None:
    """Return the prompt tokens per second of time to first token.

    That time includes queueing and the first token's own step. None if it is unknown, or without prompt tokens.
    """
    waited = ttft_s(answer)
    tokens = answer.prompt_tokens
    return tokens / waited if waited is not None and tokens > 0 else None


_PAUSE = 10.0
"""Median gaps above which a gap is no step: it is a pause of the client or the machine, or one between bursts that a client reads."""


def step_gap_s(answer: Answer) -> float | None:
    """Return the mean seconds from one chunk to the next.

    It is the time of a step if the server sends a chunk per step; under speculation it is no inter-token latency. Gaps of more than ten
    medians are left out: they are pauses of the client or the machine. With them the mean would be (t_last - t_first) / (number of gaps),
    which cannot check the speed that is measured by the same two times. A median would leave out the slower of two kinds of steps: prompt
    lookup has steps with a draft and without. The result is a microsecond at least, the unit of the stamps. None if the answer was not
    streamed or has no gaps.
    """
    timing = _stream_timing(answer)
    if timing is None or not timing.gaps_us:
        return None
    most_us = _PAUSE * median(timing.gaps_us)
    return max(1.0, fmean(gap for gap in timing.gaps_us if gap <= most_us)) / 1e6


def tokens_per_chunk(answer: Answer) -> float | None:
    """Return (n - n1) / (chunks after t_first), tokens per chunk.

    It is the server's tokens per step if each step is one chunk. Minimum intervals between chunks, parsers of reasoning and the handling of
    stop strings put several steps into one. None if no chunks, or no tokens, are known after t_first.
    """
    timing, tokens = _stream_timing(answer), tokens_after_first(answer)
    chunks = 0 if timing is None else timing.chunks_behind_first
    return tokens / chunks if chunks and tokens > 0 else None


def in_one_burst(answer: Answer) -> bool:
    """Return True if most of an answer's tokens arrived at once.

    More than half were there at t_first, and more than the prefill emits: the client was kept from reading before. t_first is then late,
    and the times of these tokens are unknown.
    """
    first_tokens = answer.timing.first_tokens if answer.ok and answer.timing else None
    return first_tokens is not None and first_tokens > _prefill_tokens(answer) and 2 * first_tokens > answer.reported_tokens


def tokens_after_first(answer: Answer) -> int:
    """Return the number of tokens after those at t_first.

    It is n - n1. If the client did not count n1, the tokens at t_first, it is the number of tokens that the prefill step emitted.
    """
    first_tokens = answer.timing.first_tokens if answer.timing else None
    return answer.reported_tokens - (_prefill_tokens(answer) if first_tokens is None else first_tokens)


def _stream_timing(answer: Answer) -> Timing | None:
    """Return the timing of a streamed answer with status 200, else None."""
    timing = answer.timing
    return timing if answer.ok and timing is not None and timing.first_s is not None else None


def _last_s(timing: Timing) -> float:
    """Return t_last, or the time of the last byte if unknown."""
    return timing.done_s if timing.last_s is None else timing.last_s


def _positive(seconds: float | None) -> float | None:
    """Return a time above 0, else None: equal stamps show no time."""
    return seconds if seconds is not None and seconds > 0.0 else None


def _prefill_tokens(answer: Answer) -> int:
    """Return the tokens that the prefill emitted: by the first window, or else one."""
    return answer.choice.windows[0] if answer.choice.windows else 1
