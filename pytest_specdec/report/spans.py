"""Spans of a run: when it booted, answered, scored and judged, each with what it came to; without prompts and answers.

A boot is one start of a server. Its arm is what it serves as: the baseline, or a variant, which speculates. A step is what a boot does for
a time, such as answering the requests of one workload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.model.status import STEPS
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.model.status import Progress
    from pytest_specdec.report.run import JudgementResult, Run

Attribute: TypeAlias = str | int | float | bool

_BROKEN = frozenset({PytestOutcome.FAILED, PytestOutcome.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A stretch of time."""

    start_s: float
    """Unix time, in seconds."""
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that a run did."""

    name: str
    period: Period
    attributes: Mapping[str, Attribute]
    """By names under ``specdec.``, and those of OpenTelemetry's conventions for tests and for generative AI."""
    is_failed: bool = False
    children: tuple[Span, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Step:
    """The lines of one step of one boot, as far as they were read."""

    first: Progress
    last: Progress


@dataclass(slots=True, kw_only=True)
class _BootSteps:
    """The steps of one boot."""

    steps: dict[tuple[str, str, str], _Step] = field(default_factory=dict)
    """By what is done, arm and workload."""


def run_span(run: Run, period: Period, progress: Sequence[Progress], judged: Mapping[str, Period]) -> Span:
    """Return the span of a whole run, with boots and judgements inside.

    ``period`` is that of the whole session. ``progress`` has the steps of its captures, in order. ``judged`` has the period of each test by
    its id; a judgement of any other test has no span.
    """
    return Span(
        name="specdec run",
        period=period,
        attributes={
            "specdec.config": run.plan.config,
            "specdec.depth": run.plan.depth.value,
            "specdec.outcome": run.run_class.value,
            "specdec.replayed": run.replayed,
            "gen_ai.request.model": run.plan.model,
        },
        is_failed=run.red,
        children=(*_boot_spans(run, progress), *_judgement_spans(run.judgements, judged)),
    )


def _boot_spans(run: Run, progress: Iterable[Progress]) -> Iterator[Span]:
    """Yield a span for each boot, with its workloads inside.

    ``progress`` are the lines that the capture wrote as it went on; the first and the last line of a step give its period. Lines of no step
    are left out. A boot's readiness is the time from its start to its first answer.
    """
    # A resumed run begins again with the first boot: boots of one number are told apart by the start of their capture.
    boots: dict[tuple[float, int], _BootSteps] = {}
    for line in progress:
        if line.doing in STEPS:
            steps = boots.setdefault((line.began_at_s, line.boot), _BootSteps()).steps
            step = steps.setdefault((line.doing, line.arm, line.workload), _Step(first=line, last=line))
            step.last = line
    # By number alone: of a boot that a resumed run has repeated, the run stores the last times.
    readiness_s = {boot_time.boot: boot_time.readiness_s for boot_time in run.status.served} if run.status else {}
    for (_, index), boot in boots.items():
        periods = [_period(step) for step in boot.steps.values()]
        arm = next(iter(boot.steps.values())).first.arm
        ready = {"specdec.readiness_s": readiness_s[index]} if index in readiness_s else {}
        yield Span(
            name=f"boot {arm}",
            period=Period(start_s=min(period.start_s for period in periods), end_s=max(period.end_s for period in periods)),
            attributes={"specdec.arm": arm, "specdec.boot": index, **ready},
            children=tuple(_workload_span(step, run.plan.model) for step in boot.steps.values() if step.first.workload),
        )


def _workload_span(step: _Step, model: str) -> Span:
    """Return the span of answering or scoring one workload.

    It covers many requests. So it has no ``gen_ai.operation.name``, by which it would be counted as one.
    """
    return Span(
        name=f"{step.last.doing} {step.last.workload}",
        period=_period(step),
        attributes={
            "specdec.arm": step.last.arm,
            "specdec.workload": step.last.workload,
            "specdec.requests": step.last.done,
            "specdec.tokens": step.last.tokens,
            "gen_ai.request.model": model,
        },
    )


def _period(step: _Step) -> Period:
    return Period(start_s=step.first.began_at_s + step.first.at_s, end_s=step.last.began_at_s + step.last.at_s)


def _judgement_spans(judgements: Iterable[JudgementResult], judged: Mapping[str, Period]) -> Iterator[Span]:
    """Yield a span for each judgement of a test with known period.

    ``judged`` has the period of each test by its id. The attribute ``specdec.finding`` is the bug named by a verdict against the engine.
    The verdict's headline is no attribute, since it may quote an answer.
    """
    for judgement in judgements:
        verdict, is_failed = judgement.verdict, judgement.result in _BROKEN
        outcome = verdict.outcome.value if verdict else judgement.result.value
        finding = {"specdec.finding": verdict.names} if verdict and verdict.red and verdict.names else {}
        if judgement.nodeid in judged:
            yield Span(
                name=f"judge {judgement.family}",
                period=judged[judgement.nodeid],
                attributes={
                    "specdec.arm": judgement.pair,
                    "specdec.workload": judgement.workload,
                    "specdec.family": str(judgement.family),
                    "specdec.outcome": outcome,
                    **finding,
                    "gen_ai.evaluation.name": str(judgement.family),
                    "gen_ai.evaluation.score.label": outcome,
                    "test.case.name": judgement.nodeid,
                    "test.case.result.status": "fail" if is_failed else "pass",
                },
                is_failed=is_failed,
            )
