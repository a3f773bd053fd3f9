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

__all__ = ["Figure", "Paces", "in_one_burst", "paces", "prompt_tokens_per_s", "response_tokens_per_s", "tokens_per_s", "ttft_s"]


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
    """Decode tokens per second; with ``whole`` those of the whole request, time to first content included."""
    ttft: Figure | None
    """Seconds to the first content; None with ``whole``."""
    prompt: Figure | None
    """Prompt tokens per second of time to first content; None with ``whole``."""
    requests: int
    """Per pass, at least."""
    whole: bool
    """Whether whole requests are compared, in all arms alike, because some answers' decoding could not be timed."""
    bursts: int
    """Answers that came in one burst."""
    answers: int
    """All answers, over all arms."""


def paces(baselines: Sequence[Transcript], speculative: Transcript, *, whole: bool = False) -> Paces | None:
    """Return the figures over requests that every arm answered, pass by pass; None where no pass has one with usable timing.

    One answer in one burst, in whichever arm, has whole requests compared in all of them, as ``whole`` asks for in any case.
    """
    answers = [answer for arm in (*baselines, speculative) for answer in arm.answers]
    bursts = sum(map(in_one_burst, answers))
    whole = whole or bursts > 0
    response = _figure(tokens_per_s if whole else response_tokens_per_s, baselines, speculative)
    if response is None:
        return None
    return Paces(
        response=response,
        ttft=None if whole else _figure(ttft_s, baselines, speculative),
        prompt=None if whole else _figure(prompt_tokens_per_s, baselines, speculative),
        requests=min(map(len, _shared(tokens_per_s if whole else response_tokens_per_s, baselines, speculative).values())),
        whole=whole,
        bursts=bursts,
        answers=len(answers),
    )


def response_tokens_per_s(answer: Answer) -> float | None:
    """Return (n - n1) / (t_done - t_first): tokens behind the first ones over the time they took (facts/speed.md section 3).

    n is the server's own count, n1 what was there at t_first: one token as a rule, more where a busy machine kept the client from reading.
    The last of them came at most one step before t_first, so that the figure is off by one step in n - n1 tokens. None where that cannot
    be known.
    """
    timing = answer.timing
    if not answer.ok or timing is None or timing.first_s is None or timing.done_s <= timing.first_s:
        return None
    first = _prefilled(answer) if timing.first_tokens is None else timing.first_tokens
    tokens = _tokens(answer) - first
    return tokens / (timing.done_s - timing.first_s) if tokens > 0 else None


def tokens_per_s(answer: Answer) -> float | None:
    """Return n / (t_done - t_sent), which takes no stamp in between; None where not streamed or not answered."""
    timing = answer.timing
    if not answer.ok or timing is None or timing.first_s is None or timing.done_s <= timing.sent_s or not _tokens(answer):
        return None
    return _tokens(answer) / timing.latency_s


def in_one_burst(answer: Answer) -> bool:
    """Whether most tokens were there when the client read the first: how long they took nobody has seen, and t_first is late by as much."""
    there = answer.timing.first_tokens if answer.ok and answer.timing else None
    return there is not None and there > _prefilled(answer) and 2 * there > _tokens(answer)


def _prefilled(answer: Answer) -> int:
    return answer.choice.windows[0] if answer.choice.windows else 1


def _tokens(answer: Answer) -> int:
    return answer.usage.completion_tokens if answer.usage else len(answer.choice.token_ids)


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
