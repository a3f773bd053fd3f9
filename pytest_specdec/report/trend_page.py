"""Trends as one HTML page: opens from disk, runs no script, asks no network, reads in light, dark and print.

A history is the runs of one config at one depth on one machine, a trend those of one variant. A series is one figure of the variant over
the runs, a step a change of its level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report import trend_chart
from pytest_specdec.report.html_page import Cells, page, table, text
from pytest_specdec.report.page_style import STYLE
from pytest_specdec.report.progress import plural
from pytest_specdec.report.run import RunClass
from pytest_specdec.report.trend import day, describe_measurement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.report.trend import DatedRun, History, Series, Trend, Trends


def render(trends: Trends) -> str:
    """Return the page; a function of the trends alone."""
    return page("specdec: trend", STYLE + trend_chart.STYLE, (line for part in _parts(trends) for line in part))


def _parts(trends: Trends) -> Iterator[Iterable[str]]:
    """Yield the lines of each part of the page, in order."""
    yield _head(trends)
    yield _steps(trends)
    yield _legend(trends)
    for history in trends.histories:
        yield _history(history)
    yield _unread(trends)


def _head(trends: Trends) -> Iterator[str]:
    """Yield the page's header: the number of steps and the summary."""
    steps = sum(1 for _ in trends.all_steps())
    worse = sum(step.is_worse for *_, step in trends.all_steps())
    kind = "bad" if worse else "good"
    answer = f"{plural(steps, 'step')}, {worse} for the worse" if steps else "No step"
    yield f'<header><p class="class {kind}">{text(answer)}</p><h1>Trend</h1>'
    yield f'<p class="aside">{text(trends.summary)}</p></header>'


def _steps(trends: Trends) -> Iterator[str]:
    """Yield the table of all steps, newest first, and their false-alarm rate."""
    steps = sorted(trends.all_steps(), key=lambda entry: entry[3].date, reverse=True)  # the step comes last of the four
    rows = [
        [
            f'<span class="whole-line">{day(step.date)}</span>',
            f"{text(trend.title)}<br/>{text(history.title)}" if len(trends.histories) > 1 else text(trend.title),
            text(series.quantity.title),
            f'<span class="{"bad" if step.is_worse else "good"}">{text(step.change)}</span>',
            text(step.cause),
        ]
        for history, trend, series, step in steps
    ]
    if rows:
        yield "<h2>Steps</h2>"
        yield from table([["first run after", "variant", "figure", "change of the typical value", "what changed"], *rows], "Newest first")
    yield f'<p class="aside">{text(trends.false_alarms)}</p>'


def _legend(trends: Trends) -> Iterator[str]:
    """Yield the folded key to the charts' marks and lines.

    Only classes of runs that the charts have are listed, such as clean or finding.
    """
    used = {one for history in trends.histories for trend in history.trends for one in trend.classes}
    marks = "".join(f"<li>{trend_chart.key(one)}{text(one.value)}</li>" for one in RunClass if one in used)
    yield f'<details><summary>How to read the charts</summary><ul class="key">{marks}</ul>'
    yield (
        "<p>A point is a run, a bar through it its 95 % interval, a solid line the median between two steps, a dashed line a step. "
        "A ring is a value that is not compared, since its times do not show the speed of decoding. A triangle at the edge is a value "
        "beyond the scale. Speed and acceptance of a variant with wrong tokens are left out.</p></details>"
    )


def _history(history: History) -> Iterator[str]:
    """Yield the charts and values of one history, trend by trend.

    All charts have the same dates, those of the whole runs.
    """
    runs = history.trends[0].runs  # the first trend is that of whole runs
    yield f"<h2>{text(history.title)}</h2>"
    for trend in history.trends:
        yield f'<section class="trend"><h3>{text(trend.title)}</h3>'
        yield (
            f"<figure>{trend_chart.draw_classes(trend.runs, trend.classes, runs[0].date, runs[-1].date)}"
            f"<figcaption>{text(trend.outcomes)}</figcaption></figure>"
        )
        yield from _figures(trend, runs)
        yield from _values(trend)
        yield "</section>"


def _figures(trend: Trend, runs: Sequence[DatedRun]) -> Iterator[str]:
    """Yield the charts of a trend, those of lesser interest folded.

    Open are series with a step, and one of each measure, which stands for those on other workloads. Series of equal values are listed in a
    sentence instead. ``runs`` give the dates of the time axis.
    """
    drawn = [series for series in trend.series if not series.is_constant or series.unfit]
    open_series = [series for series in drawn if series.stands_for_measure or series.steps]
    others = [series for series in drawn if series not in open_series]
    yield f'<div class="figures">{"".join(_figure(series, runs) for series in open_series)}</div>'
    equal = "; ".join(f"{series.quantity.title} {series.typical}" for series in trend.series if series not in drawn)
    if equal:
        yield f'<p class="aside">{text(f"The same in all runs: {equal}.")}</p>'
    if others:
        yield f"<details><summary>{plural(len(others), 'figure')} of other workloads</summary>"
        yield f'<div class="figures">{"".join(_figure(series, runs) for series in others)}</div></details>'


def _figure(series: Series, runs: Sequence[DatedRun]) -> str:
    """Return one chart with its caption; ``runs`` give the time axis."""
    steps = "; ".join(f"{day(step.date)}: {step.change}" for step in series.steps)
    reason = series.unfit[-1].measurement.unfit if series.unfit else ""
    notes = (f"steps: {steps}" if steps else "", f"not compared: {reason}" if reason else "")
    typical = f", typical {series.typical}" if series.points else ""
    words = "<br/>".join(map(text, filter(None, (f"{series.quantity.title}: last {series.last}{typical}", *notes))))
    return f"<figure>{trend_chart.draw_series(series, runs[0].date, runs[-1].date)}<figcaption>{words}</figcaption></figure>"


def _values(trend: Trend) -> Iterator[str]:
    """Yield a folded table of all values, newest run first.

    It has every mark and point of the charts in words.
    """
    # By id(), since a DatedRun holds mappings and so has no hash.
    columns = [{id(point.dated): point.measurement for point in (*one.points, *one.unfit)} for one in trend.series]
    rows = [
        [
            f'<span class="whole-line">{day(dated.date)}</span>',
            text(run_class.value),
            text(_engine(dated)),
            *(
                text(describe_measurement(one.quantity, column[id(dated)])) if id(dated) in column else "-"
                for one, column in zip(trend.series, columns, strict=True)
            ),
        ]
        for dated, run_class in zip(reversed(trend.runs), reversed(trend.classes), strict=True)
    ]
    header = ["date", "outcome", "engine", *(text(one.quantity.title) for one in trend.series)]
    yield f"<details><summary>All values of {plural(len(trend.runs), 'run')}</summary>"
    yield from table([header, *rows], "Newest first", Cells.NUMBERS)
    yield "</details>"


def _engine(dated: DatedRun) -> str:
    environment = dated.environment
    return f"{environment.engine} {environment.engine_version}" if environment else "unknown"


def _unread(trends: Trends) -> Iterator[str]:
    if trends.unread:
        yield f"<h2>Not read</h2><ul>{''.join(f'<li>{text(line)}</li>' for line in trends.unread)}</ul>"
