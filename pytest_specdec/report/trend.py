"""A trend: the figures of many stored runs over their dates, by machine, config and variant.

A series is one figure over runs, a step a change of its level. An unfit value is shown, not compared. A capture is what a run records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import log
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec
from pytest_specdec.report import run as run_document
from pytest_specdec.report.environment import conditions, list_changes
from pytest_specdec.report.measurement import (
    BASELINE_DECODE,
    DECODE,
    MEASURES,
    SPEEDUP,
    Measurement,
    Quantity,
    StoredFigures,
    compare_levels,
    measure_run,
    measure_variant,
)
from pytest_specdec.report.progress import plural
from pytest_specdec.report.run import RunClass
from pytest_specdec.stats.change_point import LEAST, find_change_points

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.plan_summary import WorkloadSummary
    from pytest_specdec.report.run import Run
    from pytest_specdec.stats.change_point import ChangePoint

ALPHA = 0.01
"""Probability at most with which a series is marked although nothing changed."""
_MOST_DATES = 12
"""Dates of one class that are listed, the last ones."""
_NEAR = 3
"""Runs from a step within which a change may be its cause, if the step's place is that unsure."""
_UNCHANGED = "nothing recorded changed"
_VERDICT_PARTS = ("outcome", "family", "pair", "workload", "headline", "promise", "finding", "check", "transient", "names")
"""What is read of a verdict; evidence, which is most of a run, is not."""
_FIGURES = tuple(field.name for field in fields(StoredFigures))
_LONG_PARTS = ("latencies", "curve", "accepted_by_position")
"""What is not read of a promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRun:
    """What one run says of one variant, or of all of them."""

    run_class: RunClass
    """By the judgements of this variant alone."""
    measured: Mapping[Quantity, Measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedRun:
    """What a trend takes from a stored run."""

    date: datetime
    """UTC; of a run that was judged again, when that was."""
    config: str
    depth: str
    environment: Environment | None
    workloads: tuple[WorkloadSummary, ...]
    variants: Mapping[str, VariantRun]
    """By name, in the order of the plan; that of the whole run under an empty name."""
    identity: object
    """Equal for copies and replays of one capture only, so that a trend takes one of them."""

    @property
    def machine(self) -> str:
        """Name of the machine."""
        return self.environment.machine if self.environment else "an unknown machine"

    def conditions(self, variant: str, workload: str) -> dict[str, str]:
        """Return what a variant's figures on a workload depend on.

        Texts by name: engine, model, machine, packages, the parts of ``variant``, the version of ``workload``. An empty name means all.
        """
        environment = self.environment
        if environment is None:
            return {}
        variants = {name: parts for name, parts in environment.variants.items() if variant in {"", name}}
        return {**conditions(replace(environment, variants=variants)), **self._workload_versions(workload)}

    def _workload_versions(self, workload: str) -> dict[str, str]:
        """Return the version and digest of ``workload``, under a label.

        If the name is empty, it is the number of all workloads and one digest of theirs.
        """
        summaries = self.workloads
        if not workload:
            digest = hashlib.sha256("".join(sorted(one.digest for one in summaries)).encode()).hexdigest()
            return {"workloads": f"{len(summaries)} ({digest[:8]})"}
        return {f"workload {one.name}": f"version {one.version} ({one.digest[:8]})" for one in summaries if one.name == workload}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of a series' level."""

    index: int
    """In the series, of the first run after it."""
    date: datetime
    """Of that run."""
    change: str
    """From the typical value before to that after, in words; of both sides' means where their medians are equal."""
    is_worse: bool
    cause: str
    """What changed between the run before it and the run after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """One measurement of a series."""

    dated: DatedRun
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One quantity over the runs that measured it."""

    quantity: Quantity
    points: tuple[SeriesPoint, ...]
    """Those that are compared, by date."""
    unfit: tuple[SeriesPoint, ...]
    """Those that are only shown."""
    steps: tuple[Step, ...]
    stands_for_measure: bool
    """Whether its chart stands for the measure: that of the workload with the fewest requests does."""

    @property
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """Start, excluded end and median of each stretch between steps, by indices of ``points``."""
        edges = [0, *(step.index for step in self.steps), len(self.points)]
        values = [point.measurement.value for point in self.points]
        return tuple((start, end, median(values[start:end])) for start, end in pairwise(edges) if end > start)

    @property
    def is_constant(self) -> bool:
        """True if all compared values are equal: there is nothing to test or to draw."""
        return len({point.measurement.value for point in self.points}) <= 1

    @property
    def last(self) -> str:
        """The newest value, with its interval where it has one; ``-`` without any."""
        newest = max((*self.points[-1:], *self.unfit[-1:]), key=lambda point: point.dated.date, default=None)
        return describe_measurement(self.quantity, newest.measurement) if newest else "-"

    @property
    def typical(self) -> str:
        """The median since the last step; ``-`` where nothing is compared."""
        return self.quantity.measure.show(self.levels[-1][2]) if self.points else "-"


