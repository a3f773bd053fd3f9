"""An estimate: how long each step of a plan may take, reported before it runs and corrected while it does.

A boot is one server's start and its work. Its steps are the start, the probe of what it supports, each workload's answers, each scoring
task (log-probabilities of given answers) and the stop. Rates are the seconds of a start and the tokens per second of answers and of scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import CONTROL
from pytest_specdec.model.plan import Role
from pytest_specdec.model.status import StepKind
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.prompts.context import long_prompt, scored_prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.model.plan import Boot, Plan, Rates
    from pytest_specdec.model.workload import Workload

_MEASURED = "from the capture itself"
"""Source of the rates that a capture measured."""

_MEASURED_STEPS = frozenset({StepKind.BOOTING, StepKind.ANSWERING, StepKind.SCORING})
"""Steps with a rate of their own."""

_PROBE_TOKENS = 100
"""Tokens that one capability probe takes, about."""

_CONTINUED = 8.0
"""Times that a token costs to score by a continuation of its own: 5 with the reference engine, 11 with vLLM on two busy cores."""

_MOSTLY = 0.5
"""Fraction of a plan to capture before its times can predict the next one."""

_CROWDED = 0.2
"""Fraction of a boot by which each further concurrent one delays it: three at once took 50 s, one alone 35 s."""

_VISIT_S = 0.5
"""Seconds to find an attached server ready."""

_STOP_S = 0.4
"""Seconds to stop a server: 0.44 a boot of the reference engine on two busy cores, 0.26 of vLLM on the CPU."""

_JUDGED_S = 0.15
"""Seconds of judging per judgement: 54 judgements at smoke depth took 8 s of a processor, reports included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedStep:
    """One step of a boot, with its estimated seconds."""

    boot: int
    kind: StepKind
    arm: str
    workload: str = ""
    seconds: float
    timed: bool = False
    """Whether the answers are timed."""

    @property
    def added_s(self) -> float:
        """Seconds that add up over concurrent boots; 0 for a step that overlaps others.

        Answers and probes of all boots share one machine. Servers start at the same time, and score while others answer.
        """
        return self.seconds if self.kind in {StepKind.ANSWERING, StepKind.PROBING} else 0.0


def steps(
    boots: Sequence[Boot],
    workloads: Sequence[Workload],
    rates: Rates,
    *,
    route: ScoringRoute = ScoringRoute.PROMPT_LOGPROBS,
) -> tuple[EstimatedStep, ...]:
    """Return the estimated steps of all ``boots``, in their order.

    ``route`` is the way in which scores are obtained: by one-token continuations a token takes ``_CONTINUED`` times as long to score.
    """
    workloads_by_name = {workload.name: workload for workload in workloads}
    if route is ScoringRoute.CONTINUATIONS:
        rates = replace(rates, scored_tokens_per_s=rates.scored_tokens_per_s / _CONTINUED)
    # Every arm answers the same workloads: each is added up once.
    answering_s = cache(lambda name: _answering_s(workloads_by_name[name], rates))
    scoring_s = cache(lambda name: _scoring_s(workloads_by_name[name], rates))
    return tuple(step for boot in boots for step in _boot_steps(boot, workloads, rates, answering_s, scoring_s))


def total(planned: Sequence[EstimatedStep], servers: int) -> float:
    """Return the seconds of all steps, at most ``servers`` running together."""
    return seconds(planned) if servers == 1 else seconds_side_by_side(planned, servers)


def judging_s(judgements: int) -> float:
    """Return the seconds of judging after the capture."""
    return judgements * _JUDGED_S


def seconds(planned: Sequence[EstimatedStep]) -> float:
    """Return the sum of the seconds of all steps."""
    return sum(step.seconds for step in planned)


