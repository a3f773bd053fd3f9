"""Trends as Markdown: the steps, changes of a figure's level over runs, then each variant's figures, last and typical."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import escape
from pytest_specdec.report.progress import plural
from pytest_specdec.report.trend import day

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.report.trend import Trend, Trends


def render(trends: Trends) -> str:
    """Return the page; a function of the trends alone."""
    return "\n".join(_lines(trends)) + "\n"


def _lines(trends: Trends) -> Iterator[str]:
    """Yield the lines of the page: summary, steps, trends, unread files."""
    yield "# Trend"
    yield ""
    yield escape(trends.summary + ".")
    yield ""
    yield from _steps(trends)
    for history in trends.histories:
        yield f"## {escape(history.title)}"
        yield ""
        for trend in history.trends:
            yield from _trend(trend)
    if trends.unread:
        yield "## Not read"
        yield ""
        yield from (f"- {escape(line)}" for line in trends.unread)
        yield ""


def _steps(trends: Trends) -> Iterator[str]:
    """Yield a list of all steps, the newest first.

    Their number and false-alarm rate come before it. The history (config, depth and machine) is named if there are several.
    """
    steps = sorted(trends.all_steps(), key=lambda entry: entry[3].date, reverse=True)  # the step comes last of the four
    yield f"**{plural(len(steps), 'step') if steps else 'No step'}.** {escape(trends.false_alarms)}"
    yield ""
    several = len(trends.histories) > 1
    for history, trend, series, step in steps:
        where = f"{trend.title}, {series.quantity.title}" + (f" ({history.title})" if several else "")
        yield f"- **{day(step.date)}** {escape(f'{where}: {step.change}: {step.cause}')}"
    if steps:
        yield ""


def _trend(trend: Trend) -> Iterator[str]:
    """Yield a trend's outcomes and a table of its series."""
    yield f"### {escape(trend.title)}"
    yield ""
    yield escape(trend.outcomes)
    yield ""
    if not trend.series:
        return
    yield "| figure | last | typical since the last step | steps |"
    yield "| :-- | :-- | :-- | :-- |"
    for series in trend.series:
        steps = "; ".join(f"{day(step.date)} {step.change}" for step in series.steps) or "none"
        yield f"| {' | '.join(map(escape, (series.quantity.title, series.last, series.typical, steps)))} |"
    yield ""
