"""A pace: how fast an arm answered, request by request and pass by pass, as the client saw it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.transcript import Transcript

__all__ = ["Figure", "Paces", "paces", "prompt_tokens_per_s", "response_tokens_per_s", "ttft_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One quantity in two arms, compared over requests that both answered."""

    baseline: float
    """The typical value over the baseline's boots, in the quantity's own unit."""
    speculative: float
    log_ratios: tuple[float, ...]
    """Speculative over baseline, one per pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """What can be said about the speed of one arm beside the baseline's boots."""

    response: Figure
    """Decode tokens per second."""
    ttft: Figure | None
    """Seconds to the first content."""
    prompt: Figure | None
    """Prompt tokens per second of time to first content."""
    requests: int
    """Per pass, at least."""


def paces(baselines: Sequence[Transcript], speculative: Transcript) -> Paces | None:
    """Return the figures over requests that every arm answered, pass by pass; None where no pass has one with usable timing."""
    response = _figure(response_tokens_per_s, baselines, speculative)
    if response is None:
        return None
    shared = _shared(response_tokens_per_s, baselines, speculative)
    ttft = _figure(ttft_s, baselines, speculative)
    prompt = _figure(prompt_tokens_per_s, baselines, speculative)
    return Paces(response=response, ttft=ttft, prompt=prompt, requests=min(map(len, shared.values())))


def response_tokens_per_s(answer: Answer) -> float | None:
    """Return (n - n1) / (t_done - t_first): tokens behind the first chunk over the time they took (facts/speed.md section 3).

    n is the server's own count, n1 the tokens of the first chunk: the prefill's window, else 1. None where that cannot be known.
    """
    timing, choice = answer.timing, answer.choice
    if not answer.ok or timing is None or timing.first_s is None or timing.done_s <= timing.first_s:
        return None
    first = choice.windows[0] if choice.windows else 1
    tokens = (answer.usage.completion_tokens if answer.usage else len(choice.token_ids)) - first
    return tokens / (timing.done_s - timing.first_s) if tokens > 0 else None


def ttft_s(answer: Answer) -> float | None:
    """Return the seconds from sending to the first content; None where not streamed or not answered."""
    waited = answer.timing.ttft_s if answer.ok and answer.timing else None
    return waited if waited is not None and waited > 0.0 else None


def prompt_tokens_per_s(answer: Answer) -> float | None:
    """Return prompt tokens over time to first content, queueing and the first token's own step included."""
    waited = ttft_s(answer)
    tokens = answer.usage.prompt_tokens if answer.usage else len(answer.prompt_token_ids)
    return tokens / waited if waited is not None and tokens > 0 else None


def _figure(of: Callable[[Answer], float | None], baselines: Sequence[Transcript], speculative: Transcript) -> Figure | None:
    """Compare request by request, take the median over a pass's requests, and keep one value per pass.

    An arm's own value is the geometric mean over passes of the pass's median, so that with one prompt the two arms' values have the very
    ratio that the mean log-ratio gives.
    """
    shared = _shared(of, baselines, speculative)
    if not shared:
        return None
    return Figure(
        baseline=math.exp(_mean(median(base for base, _ in pairs) for pairs in shared.values())),
        speculative=math.exp(_mean(median(spec for _, spec in pairs) for pairs in shared.values())),
        log_ratios=tuple(median(spec - base for base, spec in pairs) for pairs in shared.values()),
    )


def _shared(
    of: Callable[[Answer], float | None], baselines: Sequence[Transcript], speculative: Transcript
) -> Mapping[int, Sequence[tuple[float, float]]]:
    """Return (log over the baseline's boots, log of the speculative arm) per pass and request that all of them have."""
    mine = _logs(of, speculative)
    theirs = [_logs(of, baseline) for baseline in baselines]
    by_pass: dict[int, list[tuple[float, float]]] = {}
    for key in mine:
        if all(key in each for each in theirs):
            by_pass.setdefault(key[1], []).append((_mean(each[key] for each in theirs), mine[key]))
    return by_pass


def _logs(of: Callable[[Answer], float | None], transcript: Transcript) -> dict[tuple[str, int], float]:
    known = ((answer.key, of(answer)) for answer in transcript.answers)
    return {key: math.log(value) for key, value in known if value is not None}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