def seconds_side_by_side(planned: Sequence[EstimatedStep], servers: int) -> float:
    """Return the seconds of all steps with ``servers`` booting at once.

    They are fewer than the sum, since boots overlap, and scoring runs while other arms answer.
    """
    boots = [step.seconds for step in planned if step.kind is StepKind.BOOTING]
    waves = [boots[start : start + servers] for start in range(0, len(boots), servers)]
    # A wave takes as long as its slowest boot, and each further boot in it adds a fifth to that.
    booting_s = sum(max(wave) * (1 + _CROWDED * (len(wave) - 1)) for wave in waves)
    return booting_s + sum(step.added_s for step in planned)  # of answers and probes, 0 for other steps


def measured_rates(plan: Plan, done_s: Mapping[EstimatedStep, float], readiness_s: Mapping[int, float], wall_s: float) -> Rates | None:
    """Return the rates measured in a capture of ``plan``.

    Each is the planned rate, times the estimated seconds of what was done by it over the seconds taken. Returns None if less than half of
    the plan was done, by the estimate. ``done_s`` are the seconds that completed steps took, ``readiness_s`` those of starts by the boot's
    index, ``wall_s`` those of the whole capture.
    """
    rates = plan.rates
    planned = [step for step in steps(plan.boots, plan.workloads, rates, route=plan.route) if step.kind in _MEASURED_STEPS]
    done_steps = [step for step in planned if step in done_s or (step.kind is StepKind.BOOTING and step.boot in readiness_s)]
    if not readiness_s or seconds(done_steps) < _MOSTLY * seconds(planned):
        return None  # too little to predict the next plan
    if plan.servers > 1:  # steps overlap then, so that the seconds of each show no rate
        return _rates_side_by_side(plan, done_steps, median(readiness_s.values()), wall_s)
    scored = [step for step in done_s if step.kind is StepKind.SCORING]
    answered = [step for step in done_s if step.kind is StepKind.ANSWERING]
    # Timed answers have a rate of their own if the config has settings for speed that slow them down.
    at_timed_rate = [step for step in answered if step.timed and rates.timed_tokens_per_s is not None]
    at_usual_rate = [step for step in answered if step not in at_timed_rate]
    boot_times_s = [readiness_s[boot.index] for boot in plan.boots if boot.index in readiness_s and not boot.attached]
    return replace(
        rates,
        source=_MEASURED,
        known=True,
        boot_s=round(median(boot_times_s), 1) if boot_times_s else rates.boot_s,
        tokens_per_s=_correct_rate(rates.tokens_per_s, at_usual_rate, done_s),
        timed_tokens_per_s=rates.timed_tokens_per_s and _correct_rate(rates.timed_tokens_per_s, at_timed_rate, done_s),
        scored_tokens_per_s=_correct_rate(rates.scored_tokens_per_s, scored, done_s),
    )


def _correct_rate(rate: float, done: Sequence[EstimatedStep], done_s: Mapping[EstimatedStep, float]) -> float:
    """Return ``rate``, in tokens per second, corrected by the time taken.

    ``done`` are the steps estimated with that rate, ``done_s`` the seconds that they took. With the corrected rate their estimate would
    have been right. Returns ``rate`` unchanged if there are none.
    """
    expected_s, took_s = seconds(done), sum(done_s[step] for step in done)
    return round(rate * expected_s / took_s, 1) if expected_s and took_s else rate


def _rates_side_by_side(plan: Plan, done: Sequence[EstimatedStep], readiness_s: float, wall_s: float) -> Rates:
    """Return the rates measured in a capture with concurrent servers.

    Steps overlap, so that their times do not add up to ``wall_s``, the time of the capture. What the starts leave of it counts as the time
    of the answers. The rate of scoring stays as planned: scores are taken while others answer. ``readiness_s`` is the median time of a
    start, slowed down by those beside it; ``done`` are the steps done.
    """
    rates = plan.rates
    delay = 1 + _CROWDED * (min(plan.servers, len(plan.boots)) - 1)  # each concurrent start takes so many times as long
    boot_s = readiness_s / delay  # of one server alone
    booting_s = seconds_side_by_side([replace(step, seconds=boot_s) for step in done if step.kind is StepKind.BOOTING], plan.servers)
    estimated_s = sum(step.seconds for step in done if step.kind is StepKind.ANSWERING)
    taken_s = max(wall_s - booting_s, 1.0)
    factor = estimated_s / taken_s  # how much faster answers came than planned
    return replace(
        rates,
        source=_MEASURED,
        known=True,
        boot_s=round(boot_s, 1),
        tokens_per_s=_scale(rates.tokens_per_s, factor),
        timed_tokens_per_s=rates.timed_tokens_per_s and _scale(rates.timed_tokens_per_s, factor),
    )


