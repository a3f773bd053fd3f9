"""A plan: what a run captures, in which boots, and how the false-alarm budget is shared; computed before anything boots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_specdec.model.pair import BASELINE, CONTROL, Pair
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family, Workload

__all__ = [
    "CORRECTNESS_ALPHA",
    "SHARES",
    "SPEED_ALPHA",
    "Boot",
    "Judgement",
    "Placement",
    "Plan",
    "Role",
    "ScoringTask",
    "Share",
    "alpha_of",
]

CORRECTNESS_ALPHA = 1e-3
"""False correctness alarms per run that the gate may raise."""
SPEED_ALPHA = 5e-3
"""The same for speed and acceptance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A family's part of its budget, and the workloads over which it is split evenly."""

    part: float
    workloads: int
    """As many as the suites send at standard and deep depth, all folders together; 1 where they send none."""
    smoke: int = 1
    """The same at smoke depth."""

    def over(self, depth: Depth) -> int:
        """Return the workloads at ``depth``."""
        return self.smoke if depth is Depth.SMOKE else self.workloads


SHARES: Mapping[Family, Share] = {
    Family.SAMPLING: Share(part=0.70, workloads=4, smoke=2),
    Family.STRUCTURED: Share(part=0.07, workloads=2, smoke=2),
    Family.GREEDY: Share(part=0.06, workloads=1),
    Family.LOGPROBS: Share(part=0.06, workloads=1),
    Family.PARAMETERS: Share(part=0.06, workloads=1),
    Family.SEEDS: Share(part=0.01, workloads=1),
    Family.CONCURRENCY: Share(part=0.01, workloads=1),
    Family.STATE: Share(part=0.01, workloads=1),
    Family.PRESSURE: Share(part=0.01, workloads=1),
    Family.TOOLS: Share(part=0.01, workloads=1),
    Family.SPEED: Share(part=1.00, workloads=2, smoke=2),
}
"""Written before any run: the correctness parts add up to one, so that selecting tests never raises a share.

Families that are missing judge deterministically and take none. Speed has a budget of its own.
"""


def alpha_of(family: Family, variants: int, depth: Depth = Depth.STANDARD, workloads: int = 0) -> float:
    """Return the share of one workload of ``family`` under a config with ``variants`` variants; 0 for deterministic judges.

    ``workloads`` of the family were collected before any was deselected. The share is split over so many, or over those written where
    these are more: then running a part of the suites raises no share, and own suites of any size never exceed the budget.
    """
    share = SHARES.get(family)
    if share is None:
        return 0.0
    budget = SPEED_ALPHA if family is Family.SPEED else CORRECTNESS_ALPHA
    return budget * share.part / max(share.over(depth), workloads) / variants


class Placement(StrEnum):
    """How the servers share the machine."""

    IN_TURN = "in-turn"
    """One server at a time."""
    SIDE_BY_SIDE = "side-by-side"
    """Several at once: the baseline and the draft models stay up for the whole run."""
    AUTO = "auto"
    """Side by side where two servers fit; only a config says so, a plan says which it came to."""


class Role(StrEnum):
    """What a boot is for."""

    BASELINE = "baseline"
    VARIANT = "variant"
    CONTROL = "control"
    """The second baseline boot: control answers and, in turn, all scoring. At smoke depth it does the first baseline's work too."""
    DRAFT = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringTask:
    """One arm's answers to one workload, whose tokens are scored."""

    arm: str
    workload: str
    top_tokens: int
    """Most probable tokens asked for per position: what the judges of this arm's pairs need, at most the workload's own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One server start and what it is asked, in order."""

    index: int
    """From 0, in the order of the run."""
    role: Role
    arm: str
    """``baseline``, ``control``, the variant's name, or the draft model."""
    answers: tuple[str, ...] = ()
    """Workloads answered, by name."""
    also_baseline: bool = False
    """At smoke depth, whether this boot answers first as the baseline and again as the control."""
    probe: bool = False
    """Whether the arm's capabilities are probed: what it honours, refuses and ignores."""
    scores: tuple[ScoringTask, ...] = ()
    """What is scored here."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that it answers as, in order."""
        return (BASELINE, CONTROL) if self.also_baseline else (self.arm,)

    @property
    def under(self) -> str:
        """Whose distribution its scores are: both baseline boots stand for the baseline."""
        return self.arm if self.role is Role.DRAFT else BASELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One judgement to come: a pair, a workload, a family and its share of the budget."""

    pair: str
    workload: str
    family: Family
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a run will do."""

    config: str
    engine: str
    model: str
    depth: Depth
    pairs: tuple[Pair, ...]
    workloads: tuple[Workload, ...]
    """As this depth sends them."""
    judgements: tuple[Judgement, ...]
    boots: tuple[Boot, ...]
    estimate_s: float
    """Seconds that boots and answers are expected to take."""
    placement: Placement = Placement.IN_TURN
    servers: int = 1
    """Servers that may run at once."""
    placement_reason: str = ""
    """Why it came to this placement, where the config left it open."""
    route: ScoringRoute = ScoringRoute.PROMPT_LOGPROBS
    """How the engine is expected to be scored; the baseline's capability probe decides."""
    extensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By workload, the workloads that take it further, in the order of their capture; they are judged together."""

    def workload(self, name: str) -> Workload:
        """Return the workload called ``name``; KeyError without one."""
        return {workload.name: workload for workload in self.workloads}[name]

    def pair(self, name: str) -> Pair:
        """Return the pair whose variant is called ``name``; KeyError without one."""
        return {pair.name: pair for pair in self.pairs}[name]

    @property
    def tokens(self) -> int:
        """The most tokens that one arm may answer, from the requests' ``max_tokens``."""
        return sum(_tokens_asked(workload) for workload in self.workloads)

    @property
    def scored_tokens(self) -> int:
        """The most tokens that are scored, all arms together: as many requests where each is a continuation."""
        return sum(_tokens_asked(self.workload(asked.workload)) for boot in self.boots for asked in boot.scores)


def _tokens_asked(workload: Workload) -> int:
    return workload.passes * sum(_as_int(request.body.get("max_tokens")) for request in workload.requests)


def _as_int(value: object) -> int:
    return value if isinstance(value, int) else 0
