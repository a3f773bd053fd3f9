"""First tokens of prompts asked again: how much sooner they come than when the prompt was new, in the variant as in the baseline.

A prompt is new in the warm-up pass of a timed workload and asked again in every pass after it. The ratio is reported and not gated: it
has one time of a new prompt per boot, and a few prompts that are long enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge.speed.timing import LEAST_PASSES, SHOWN_CONFIDENCE
from pytest_specdec.stats.answer_timing import ttft_s
from pytest_specdec.stats.speedup import within_one_boot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.stats.speedup import Estimate

__all__ = ["FirstTokens", "first_tokens"]

_LEAST_TOKENS: Final = 64
"""Tokens of a prompt from which on reading it takes longer than a step."""
_MOSTLY: Final = 0.5
"""Share of a prompt's tokens that the server must report as cached where it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Times to the first token of prompts asked again, over those of the same prompts when they were new."""

    baseline: float
    """Geometric mean over the prompts, and over the baseline's boots."""
    speculative: float
    prompts: int
    estimate: Estimate | None
    """Of the variant's ratio over the baseline's, prompt by prompt; None with one prompt."""

    @property
    def ratio(self) -> float:
        """The variant's ratio over the baseline's: 1 if speculation leaves the prefix cache all of its use."""
        return self.speculative / self.baseline

    def __str__(self) -> str:
        interval = self.estimate.interval(SHOWN_CONFIDENCE) if self.estimate else None
        limits = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
        return (
            f"prompts asked again: the first token takes {self.speculative:.1%} of the time that it took when new, the baseline's "
            f"{self.baseline:.1%}: {self.ratio:.2f}x{limits} over {self.prompts} prompts of {_LEAST_TOKENS} tokens or more (not gated)"
        )


def first_tokens(captured: Captured) -> FirstTokens | None:
    """Return how soon first tokens of cached prompts come, in both arms.

    Only prompts of 64 tokens or more count, and only those that every arm reports as mostly cached when asked again. Returns None without
    any, and for requests in flight together, which wait for each other.
    """
    if captured.workload.concurrency != 1:
        return None
    variant, *boots = map(_log_ratios, (captured.speculative, *captured.baseline_boots))
    shared = [request_id for request_id in variant if all(request_id in boot for boot in boots)]
    if not shared:
        return None
    baseline_log_ratios = {request_id: math.fsum(boot[request_id] for boot in boots) / len(boots) for request_id in shared}
    differences = [variant[request_id] - baseline_log_ratios[request_id] for request_id in shared]
    return FirstTokens(
        baseline=math.exp(math.fsum(baseline_log_ratios.values()) / len(shared)),
        speculative=math.exp(math.fsum(variant[request_id] for request_id in shared) / len(shared)),
        prompts=len(shared),
        estimate=within_one_boot(differences) if len(shared) >= LEAST_PASSES else None,
    )


def _log_ratios(arm: Transcript) -> Mapping[str, float]:
    """Return each request's log-ratio of times to the first token, by its id.

    It is the log of the median time, over the passes in which the prompt was mostly cached, over the time when the prompt was new. Requests
    that were never mostly cached, or whose new prompt was not timed, are left out.
    """
    again: dict[str, list[float]] = {}
    for answer in arm.answers:
        seconds = ttft_s(answer)
        if seconds is not None and answer.request_id in arm.new_ttft_s and _is_cached(answer):
            again.setdefault(answer.request_id, []).append(seconds)
    return {request_id: math.log(median(times) / arm.new_ttft_s[request_id]) for request_id, times in again.items()}


def _is_cached(answer: Answer) -> bool:
    """Return True if the server reports a prompt of 64 tokens or more as mostly cached."""
    usage = answer.usage
    if usage is None or usage.prompt_tokens < _LEAST_TOKENS:
        return False
    return (usage.cached_tokens or 0) >= _MOSTLY * usage.prompt_tokens