def _scale(rate: float, factor: float) -> float:
    """Return the rate times ``factor``, or as it is if that rounds to 0."""
    return round(factor * rate, 1) or rate


def _boot_steps(
    boot: Boot,
    workloads: Sequence[Workload],
    rates: Rates,
    answering_s: Callable[[str], float],
    scoring_s: Callable[[str], float],
) -> Iterator[EstimatedStep]:
    """Yield the estimated steps of one boot, in their order.

    ``answering_s`` and ``scoring_s`` give the seconds of a workload by its name. A variant is probed after its answers, so that a probe
    that kills it costs no answers; any other arm is probed before its answers. A workload's events or soak end with a fresh start, if
    anything follows. A soak takes the seconds that are stated, and the control is sent none.
    """
    renewals, by_name = boot.renewals(workloads), {workload.name: workload for workload in workloads}
    yield EstimatedStep(boot=boot.index, kind=StepKind.BOOTING, arm=boot.arm, seconds=_VISIT_S if boot.attached else rates.boot_s)
    probe = EstimatedStep(boot=boot.index, kind=StepKind.PROBING, arm=boot.arms[0], seconds=_PROBE_TOKENS / rates.tokens_per_s)
    if boot.probe and boot.role is not Role.VARIANT:
        yield probe
    for arm in boot.arms:
        for name in boot.answers:
            renewal_s = _STOP_S + rates.boot_s if (arm, name) in renewals else 0.0
            step_s = answering_s(name) + renewal_s + (0.0 if arm == CONTROL else by_name[name].soak_s)
            timed = by_name[name].timed
            yield EstimatedStep(boot=boot.index, kind=StepKind.ANSWERING, arm=arm, workload=name, seconds=step_s, timed=timed)
    for task in boot.scores:
        yield EstimatedStep(boot=boot.index, kind=StepKind.SCORING, arm=task.arm, workload=task.workload, seconds=scoring_s(task.workload))
    if boot.probe and boot.role is Role.VARIANT:
        yield probe
    if not boot.attached:
        yield EstimatedStep(boot=boot.index, kind=StepKind.STOPPING, arm=boot.arm, seconds=_STOP_S)


def _answering_s(workload: Workload, rates: Rates) -> float:
    """Return the estimated seconds of all passes of a workload.

    Every answer is taken to be as long as its token limit. The time for short prompts is part of the rates.
    """
    limits = _token_limits(workload)
    passes = workload.passes + (1 if workload.timed else 0)  # timed workloads warm up first
    if workload.timed and rates.timed_tokens_per_s is not None:
        answering_s = sum(limits) / rates.timed_tokens_per_s  # the rate of all concurrent answers together
    else:
        # N concurrent answers are faster than one by ``scaling`` * N only, and no pass ends before its longest answer does.
        speed_up = max(1.0, min(workload.concurrency, len(workload.requests)) * rates.scaling)
        answering_s = max(sum(limits) / speed_up, max(limits, default=0)) / rates.tokens_per_s
    long_prompt_tokens = sum(map(long_prompt, workload.requests))
    return passes * (answering_s + long_prompt_tokens / rates.scored_tokens_per_s)  # scoring reads prompts at that rate too


def _scoring_s(workload: Workload, rates: Rates) -> float:
    """Return the estimated seconds of scoring one arm's answers."""
    return (workload.token_limit + workload.passes * scored_prompt_tokens(workload)) / rates.scored_tokens_per_s


def _token_limits(workload: Workload) -> list[int]:
    return [request.token_limit or 0 for request in workload.requests]
