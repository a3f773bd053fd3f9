"""Latency: percentiles of one arm's answers, its throughput, and the answers within a stated objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.promise import LatencyQuantiles
from pytest_specdec.stats.answer_timing import content_ttft_s, latency_s, seconds_per_token, ttft_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_specdec.model.baseline import Slo
    from pytest_specdec.model.transcript import Answer, Transcript

__all__ = ["ArmLatency", "Goodput", "Percentiles", "figures", "latency", "lines", "percentiles", "quantiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Three values of a sample, in seconds: the smallest that 50, 90 and 99 % of it do not exceed (nearest rank)."""

    p50_s: float
    p90_s: float
    p99_s: float
    count: int
    """Size of the sample; the 99th percentile of fewer than 100 values is their largest."""

    def __str__(self) -> str:
        """Return them in milliseconds: ``12.1 / 14.0 / 31.5 ms``."""
        return f"{self.p50_s * 1e3:,.1f} / {self.p90_s * 1e3:,.1f} / {self.p99_s * 1e3:,.1f} ms"


def percentiles(seconds: Iterable[float | None]) -> Percentiles | None:
    """Return the percentiles of the known values of a sample.

    Returns None if none is known.
    """
    ordered = sorted(value for value in seconds if value is not None)
    if not ordered:
        return None
    p50, p90, p99 = (ordered[math.ceil(fraction * len(ordered)) - 1] for fraction in (0.5, 0.9, 0.99))
    return Percentiles(p50_s=p50, p90_s=p90, p99_s=p99, count=len(ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Answers within every limit of an objective; a failed answer is within none."""

    slo: Slo
    kept: int
    answers: int
    """All requests, answered or not."""
    per_s: float
    """Answers within the limits, per second of the time in which requests were in flight."""

    def __str__(self) -> str:
        """Return the share and the rate."""
        return f"{self.kept} of {self.answers} answers keep {self.slo}: {self.per_s:.2f} requests/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLatency:
    """The times of one arm's answers, over all passes."""

    arm: str
    ttft: Percentiles
    """Time to the first token, of reasoning too."""
    content: Percentiles | None
    """Time to the first text or tool call; None if unknown."""
    token: Percentiles | None
    """Inter-token latency: of each answer, the time per output token after the first; None if unknown."""
    gap: Percentiles | None
    """Time between one chunk and the next, over all answers: a step, if the server sends a chunk per step; None if unknown."""
    request: Percentiles
    """From sending to the last token."""
    tokens_per_s: float
    """Completion tokens of the streamed answers over the time in which requests were in flight."""
    prompt_tokens: int
    """Prompt tokens of the answers that report cached tokens."""
    cached_tokens: int | None
    """Of these, tokens taken from the prefix cache; None if the server reports none."""
    goodput: Goodput | None
    """None without an objective."""

    @property
    def reasons(self) -> bool:
        """True if the first text came later than the first token."""
        return self.content is not None and self.content != self.ttft


def latency(transcript: Transcript, slo: Slo | None = None) -> ArmLatency | None:
    """Return the latencies of the streamed answers of one arm.

    Goodput is added if there is an objective, ``slo``. Returns None if no answer was streamed.
    """
    streamed = [answer for answer in transcript.answers if ttft_s(answer) is not None]
    ttft, request = percentiles(map(ttft_s, streamed)), percentiles(map(latency_s, streamed))
    if ttft is None or request is None:
        return None
    usages = [usage for answer in streamed if (usage := answer.usage) is not None and usage.cached_tokens is not None]
    busy_s = _busy_s(transcript.answers)
    return ArmLatency(
        arm=transcript.arm,
        ttft=ttft,
        content=percentiles(map(content_ttft_s, streamed)),
        token=percentiles(map(seconds_per_token, streamed)),
        gap=percentiles(gap_us / 1e6 for answer in streamed if answer.timing for gap_us in answer.timing.gaps_us),
        request=request,
        tokens_per_s=sum(answer.reported_tokens for answer in streamed) / busy_s if busy_s else 0.0,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens or 0 for usage in usages) if usages else None,
        goodput=None if slo is None else _goodput(transcript.answers, slo, busy_s),
    )


def _goodput(answers: Sequence[Answer], slo: Slo, busy_s: float) -> Goodput:
    """Return the number and rate of answers within all limits.

    ``busy_s`` is the time with requests in flight. As ``vllm bench serve --goodput``, after DistServe, https://arxiv.org/abs/2401.09670.
    """
    good_answers = sum(_keeps(answer, slo) for answer in answers)
    return Goodput(slo=slo, kept=good_answers, answers=len(answers), per_s=good_answers / busy_s if busy_s else 0.0)


def _keeps(answer: Answer, slo: Slo) -> bool:
    """Return True if an answer is within every limit.

    A single token has no time per token, and so is within any limit on it. An answer without a first token is within none.
    """
    if ttft_s(answer) is None:
        return False
    limits: tuple[tuple[Callable[[Answer], float | None], float | None], ...] = (
        (ttft_s, slo.ttft_s),
        (seconds_per_token, slo.tpot_s),
        (latency_s, slo.request_s),
    )
    return all(limit is None or (latency_of(answer) or 0.0) <= limit for latency_of, limit in limits)


def _busy_s(answers: Sequence[Answer]) -> float:
    """Return the seconds with at least one request in flight.

    The time between requests is left out, since requests may have been sent to other arms in it.
    """
    spans = sorted((one.sent_s, one.done_s) for one in (answer.timing for answer in answers) if one is not None)
    seconds, until_s = 0.0, -math.inf
    for sent_s, done_s in spans:
        seconds += max(0.0, done_s - max(sent_s, until_s))
        until_s = max(until_s, done_s)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One of the latencies that reports show."""

    title: str
    figure: str
    """Its name in figures."""
    of: Callable[[ArmLatency], Percentiles | None]
    """Its percentiles in an arm; None if unknown."""


_CONTENT = _Row(title="time to first text", figure="content_ttft", of=lambda arm: arm.content)
_ROWS = (
    _Row(title="time to first token", figure="ttft", of=lambda arm: arm.ttft),
    _CONTENT,
    _Row(title="inter-token latency", figure="inter_token", of=lambda arm: arm.token),
    _Row(title="step gap", figure="step_gap", of=lambda arm: arm.gap),
    _Row(title="request latency", figure="request", of=lambda arm: arm.request),
)


def lines(arms: Sequence[ArmLatency]) -> tuple[str, ...]:
    """Return a line per latency, with the arms side by side.

    The time to first text is left out unless an arm reasons first. Throughput, cached prompt tokens and goodput follow as far as they are
    known.
    """
    reasons = any(arm.reasons for arm in arms)
    rows = [row for row in _ROWS if reasons or row is not _CONTENT]
    times_by_title = ((row.title, [(arm.arm, times) for arm in arms if (times := row.of(arm)) is not None]) for row in rows)
    timed = [f"{title} p50 / p90 / p99: {_join_arms(pairs)}" for title, pairs in times_by_title if pairs]
    throughput = f"tokens of all requests per second: {_join_arms([(arm.arm, f'{arm.tokens_per_s:,.2f}') for arm in arms])}"
    cached = [(arm.arm, f"{arm.cached_tokens:,} of {arm.prompt_tokens:,}") for arm in arms if arm.cached_tokens is not None]
    goodput_lines = [f"goodput of {arm.arm}: {arm.goodput}" for arm in arms if arm.goodput is not None]
    return (*timed, throughput, *([f"cached prompt tokens: {_join_arms(cached)}"] if cached else []), *goodput_lines)


def _join_arms(values: Sequence[tuple[str, object]]) -> str:
    return "; ".join(f"{arm} {value}" for arm, value in values)


def quantiles(sides: Sequence[tuple[str, ArmLatency]]) -> tuple[LatencyQuantiles, ...]:
    """Return the quantiles of each latency, of each side in turn.

    ``sides`` are the arms' names in reports, with their latencies.
    """
    return tuple(
        LatencyQuantiles(what=row.title, arm=side, p50_s=times.p50_s, p90_s=times.p90_s, p99_s=times.p99_s, count=times.count)
        for row in _ROWS
        for side, arm in sides
        if (times := row.of(arm)) is not None
    )


def figures(side: str, arm: ArmLatency) -> dict[str, float]:
    """Return the numbers of one arm by name, units in their names.

    ``side`` is the arm's name in reports, with which each name begins. Unknown figures are left out.
    """
    quantiles_by_name = {f"{side}_{row.figure}": times for row in _ROWS if (times := row.of(arm)) is not None}
    times_by_name = {
        name: seconds
        for figure, times in quantiles_by_name.items()
        for name, seconds in ((f"{figure}_p50_s", times.p50_s), (f"{figure}_p90_s", times.p90_s), (f"{figure}_p99_s", times.p99_s))
    }
    cached = {} if arm.cached_tokens is None else {f"{side}_cached_prompt_tokens": float(arm.cached_tokens)}
    goodput = (
        {} if arm.goodput is None else {f"{side}_goodput_requests_per_s": arm.goodput.per_s, f"{side}_goodput": _kept_rate(arm.goodput)}
    )
    return {**times_by_name, f"{side}_tokens_per_s": arm.tokens_per_s, **cached, **goodput}


def _kept_rate(goodput: Goodput) -> float:
    return goodput.kept / goodput.answers
