"""The promise of a verdict: what was measured, and what a pass so rules out, as a value per kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFigure:
    """One figure of a pair: seconds, or tokens per second."""

    baseline: float
    speculative: float
    speedup: float
    """Above one where the speculative arm is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimits:
    """The 95 % limits of a speedup."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyQuantiles:
    """Three quantiles of one latency of one arm's answers, seconds."""

    what: str
    """The latency, in words: ``time to first token``."""
    arm: str
    p50_s: float
    p90_s: float
    p99_s: float
    count: int
    """Of the sample; the 99th percentile of fewer than 100 is their largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """The speed of a pair on a timed workload."""

    kind: Literal["speedup"] = "speedup"
    response: SpeedFigure
    """Response tokens per second; its ratio is the speedup."""
    ttft: SpeedFigure | None = None
    """Seconds to the first token."""
    content: SpeedFigure | None = None
    """Seconds to the first text after reasoning; None without reasoning."""
    prompt: SpeedFigure | None = None
    """Prompt tokens per second."""
    limits: SpeedLimits | None = None
    """With what boots add; None after a single pass, as below."""
    over_passes: SpeedLimits | None = None
    """Over the passes alone."""
    tokens_per_step: float | None = None
    boot_log_ratio: float | None = None
    """Natural log of the control's speed over the baseline's; None where no other boot was timed."""
    gates: int = 0
    """Gates that it was held against."""
    unfit: str = ""
    """Why the times do not show the servers' speed of decoding; empty where they do."""
    latencies: tuple[LatencyQuantiles, ...] = ()
    """In the order of the answer: first token to whole request; of each the baseline's first."""

    @property
    def ratio(self) -> float:
        """Response tokens per second, speculative over baseline."""
        return self.response.speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedLength:
    """The tokens per verify step of one workload."""

    kind: Literal["accepted length"] = "accepted length"
    tokens_per_step: float
    prompts: int
    """Prompts whose verify steps are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedTraffic:
    """Drafting compared between the kinds of traffic of a run."""

    kind: Literal["drafted traffic"] = "drafted traffic"
    kinds: int = 0
    """Kinds in which a fault would have been found."""
    steps: int = 0
    """Verify steps with a draft, of all traffic."""
    accepted_by_position: tuple[float, ...] = ()
    """The share of those steps in which each draft position was accepted, from the first position on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTokens:
    """Tokens that were checked one by one."""

    kind: Literal["checked tokens"] = "checked tokens"
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Tokens of a sequential test against the baseline's distribution."""

    kind: Literal["sampled tokens"] = "sampled tokens"
    tokens: int
    log10_wealth: float
    """The highest evidence against a correct sampler, a power of ten."""
    curve: tuple[float, ...] = ()
    """The highest evidence in each of some equal parts of the tokens, in order; powers of ten."""
    best_bettor: str = ""
    """The fault whose bettor has won most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDocuments:
    """Structured answers held against their grammars."""

    kind: Literal["checked documents"] = "checked documents"
    documents: int
    invalid: int


Promise: TypeAlias = Speedup | AcceptedLength | DraftedTraffic | CheckedTokens | SampledTokens | CheckedDocuments
