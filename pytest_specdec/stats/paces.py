"""Paces: the speed of streamed answers in several arms, compared request by request and pass by pass.

An arm is one boot, or start, of a server: of the baseline or of the speculative variant. A pass is one round over all requests; a
transcript has one arm's answers in all passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.stats.answer_timing import (
    content_ttft_s,
    in_one_burst,
    prompt_tokens_per_s,
    response_tokens_per_s,
    tokens_per_s,
    ttft_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_specdec.model.transcript import Answer, Transcript

__all__ = ["ArmTimings", "ComparedFigure", "compare_figure", "paces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One quantity in two arms, compared over requests that both answered."""

    baseline: float
    """The typical value over the baseline's boots, in the quantity's own unit."""
    speculative: float
    log_ratios: tuple[float, ...]
    """Speculative over baseline, one per pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimings:
    """Speed of one arm against the baseline's boots."""

    response: ComparedFigure
    """Decode tokens per second; with ``whole`` those of the whole request, time to first token included."""
    ttft: ComparedFigure | None
    """Seconds to the first token, of reasoning too; None with ``whole``."""
    content: ComparedFigure | None
    """Seconds to the first text or tool call; None with ``whole``, or if they are unknown."""
    prompt: ComparedFigure | None
    """Prompt tokens per second of time to first token; None with ``whole``."""
    requests: int
    """Requests compared in the pass with the fewest."""
    whole: bool
    """Whether whole requests are compared, in all arms alike, because some answers' decoding could not be timed."""
    bursts: int
    """Answers that came in one burst."""
    answers: int
    """All answers, over all arms."""


def paces(baselines: Sequence[Transcript], speculative: Transcript, *, whole: bool = False) -> ArmTimings | None:
    """Return the speed figures of an arm against the baseline's boots.

    Only requests that every arm answered count, pass by pass. If one answer of any arm came in one burst, most tokens at once, its decode
    time is unknown, and whole requests are compared in all arms, as with ``whole``: by tokens per second, the first token's wait included.
    None if no request has a usable timing in every arm.
    """
    answers = [answer for arm in (*baselines, speculative) for answer in arm.answers]
    bursts = sum(map(in_one_burst, answers))
    whole = whole or bursts > 0
    speed = tokens_per_s if whole else response_tokens_per_s
    response = compare_figure(speed, baselines, speculative)
    if response is None:
        return None
    return ArmTimings(
        response=response,
        ttft=None if whole else compare_figure(ttft_s, baselines, speculative),
        content=None if whole else compare_figure(content_ttft_s, baselines, speculative),
        prompt=None if whole else compare_figure(prompt_tokens_per_s, baselines, speculative),
        requests=min(map(len, _shared_logs(speed, baselines, speculative).values())),
        whole=whole,
        bursts=bursts,
        answers=len(answers),
    )


def compare_figure(
    figure: Callable[[Answer], float | None], baselines: Sequence[Transcript], speculative: Transcript
) -> ComparedFigure | None:
    """Return one quantity of the baseline and a variant, compared request by request.

    ``figure`` reads the quantity from an answer, None if unknown. ``baselines`` are boots of one baseline: a request's value there is the
    geometric mean over them. Only requests count that have the quantity in every boot and in the variant. A pass's value is the median over
    its requests, its log-ratio the median of theirs. An arm's own value is the geometric mean of the passes' medians, so that with one
    prompt the ratio of the two arms' values agrees with the mean log-ratio. None if no request counts.
    """
    logs_by_pass = _shared_logs(figure, baselines, speculative)
    if not logs_by_pass:
        return None
    return ComparedFigure(
        baseline=math.exp(_mean(median(base for base, _ in pairs) for pairs in logs_by_pass.values())),
        speculative=math.exp(_mean(median(spec for _, spec in pairs) for pairs in logs_by_pass.values())),
        log_ratios=tuple(median(spec - base for base, spec in pairs) for pairs in logs_by_pass.values()),
    )


def _shared_logs(
    figure: Callable[[Answer], float | None], baselines: Sequence[Transcript], speculative: Transcript
) -> Mapping[int, Sequence[tuple[float, float]]]:
    """Return the logs of a quantity for requests of all arms.

    They are by pass: for each request that has the quantity in every arm, the baseline's log, which is the mean over its boots, and the
    variant's.
    """
    speculative_logs = _logs(figure, speculative)
    baseline_logs = [_logs(figure, baseline) for baseline in baselines]
    by_pass: dict[int, list[tuple[float, float]]] = {}
    for key in speculative_logs:  # request id and pass
        if all(key in logs for logs in baseline_logs):
            by_pass.setdefault(key[1], []).append((_mean(logs[key] for logs in baseline_logs), speculative_logs[key]))
    return by_pass


def _logs(figure: Callable[[Answer], float | None], transcript: Transcript) -> dict[tuple[str, int], float]:
    """Return the known logs of a quantity, by request id and pass."""
    values = ((answer.key, figure(answer)) for answer in transcript.answers)
    return {key: math.log(value) for key, value in values if value is not None}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
