"""A plan: what a run captures, in which boots, and how the false-alarm budget is shared; computed before anything boots.

A boot is one start of a server with its work. The arms are the baseline, the variants, which speculate, and the control, the baseline
booted again. To score is to ask a server for its log-probabilities of an arm's tokens. At smoke depth one boot is both baseline and
control.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, Gate
from pytest_specdec.model.families import Budget, FamilyRow, with_outside
from pytest_specdec.model.golden import GoldenFloor
from pytest_specdec.model.pair import BASELINE, CONTROL, Pair
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family, Workload

__all__ = [
    "MOST_PASSES",
    "ROUNDS",
    "Boot",
    "Judgement",
    "OldEngine",
    "Placement",
    "Plan",
    "Rates",
    "Role",
    "ScoringTask",
    "further_boot",
]

MOST_PASSES = 2
"""Times the planned passes of a timed workload without waves that servers side by side are asked at most, where passes vary too much."""
ROUNDS = 4
"""Times that open counts are asked again; what raises no alarm then is too rare to be one."""


class Placement(StrEnum):
    """How the servers share the machine."""

    IN_TURN = "in-turn"
    """One server at a time."""
    SIDE_BY_SIDE = "side-by-side"
    """Several at once: the baseline and the draft models stay up for the whole run."""
    AUTO = "auto"
    """Side by side where two servers fit; only in a config, a plan has one of the two."""


class Role(StrEnum):
    """What a boot is for."""

    BASELINE = "baseline"
    VARIANT = "variant"
    CONTROL = "control"
    """The second baseline boot: control answers and, in turn, all scoring. At smoke depth it does the first baseline's work too."""
    DRAFT = "draft"
    SCORER = "scorer"
    """A further server of the same weights, maybe of another engine, that scores in the baseline's place."""
    OLD_BASELINE = "old baseline"
    """The baseline of the engine in use, for its speed, and to score the new baseline's tokens: no judge of a pair sees it."""
    OLD_VARIANT = "old variant"
    """A variant of the engine in use, likewise."""

    @property
    def speculates(self) -> bool:
        """Whether its server is one that speculates."""
        return self in {Role.VARIANT, Role.OLD_VARIANT}

    @property
    def is_old(self) -> bool:
        """Whether its server is of the engine in use, in a run of the one that may replace it."""
        return self in {Role.OLD_BASELINE, Role.OLD_VARIANT}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringTask:
    """One arm's answers to one workload, whose tokens are scored."""

    arm: str
    workload: str
    top_tokens: int
    """Top tokens per position: as many as the judges of this arm's pairs need, at most the workload's own number."""