def describe_measurement(quantity: Quantity, measured: Measurement) -> str:
    """Return one value with its interval: ``1.82x [1.74, 1.90]``."""
    limits = f" [{measured.low:.2f}, {measured.high:.2f}]" if measured.low is not None and measured.high is not None else ""
    return quantity.measure.show(measured.value) + limits + (" (not compared)" if measured.unfit else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The history of one variant, or of whole runs."""

    variant: str
    """Empty for figures of whole runs."""
    runs: tuple[DatedRun, ...]
    """By date."""
    classes: tuple[RunClass, ...]
    """Of each run, by the judgements of this variant alone."""
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        """The variant, or what stands for all of them."""
        return self.variant or "whole runs"

    @property
    def outcomes(self) -> str:
        """The number of runs by class, with dates unless clean."""
        dates: dict[RunClass, list[str]] = {}
        for dated, run_class in zip(self.runs, self.classes, strict=True):
            dates.setdefault(run_class, []).append(day(dated.date))
        by_name = sorted(dates.items(), key=lambda item: item[0].value)
        parts = (f"{len(days)} {one.value}{'' if one is RunClass.CLEAN else _list_dates(days)}" for one, days in by_name)
        return f"{plural(len(self.runs), 'run')}: {', '.join(parts)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The trends of one config at one depth on one machine."""

    machine: str
    config: str
    depth: str
    trends: tuple[Trend, ...]

    @property
    def title(self) -> str:
        """Config, depth and machine."""
        return f"{self.config}, {self.depth} depth, {self.machine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Everything that the pages show."""

    histories: tuple[History, ...]
    runs: int
    first: datetime
    last: datetime
    repeated: int
    """Files that hold a run again, as a copy or judged again: each run counts once, at its first date."""
    unread: tuple[str, ...] = ()
    """A line for each file that was not read."""

    @property
    def tested(self) -> int:
        """Series that are tested for steps."""
        return sum(len(series.points) >= LEAST and not series.is_constant for _, _, series in self.all_series())

    def all_series(self) -> Iterator[tuple[History, Trend, Series]]:
        """Yield every series, with where it belongs."""
        return ((history, trend, series) for history in self.histories for trend in history.trends for series in trend.series)

    def all_steps(self) -> Iterator[tuple[History, Trend, Series, Step]]:
        """Yield every step, with where it belongs."""
        return ((*where, step) for where in self.all_series() for step in where[-1].steps)

    @property
    def summary(self) -> str:
        """The number of runs and their dates, in words."""
        again = f"; {plural(self.repeated, 'file')} left out: one of them again" if self.repeated else ""
        return f"{plural(self.runs, 'run')}, {day(self.first)} to {day(self.last)}{again}"

    @property
    def false_alarms(self) -> str:
        """The false-alarm rate of the steps, in words."""
        if not self.tested:
            return f"No series is tested for steps: it needs {LEAST} runs, and values that differ."
        return (
            f"At one look, a series in which nothing changed is marked with probability {ALPHA:.0%} at most, if its runs are independent: "
            f"on average at most {ALPHA * self.tested:.2g} of the {self.tested} series here. A page made every night is one more look."
        )


def _list_dates(days: list[str]) -> str:
    more = [f"{len(days) - _MOST_DATES} earlier"] if len(days) > _MOST_DATES else []
    return f" ({', '.join([*more, *days[-_MOST_DATES:]])})"


def day(date: datetime) -> str:
    """Return the day of a date."""
    return f"{date:%Y-%m-%d}"


def read(text: str, where: str) -> DatedRun:
    """Return the figures and date of the run in ``text``, a run.json.

    Most of a run is dropped before decoding, to save memory; the few figures that a trend needs of its verdicts are read apart. A part of
    wrong form stays, for the decoder to refuse. Raises RunError at ``where``, for a document that cannot be read or has no date.
    """
    data = run_document.load(text, where)
    listed, plan = data.get("judgements"), data.get("plan")
    judgements = listed if isinstance(listed, list) else []
    reduced = {
        "judgements": list(map(_drop_long_parts, judgements)) if isinstance(listed, list) else listed,
        "plan": {**plan, "judgements": []} if isinstance(plan, Mapping) else plan,
    }
    run = run_document.decode({**data, **reduced, "capabilities": {}, "notes": []}, where)
    return _make_dated_run(run, _date(run, where), tuple(map(_read_figures, judgements)))


def _date(run: Run, where: str) -> datetime:
    """Return the date of a run, UTC. Raises RunError without a date and zone."""
    try:
        date = datetime.fromisoformat(run.made_at)
        if date.tzinfo is not None:
            return date.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter of a year before 1
        pass
    what, remedy = "the run has no date", "leave it out, or judge it again: pytest suites/ --specdec-replay RUN --specdec-run-dir DIR"
    raise RunError(what, where=where, found=f"made_at {run.made_at!r}", expected="date, time and zone in ISO 8601", remedy=remedy)


def _make_dated_run(run: Run, date: datetime, stored: Sequence[StoredFigures]) -> DatedRun:
    """Return all that a trend takes from ``run``; ``stored`` are further figures of its judgements, in order."""
    variants = {"": VariantRun(run_class=run.run_class, measured=measure_run(run))}  # the empty name is that of the whole run
    for variant in run.pairs:
        judged = [(judgement, one) for judgement, one in zip(run.judgements, stored, strict=True) if judgement.pair == variant]
        alone = replace(run, judgements=tuple(judgement for judgement, _ in judged), upgrade=None)
        variants[variant] = VariantRun(run_class=alone.run_class, measured=measure_variant(alone, [one for _, one in judged]))
    status = run.status
    return DatedRun(
        date=date,
        config=run.plan.config,
        depth=run.plan.depth.value,
        environment=run.environment,
        workloads=run.plan.workloads,
        variants=variants,
        # Tells captures apart, not replays of one: these have its seconds and its boots' (``served``). No two captures agree to the ms.
        identity=(status.wall_s, status.served) if status and status.served else (date, run.directory),
    )


def _drop_long_parts(judgement: JSON) -> JSON:
    """Return a stored judgement without its long parts; one of another form as it is."""
    verdict = judgement.get("verdict") if isinstance(judgement, Mapping) else None
    if not isinstance(judgement, Mapping) or not isinstance(verdict, Mapping):
        return judgement
    parts = {name: value for name, value in verdict.items() if name in _VERDICT_PARTS}
    promise = parts.get("promise")
    if isinstance(promise, Mapping):
        parts["promise"] = {name: value for name, value in promise.items() if name not in _LONG_PARTS}
    return {**judgement, "verdict": parts}


def _read_figures(judgement: JSON) -> StoredFigures:
    """Return a stored verdict's figures for trends. Raises RunError for a wrong type."""
    verdict = judgement.get("verdict") if isinstance(judgement, Mapping) else None
    figures = verdict.get("figures") if isinstance(verdict, Mapping) else None
    values = figures if isinstance(figures, Mapping) else {}
    return codec.decode(StoredFigures, {name: values[name] for name in _FIGURES if name in values})


def build(runs: Iterable[DatedRun], unread: Sequence[str] = ()) -> Trends:
    """Return the trends of one or more stored runs.

    Copies and replays of one capture have the same identity, and count once, at the earliest date. Runs are grouped by config, depth and
    machine. ``unread`` has a line for each file that was not read.
    """
    by_date = sorted(runs, key=lambda dated: dated.date)
    distinct: dict[object, DatedRun] = {}
    for dated in by_date:
        distinct.setdefault(dated.identity, dated)
    dates = [dated.date for dated in distinct.values()]
    groups: dict[tuple[str, str, str], list[DatedRun]] = {}
    for dated in distinct.values():
        groups.setdefault((dated.config, dated.depth, dated.machine), []).append(dated)
    histories = tuple(
        History(config=config, depth=depth, machine=machine, trends=tuple(_trends(members)))
        for (config, depth, machine), members in sorted(groups.items())
    )
    return Trends(
        histories=histories,
        runs=len(distinct),
        first=dates[0],
        last=dates[-1],
        repeated=len(by_date) - len(distinct),
        unread=tuple(unread),
    )


def _trends(runs: Sequence[DatedRun]) -> Iterator[Trend]:
    """Yield the trend of whole runs, then one per variant, in the newest plan's order."""
    for variant in dict.fromkeys(name for dated in reversed(runs) for name in dated.variants):
        yield _trend(variant, tuple(dated for dated in runs if variant in dated.variants))


def _trend(variant: str, runs: tuple[DatedRun, ...]) -> Trend:
    """Return the trend of one variant, a series per measured quantity.

    Of each measure the workload with the fewest requests comes first: it leads, so that its chart stands for the measure. Decode speeds
    have series on the speedup's leading workload only, since the speedup is their ratio; without a speedup, on all workloads.
    """
    of_variant = [dated.variants[variant] for dated in runs]
    requests = {one.name: one.requests for dated in runs for one in dated.workloads}
    quantities = sorted(
        dict.fromkeys(quantity for one in of_variant for quantity in one.measured),
        key=lambda q: (MEASURES.index(q.measure), requests.get(q.workload, 0), q.workload),
    )
    leading = {quantity.measure: quantity for quantity in reversed(quantities)}  # the first of each measure, written last, stays
    leading_speedup = leading.get(SPEEDUP)
    series = (
        _series(variant, quantity, runs, stands_for_measure=leading[quantity.measure] == quantity)
        for quantity in quantities
        if quantity.measure not in {DECODE, BASELINE_DECODE} or leading_speedup is None or quantity.workload == leading_speedup.workload
    )
    return Trend(variant=variant, runs=runs, classes=tuple(one.run_class for one in of_variant), series=tuple(series))


def _series(variant: str, quantity: Quantity, runs: Sequence[DatedRun], *, stands_for_measure: bool) -> Series:
    """Return the series of one quantity over ``runs``, with its steps.

    Unfit values are not tested for steps. The page may fold a chart, but not the one of a measure's charts that ``stands_for_measure``.
    """
    measured = ((dated, dated.variants[variant].measured.get(quantity)) for dated in runs)
    points = tuple(SeriesPoint(dated=dated, measurement=one) for dated, one in measured if one is not None)
    compared = tuple(point for point in points if not point.measurement.unfit)
    values = [point.measurement.value for point in compared]
    use_logs = quantity.measure.is_ratio and min(values, default=0.0) > 0.0
    # Changes of a ratio are factors: as logs, a doubling and a halving are equally large.
    changes = find_change_points([log(value) for value in values] if use_logs else values, ALPHA)
    return Series(
        quantity=quantity,
        points=compared,
        unfit=tuple(point for point in points if point.measurement.unfit),
        steps=tuple(_steps(variant, quantity, compared, changes)),
        stands_for_measure=stands_for_measure,
    )


def _steps(variant: str, quantity: Quantity, points: Sequence[SeriesPoint], changes: Sequence[ChangePoint]) -> Iterator[Step]:
    """Yield a step for each change point: both stretches' levels, and the cause."""
    edges = [0, *(change.index for change in changes), len(points)]
    values = [point.measurement.value for point in points]
    for start, change, end in zip(edges[:-2], changes, edges[2:], strict=True):  # a stretch ends at the change, and the next begins there
        level_change = compare_levels(quantity.measure, values[start : change.index], values[change.index : end])
        yield Step(
            index=change.index,
            date=points[change.index].dated.date,
            change=str(level_change),
            is_worse=level_change.is_worse,
            cause=_cause(variant, quantity, points, change),
        )


def _cause(variant: str, quantity: Quantity, points: Sequence[SeriesPoint], change: ChangePoint) -> str:
    """Return the recorded changes of conditions at a step, in words.

    A place is the index of a run, which is compared with the run before it. The step's likeliest place comes first, then the nearest ones:
    at most :data:`_NEAR` runs away and within the step's confidence set. The distance is added. The first place with a change counts.
    """
    nearest = range(max(change.earliest, change.index - _NEAR), min(change.latest, change.index + _NEAR) + 1)
    places = sorted(nearest, key=lambda place: (abs(place - change.index), place))
    for place in places:
        before, after = (points[i].dated.conditions(variant, quantity.workload) for i in (place - 1, place))
        differences = ", ".join(f"{one.what} {one.old} → {one.new}" for one in list_changes(before, after))
        if differences:
            away = place - change.index
            where = f"{plural(abs(away), 'run')} {'earlier' if away < 0 else 'later'}: " if away else ""
            return where + differences
    return _UNCHANGED
