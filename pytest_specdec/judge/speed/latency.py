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
    known = sorted(value for value in seconds if value is not None)
    if not known:
        return None
    p50, p90, p99 = (known[math.ceil(share * len(known)) - 1] for share in (0.5, 0.9, 0.99))
    return Percentiles(p50_s=p50, p90_s=p90, p99_s=p99, count=len(known))


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
    """Completion tokens of all answers over the time in which requests were in flight."""
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
    """Return the latencies of the streamed answers.

    Returns None if no answer was streamed.
    """
    streamed = [answer for answer in transcript.answers if ttft_s(answer) is not None]
    ttft, request = percentiles(map(ttft_s, streamed)), percentiles(map(latency_s, streamed))
    if ttft is None or request is None:
        return None
    counted = [usage for answer in streamed if (usage := answer.usage) is not None and usage.cached_tokens is not None]
    wall_s = _wall_s(transcript.answers)
    return ArmLatency(
        arm=transcript.arm,
        ttft=ttft,
        content=percentiles(map(content_ttft_s, streamed)),
        token=percentiles(map(seconds_per_token, streamed)),
        gap=percentiles(gap_us / 1e6 for answer in streamed if answer.timing for gap_us in answer.timing.gaps_us),
        request=request,
        tokens_per_s=sum(answer.reported_tokens for answer in streamed) / wall_s if wall_s else 0.0,
        prompt_tokens=sum(usage.prompt_tokens for usage in counted),
        cached_tokens=sum(usage.cached_tokens or 0 for usage in counted) if counted else None,
        goodput=None if slo is None else _goodput(transcript.answers, slo, wall_s),
    )


def _goodput(answers: Sequence[Answer], slo: Slo, wall_s: float) -> Goodput:
    """Return the number and rate of answers within all limits.

    As ``vllm bench serve --goodput``, after DistServe, https://arxiv.org/abs/2401.09670.
    """
    good_answers = sum(_keeps(answer, slo) for answer in answers)
    return Goodput(slo=slo, kept=good_answers, answers=len(answers), per_s=good_answers / wall_s if wall_s else 0.0)


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
    return all(most is None or (of(answer) or 0.0) <= most for of, most in limits)


def _wall_s(answers: Sequence[Answer]) -> float:
    """Return the seconds with requests in flight.

    The time between them is left out, since requests may have been sent to other arms in it.
    """
    spans = sorted((one.sent_s, one.done_s) for one in (answer.timing for answer in answers) if one is not None)
    seconds, until_s = 0.0, -math.inf
    for sent_s, done_s in spans:
        seconds += max(0.0, done_s - max(sent_s, until_s))
        until_s = max(until_s, done_s)
    return seconds


_ROWS = (("ttft", "time to first token"), ("content", "time to first text"), ("token", "inter-token latency"), ("gap", "step gap"))
_REQUEST = ("request", "request latency")


def lines(arms: Sequence[ArmLatency]) -> tuple[str, ...]:
    """Return a line per latency, with the arms side by side.

    Throughput, cached prompt tokens and goodput follow as far as they are known.
    """
    reasons = any(arm.reasons for arm in arms)
    rows = [row for row in (*_ROWS, _REQUEST) if reasons or row[0] != "content"]
    shown = ((title, [(arm.arm, of) for arm in arms if (of := getattr(arm, name)) is not None]) for name, title in rows)
    timed = [f"{title} p50 / p90 / p99: {_beside(pairs)}" for title, pairs in shown if pairs]
    made = f"tokens of all requests per second: {_beside([(arm.arm, f'{arm.tokens_per_s:,.2f}') for arm in arms])}"
    cached = [(arm.arm, f"{arm.cached_tokens:,} of {arm.prompt_tokens:,}") for arm in arms if arm.cached_tokens is not None]
    goodput_lines = [f"goodput of {arm.arm}: {arm.goodput}" for arm in arms if arm.goodput is not None]
    return (*timed, made, *([f"cached prompt tokens: {_beside(cached)}"] if cached else []), *goodput_lines)


def _beside(values: Sequence[tuple[str, object]]) -> str:
    return "; ".join(f"{arm} {value}" for arm, value in values)


def quantiles(sides: Sequence[tuple[str, ArmLatency]]) -> tuple[LatencyQuantiles, ...]:
    """Return the quantiles of each latency, of each side in turn."""
    return tuple(
        LatencyQuantiles(what=title, arm=side, p50_s=of.p50_s, p90_s=of.p90_s, p99_s=of.p99_s, count=of.count)
        for name, title in (*_ROWS, _REQUEST)
        for side, arm in sides
        if (of := getattr(arm, name)) is not None
    )


def figures(side: str, arm: ArmLatency) -> dict[str, float]:
    """Return the numbers of one side, units in their names."""
    known = ((name, of) for name, _ in (*_ROWS, _REQUEST) if (of := getattr(arm, name)) is not None)
    spread = {f"{side}_{_NAMES[name]}_{p}_s": getattr(of, f"{p}_s") for name, of in known for p in ("p50", "p90", "p99")}
    cached = {} if arm.cached_tokens is None else {f"{side}_cached_prompt_tokens": float(arm.cached_tokens)}
    goodput = {} if arm.goodput is None else {f"{side}_goodput_requests_per_s": arm.goodput.per_s, f"{side}_goodput": _share(arm.goodput)}
    return {**spread, f"{side}_tokens_per_s": arm.tokens_per_s, **cached, **goodput}


def _share(goodput: Goodput) -> float:
    return goodput.kept / goodput.answers


_NAMES = {"ttft": "ttft", "content": "content_ttft", "token": "inter_token", "gap": "step_gap", "request": "request"}
