"""Charts of a trend, as inline SVG. Screen readers skip them and read the words and the table beside them.

A series is one figure over many runs, each run a point at its date. A step is a change of its level, a stretch the runs between two steps.
Unfit points are drawn, but not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median, quantiles
from typing import TYPE_CHECKING

from pytest_specdec.report.html_page import text
from pytest_specdec.report.run import RunClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.report.trend import DatedRun, Series, SeriesPoint

_WIDTH, _HEIGHT, _STRIP = 460, 150, 40
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 8, 20
"""Margins: the labels of the scale on the left, the dates below."""
_FAR = 3.0
"""Interquartile ranges from a stretch's quartiles beyond which a point is drawn at the edge."""
_MOST_DATES = 6
_CLASS_MARKS = {
    RunClass.CLEAN: "good",
    RunClass.FINDING: "bad",
    RunClass.SETUP_INVALID: "bad",
    RunClass.INFRASTRUCTURE: "unsure",
    RunClass.UNDECIDED: "unsure",
}

STYLE = """\
.grid { stroke: var(--line); } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.dot { stroke: var(--mark); stroke-width: 4; stroke-linecap: round; fill: none; }
.span { stroke: var(--mark); stroke-width: 1; opacity: .35; fill: none; } .far { fill: var(--mark); }
.level { stroke: var(--ink); stroke-width: 1.5; fill: none; } .aside-dot { fill: none; stroke: var(--soft); }
.step-bad { stroke: var(--bad); stroke-dasharray: 4 3; } .step-good { stroke: var(--good); stroke-dasharray: 4 3; }
.run-good { stroke: var(--good); stroke-width: 2; fill: none; } .run-bad { fill: var(--bad); } .run-unsure { fill: var(--unsure); }
.trend { margin: 1.2rem 0 2rem; } .trend figure { width: 460px; max-width: 100%; } .figures { margin: .8rem 0; }
.key svg { margin-right: .3rem; }
"""
"""Beside that of every page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """A scale of one direction, in pixels."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value is; one beyond the scale is at its end."""
        within = min(max(value, self.low), self.high)
        return self.start + (self.end - self.start) * (within - self.low) / (self.high - self.low)

    def contains(self, value: float) -> bool:
        """Return True for a value on the scale."""
        return self.low <= value <= self.high


