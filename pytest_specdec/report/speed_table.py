"""The speed of a pair in the rows that people publish: Baseline, Speculative, Speedup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.promise import Speedup
from pytest_specdec.report.run import NOT_COUNTED

if TYPE_CHECKING:
    from pytest_specdec.model.promise import SpeedFigure
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import Run

HEADER = ("Metric", "Baseline", "Speculative", "Speedup")


def speeds(run: Run) -> tuple[tuple[Verdict, Speedup], ...]:
    """Return the verdicts with a measured speedup, each beside that speedup."""
    verdicts = (judgement.verdict for judgement in run.judgements if judgement.verdict)
    return tuple((verdict, verdict.promise) for verdict in verdicts if isinstance(verdict.promise, Speedup))


def sentence(run: Run, verdict: Verdict) -> str:
    """Return the sentence below a speedup's rows: the verdict's headline.

    For a variant with wrong tokens it is :data:`NOT_COUNTED`, unless the verdict is a failure.
    """
    return NOT_COUNTED if verdict.pair in run.not_counted and not verdict.red else verdict.headline


def rows(speedup: Speedup) -> tuple[tuple[str, str, str, str], ...]:
    """Return a row for each figure of a speedup, unmeasured ones left out.

    The columns are those of :data:`HEADER`: a figure's name, its values for both servers, and the speedup.
    """
    figures = (
        ("Response Tok/s", speedup.response, "{:,.2f}"),
        ("Time To First Token (s)", speedup.ttft, "{:.3f}"),
        ("Time To First Text (s)", speedup.content, "{:.3f}"),
        ("Prompt Tok/s", speedup.prompt, "{:,.2f}"),
    )
    return tuple(_make_row(title, figure, number_format) for title, figure, number_format in figures if figure)


def _make_row(title: str, figure: SpeedFigure, number_format: str) -> tuple[str, str, str, str]:
    """Return a row: title, baseline, speculative, speedup."""
    return (title, number_format.format(figure.baseline), number_format.format(figure.speculative), f"{figure.speedup:.2f}x")