def further_boot(arm: str, number: int) -> str:
    """Return the storage name for answers of an arm's further boot.

    Speed is measured over several boots of an arm; ``number`` counts them from 1. No variant's name has a dot, so the name cannot be
    another arm's.
    """
    return f"{arm}.boot{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One server start and its work, in order."""

    index: int
    """From 0, in the order of the run."""
    role: Role
    arm: str
    """``baseline``, ``control``, ``scorer``, the variant's name, or the draft model; with ``old.`` before it, one of the engine in use."""
    answers: tuple[str, ...] = ()
    """Workloads answered, by name."""
    also_baseline: bool = False
    """At smoke depth, whether this boot answers first as the baseline and again as the control."""
    probe: bool = False
    """Whether the arm's capabilities are probed: what it honours, refuses and ignores."""
    scores: tuple[ScoringTask, ...] = ()
    """What is scored here."""
    timed: bool = False
    """Whether it answers nothing but what is timed, under the config's settings for that."""
    small_cache: bool = False
    """Whether the server has a key-value cache too small for what it is asked."""
    attached: bool = False
    """Whether the server runs already and belongs to somebody else: it is visited, never started or stopped."""
    number: int = 1
    """Which boot of its arm it is, where speed is measured over several: from 2 on it answers nothing but what is timed."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The names that this boot's answers are stored under, in order.

        At smoke depth one boot answers as baseline and control. The answers of a further boot have a name of their own,
        so that they do not replace those of the first boot.
        """
        if self.also_baseline:
            return (BASELINE, CONTROL)
        return (self.arm if self.number == 1 else further_boot(self.arm, self.number),)

    @property
    def under(self) -> str:
        """The model whose distribution this boot's scores give.

        It is a draft model's name, ``old.baseline`` for the engine in use, or ``baseline`` for any server of the
        baseline's weights: both baseline boots and a scorer.
        """
        return self.arm if self.role in {Role.DRAFT, Role.OLD_BASELINE} else BASELINE

    def renewals(self, workloads: Collection[Workload]) -> frozenset[tuple[str, str]]:
        """Return the pairs of arm and workload followed by a fresh server.

        A server that had a workload with events, such as a reload of the weights, or with a soak, minutes of the same traffic, is asked
        nothing else. A fresh server then does what is left of this boot's work, if anything is. ``workloads`` are those of the plan.
        """
        eventful = {workload.name for workload in workloads if workload.events}
        soaked = {workload.name for workload in workloads if workload.soak_s}
        # By arm: the workloads after which a server is asked nothing else. The control is sent no soak.
        renewing = {arm: eventful if arm == CONTROL else eventful | soaked for arm in self.arms}
        answered_pairs = [(arm, name) for arm in self.arms for name in self.answers]  # in the order in which they are answered
        renewing_pairs = frozenset((arm, name) for arm, name in answered_pairs if name in renewing[arm])
        is_probed_last = self.probe and self.role is Role.VARIANT  # so that a probe that kills a variant costs no answers
        if self.scores or is_probed_last:
            return renewing_pairs
        return renewing_pairs.difference(answered_pairs[-1:])  # nothing follows the last answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One judgement to come: a pair, a workload, a family and its share of the budget."""

    pair: str
    workload: str
    family: Family
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates that an estimate rests on."""

    boot_s: float = 60.0
    """Of one server alone, from its start to its first answer."""
    tokens_per_s: float = 100.0
    """Emitted by one stream, if every answer had its request's ``max_tokens``."""
    scored_tokens_per_s: float = 1500.0
    """Scored by prompt log-probabilities, all requests together; as many answers are assumed to be as long as they may."""
    scaling: float = 0.5
    """Part of ideal scaling that streams side by side reach, 0..1."""
    timed_tokens_per_s: float | None = None
    """Emitted by all timed streams together under the config's ``speed:`` settings; None if these slow nothing down."""
    source: str = ""
    """Where they come from; empty in plans that do not say."""
    known: bool = True
    """Whether anything is known of the model and the machine; no minutes are shown otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """One of the processes that are a server together."""

    name: str
    is_asked: bool = False
    """Whether requests go to it."""
    is_counted: bool = False
    """Whether counters are read from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldEngine:
    """The run of the engine in use, which comes before that of the engine under test."""

    build: str
    """What is started, as the config names it: a venv, an executable or an image; empty where only arguments differ."""
    new_build: str
    """The same of the engine under test."""
    model: str
    boots: int
    """Servers of that run."""
    estimate_s: float
    """Seconds that it is expected to take."""


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
    """Seconds that boots, answers, scores and judging are expected to take."""
    again_s: float = 0.0
    """Seconds that :data:`ROUNDS` of asking again may add, at most, 0 under a deadline; no part of the estimate, since few runs need it."""
    placement: Placement = Placement.IN_TURN
    servers: int = 1
    """Servers that may run at once."""
    processes: tuple[PlannedProcess, ...] = ()
    """Those of each server of an arm, in the order of their start; empty where a server is one process."""
    placement_reason: str = ""
    """Why it came to this placement, where the config left it open."""
    route: ScoringRoute = ScoringRoute.PROMPT_LOGPROBS
    """How the engine is expected to be scored; the baseline's capability probe decides."""
    extensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By workload, the workloads that take it further, in the order of their capture; they are judged together."""
    withheld: Mapping[str, str] = field(default_factory=dict)
    """By workload, why it is sent to no arm although a test was selected; its share of the budget stays with it."""
    families: tuple[FamilyRow, ...] = ()
    """Rows of other packages' families, as they were declared when the run was planned."""
    rates: Rates = field(default_factory=Rates)
    """What the estimate rests on."""
    enlarged: Mapping[str, int] = field(default_factory=dict)
    """By workload that sends more because boots take long: the requests that the depth would send otherwise."""
    golden: tuple[GoldenFloor, ...] = ()
    """What the config's golden file asks of each pair, as it was read for this run; empty without one."""
    old: OldEngine | None = None
    """The run of the engine in use that this one is compared with; None where the config names one engine."""

    @property
    def golden_gates(self) -> tuple[Gate, ...]:
        """The golden floors as gates on the accepted length.

        A golden floor is the least accepted length that a file of another project's measurements asks of a variant. The plan has it, so
        that a replay needs no such file. Floors that ask nothing of a variant are left out.
        """
        return tuple(
            Gate(figure=ACCEPTANCE_LENGTH, at_least=floor.at_least, source=floor.source, pair=floor.pair, golden=floor)
            for floor in self.golden
            if floor.at_least is not None
        )

    @property
    def rows(self) -> Mapping[str, FamilyRow]:
        """All families by name, in the order of the report."""
        return with_outside(self.families)

    @property
    def red_by_chance(self) -> Mapping[Budget, float]:
        """Upper bound on the run's false-alarm probability, by budget.

        A false alarm is a correct server that turns the run red. The union bound adds up the shares of every test
        in the run, those of the control and of suspicious verdicts included, since both turn a run red.
        """
        rows, chances = self.rows, dict.fromkeys((Budget.CORRECTNESS, Budget.SPEED), 0.0)
        # Judgements that agree in all three differ in the variant alone.
        variants = Counter((judgement.workload, judgement.family, judgement.alpha) for judgement in self.judgements)
        for (_, family, alpha), count in variants.items():
            if alpha:
                chances[rows[family].budget] += alpha * rows[family].chances(count)
        return {budget: chance for budget, chance in chances.items() if chance}

    @property
    def within_one_boot(self) -> bool:
        """True if the baseline is attached, a server that runs already.

        Its control is then the same boot, asked a second time, so that nothing shows how boots vary.
        """
        return any(boot.attached for boot in self.boots if boot.role in {Role.BASELINE, Role.CONTROL})

    def scored_by(self, workload: str) -> tuple[str, ...]:
        """Return the arms with answers scored by the boot that gave them.

        They are baseline, control or both. A baseline boot that scores a workload scores the answers of every arm to it, its own too:
        scores of its own answers show no noise between two boots. Empty if no baseline boot scores the workload.
        """
        baseline_boots = [boot for boot in self.boots if boot.role in {Role.BASELINE, Role.CONTROL}]
        scoring_boots = [boot for boot in baseline_boots if any(task.workload == workload for task in boot.scores)]
        # Within one boot, a server that runs already answers as baseline and as control.
        arms_by_boot = [(BASELINE, CONTROL) if self.within_one_boot else boot.arms for boot in scoring_boots]
        return tuple(arm for arms in arms_by_boot for arm in arms)

    def workload(self, name: str) -> Workload:
        """Return the workload called ``name``; KeyError without one."""
        return {workload.name: workload for workload in self.workloads}[name]

    def pair(self, name: str) -> Pair:
        """Return the pair with the variant ``name``; KeyError without one."""
        return {pair.name: pair for pair in self.pairs}[name]

    @property
    def speed_boots(self) -> int:
        """Number of boots of each variant to measure speed over."""
        return max((boot.number for boot in self.boots if boot.role is Role.VARIANT), default=1)

    @property
    def own_requests(self) -> Mapping[str, int]:
        """The number of requests from the config's prompts, by workload.

        Workloads without any are left out.
        """
        return {workload.name: workload.own_requests for workload in self.workloads if workload.own_requests}

    @property
    def tokens(self) -> int:
        """Most tokens of one arm's answers, by the requests' token limits."""
        return sum(workload.token_limit for workload in self.workloads)

    @property
    def further_tokens(self) -> int:
        """Most tokens of one arm in timed passes beyond the planned ones.

        Such passes are sent if the planned passes of a workload vary too much, at most until there are ``MOST_PASSES`` times as many. None
        are sent if servers run in turn, at smoke depth, or of workloads with waves (groups of requests sent at once).
        """
        if self.placement is not Placement.SIDE_BY_SIDE or self.depth is Depth.SMOKE:
            return 0
        # A single pass shows no variation.
        repeatable = [workload for workload in self.workloads if workload.timed and workload.passes > 1 and not workload.waves]
        planned_tokens = sum(workload.token_limit for workload in repeatable)  # over all planned passes
        return (MOST_PASSES - 1) * planned_tokens

    @property
    def scored_tokens(self) -> int:
        """Most tokens to score, all arms together.

        By one-token continuations this is also the number of requests, one for each token.
        """
        return sum(self.workload(task.workload).token_limit for boot in self.boots for task in boot.scores)