def draw_series(series: Series, first: datetime, last: datetime) -> str:
    """Return the chart of a series: points, intervals, levels and steps.

    ``first`` and ``last`` are the dates at the ends of the time axis, the same for all charts of a history.
    """
    time, scale = _time_axis(first, last), _scale(series)
    drawn = [*_dates(time, first, last, _HEIGHT), *_grid(series, scale)]
    drawn += [_path("span", _intervals(series.points, time, scale))]
    drawn += [_path("level", _levels(series, time, scale))]
    # A stroke of no length, with round ends, is a dot.
    drawn += [_path("dot", (f"M{_x(time, one)} {_y(scale, one)}h0" for one in series.points if scale.contains(one.measurement.value)))]
    drawn += [_outlier_mark(time, scale, point) for point in (*series.points, *series.unfit) if not scale.contains(point.measurement.value)]
    drawn += [
        f'<circle class="aside-dot" cx="{_x(time, one)}" cy="{_y(scale, one)}" r="2.5"/>'
        for one in series.unfit
        if scale.contains(one.measurement.value)
    ]
    for step in series.steps:
        before, after = (time.place(series.points[index].dated.date.timestamp()) for index in (step.index - 1, step.index))
        x = f"{(before + after) / 2.0:.1f}"
        kind = "bad" if step.is_worse else "good"
        drawn.append(f'<line class="step-{kind}" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    return _svg(_HEIGHT, drawn)


def draw_classes(runs: Sequence[DatedRun], classes: Sequence[RunClass], first: datetime, last: datetime) -> str:
    """Return the strip of marks above a trend, one per run.

    ``classes`` has the class of each run, such as clean or finding. A clean run is a stroke; any other is a shape, with its date and class
    as a title. The dates at the ends of the axis are ``first`` and ``last``, as in the charts below.
    """
    time = _time_axis(first, last)
    drawn = [*_dates(time, first, last, _STRIP)]
    drawn += [
        _path(
            "run-good",
            (f"M{time.place(dated.date.timestamp()):.1f} 7v8" for dated, one in zip(runs, classes, strict=True) if one is RunClass.CLEAN),
        )
    ]
    for dated, run_class in zip(runs, classes, strict=True):
        if run_class is not RunClass.CLEAN:
            title = f"<title>{text(f'{dated.date:%Y-%m-%d}: {run_class.value}')}</title>"
            drawn.append(mark(run_class, time.place(dated.date.timestamp()), title))
    return _svg(_STRIP, drawn)


def mark(run_class: RunClass, x: float, title: str = "") -> str:
    """Return the SVG mark of a class at ``x`` pixels.

    Each class has a shape of its own, for readers who cannot tell the colours. ``title`` is a whole, escaped ``<title>`` element.
    """
    kind = _CLASS_MARKS[run_class]
    shapes = {
        RunClass.CLEAN: f"M{x:.1f} 7v8",
        RunClass.FINDING: f"M{x - 5:.1f} 16h10l-5 -11z",
        RunClass.SETUP_INVALID: f"M{x - 4:.1f} 7h8v8h-8z",
        RunClass.INFRASTRUCTURE: f"M{x - 5:.1f} 6h10l-5 11z",
        RunClass.UNDECIDED: f"M{x - 5:.1f} 11l5 -5l5 5l-5 5z",
    }
    return f'<path class="run-{kind}" d="{shapes[run_class]}">{title}</path>'


def key(run_class: RunClass) -> str:
    """Return the mark of a class alone, for a list of the marks."""
    return f'<svg viewBox="0 3 16 16" width="16" height="16" aria-hidden="true">{mark(run_class, 8.0)}</svg>'


def _time_axis(first: datetime, last: datetime) -> _Axis:
    """Return the axis of dates, with a margin at both ends.

    The margin is 2 % of the time, or of an hour if that is more, so that the axis has a width also for one date.
    """
    low, high = first.timestamp(), last.timestamp()
    padding = max(high - low, 3600.0) * 0.02
    return _Axis(low=low - padding, high=high + padding, start=_LEFT, end=_WIDTH - _RIGHT)


def _scale(series: Series) -> _Axis:
    """Return the axis of values, wide enough for all but outliers.

    It covers the usual values of each stretch between steps, and below and above them half an interval: the median distance from a value to
    its lower or upper limit. A margin of 6 % is added, or one of some width if all are equal. Values that are not compared (unfit) count
    only if there are no others; the series has a value of either kind.
    """
    stretches = [[point.measurement for point in series.points[start:end]] for start, end, _ in series.levels]
    if not stretches:
        stretches = [[point.measurement for point in series.unfit]]
    lows, highs = zip(*(_usual_range([one.value for one in stretch]) for stretch in stretches), strict=True)
    measurements = [one for stretch in stretches for one in stretch]
    below = median([one.value - one.low for one in measurements if one.low is not None and one.high is not None] or [0.0])
    above = median([one.high - one.value for one in measurements if one.low is not None and one.high is not None] or [0.0])
    low, high = min(lows) - below, max(highs) + above
    padding = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return _Axis(low=low - padding, high=high + padding, start=_HEIGHT - _BOTTOM, end=_TOP)  # low values are below


def _usual_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value, outliers left out.

    An outlier is more than :data:`_FAR` interquartile ranges beyond the quartiles. Fewer than four values have none.
    """
    least, greatest = min(values), max(values)
    if len(values) < 4:  # noqa: PLR2004 - three values have no quartiles
        return least, greatest
    lower, _, upper = quantiles(values, n=4)
    reach = _FAR * (upper - lower)
    usual = [value for value in values if lower - reach <= value <= upper + reach]
    return min(usual), max(usual)


def _grid(series: Series, scale: _Axis) -> Iterator[str]:
    """Yield three horizontal lines, labelled with their values."""
    for part in (0.1, 0.5, 0.9):
        value = scale.low + part * (scale.high - scale.low)
        y = scale.place(value)
        label = text(series.quantity.measure.show_short(value))
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>'


def _dates(time: _Axis, first: datetime, last: datetime, height: int) -> Iterator[str]:
    """Yield the time axis below a chart, with labelled dates.

    They are firsts of months, or the first and the last day if there are fewer than two such dates.
    """
    bottom = height - _BOTTOM
    yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for date, label in _ticks(first, last):
        x = time.place(date.timestamp())
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        anchor = "end" if x > _WIDTH - 40 else "middle"
        yield f'<text x="{min(x, _WIDTH - 1):.1f}" y="{height - 5}" text-anchor="{anchor}">{label}</text>'


def _ticks(first: datetime, last: datetime) -> list[tuple[datetime, str]]:
    """Return the dates to label, at most six months, with their labels.

    With fewer than two firsts of months between ``first`` and ``last``, these two days are labelled, or the one if they are the same.
    """
    months = [
        datetime(year, month, 1, tzinfo=UTC)
        for year in range(first.year, last.year + 1)
        for month in range(1, 13)
        if first <= datetime(year, month, 1, tzinfo=UTC) <= last
    ]
    if len(months) < 2:  # noqa: PLR2004 - one tick shows no scale
        days = [first] if first.date() == last.date() else [first, last]
        return [(date, f"{date:%Y-%m-%d}") for date in days]
    every = -(-len(months) // _MOST_DATES)  # rounded up
    return [(date, f"{date:%Y-%m}") for date in months[::every]]


def _intervals(points: Sequence[SeriesPoint], time: _Axis, scale: _Axis) -> Iterator[str]:
    """Yield SVG path parts: a vertical line for each point's 95 % interval, if any."""
    for point in points:
        low, high = point.measurement.low, point.measurement.high
        if low is not None and high is not None:
            yield f"M{_x(time, point)} {scale.place(low):.1f}V{scale.place(high):.1f}"


def _levels(series: Series, time: _Axis, scale: _Axis) -> Iterator[str]:
    """Yield SVG path parts: a horizontal line for the median of each stretch."""
    for start, end, level in series.levels:
        left, right = (_x(time, series.points[index]) for index in (start, end - 1))
        yield f"M{left} {scale.place(level):.1f}H{right}"


def _outlier_mark(time: _Axis, scale: _Axis, point: SeriesPoint) -> str:
    """Return a triangle at the chart's edge, with an outlier's value as title."""
    x, is_high = time.place(point.dated.date.timestamp()), point.measurement.value > scale.high
    y, tip = (_TOP + 7, -7) if is_high else (_HEIGHT - _BOTTOM - 7, 7)
    value = text(f"{point.dated.date:%Y-%m-%d}: {point.measurement.value:.4g}")
    return f'<path class="far" d="M{x - 4:.1f} {y}h8l-4 {tip}z"><title>{value}</title></path>'


def _x(time: _Axis, point: SeriesPoint) -> str:
    return f"{time.place(point.dated.date.timestamp()):.1f}"


def _y(scale: _Axis, point: SeriesPoint) -> str:
    return f"{scale.place(point.measurement.value):.1f}"


def _path(kind: str, parts: Iterable[str]) -> str:
    """Return one path of many parts, so that a large chart stays small; empty without parts."""
    drawn = "".join(parts)
    return f'<path class="{kind}" d="{drawn}"/>' if drawn else ""


def _svg(height: int, drawn: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" aria-hidden="true">{"".join(drawn)}</svg>'
