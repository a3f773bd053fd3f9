"""The speed of a pair in the rows that people publish: Baseline, Speculative, Speedup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Family
from pytest_specdec.report.run import NOT_COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import Run

HEADER = ("Metric", "Baseline", "Speculative", "Speedup")

_ROWS = (
    ("Response Tok/s", "response_tokens_per_s", "speedup", "{:,.2f}"),
    ("Time To First Token (s)", "ttft_s", "ttft_speedup", "{:.3f}"),
    ("Time To First Text (s)", "content_ttft_s", "content_ttft_speedup", "{:.3f}"),
    ("Prompt Tok/s", "prompt_tokens_per_s", "prompt_speedup", "{:,.2f}"),
)


def verdicts(run: Run) -> tuple[Verdict, ...]:
    """Return the speed verdicts with figures."""
    speeds = (j.verdict for j in run.judgements if j.family is Family.SPEED)
    return tuple(verdict for verdict in speeds if verdict is not None and rows(verdict.figures))


def sentence(run: Run, verdict: Verdict) -> str:
    """Return the sentence for the rows.

    It is the verdict's headline, or a note that it counts for nothing.
    """
    return NOT_COUNTED if verdict.pair in run.not_counted and not verdict.red else verdict.headline


def rows(figures: Mapping[str, float]) -> tuple[tuple[str, str, str, str], ...]:
    """Return the rows with both sides known."""
    known = (row for row in _ROWS if f"baseline_{row[1]}" in figures and f"speculative_{row[1]}" in figures)
    return tuple(_make_row(figures, *row) for row in known)


def _make_row(figures: Mapping[str, float], title: str, name: str, ratio: str, number_format: str) -> tuple[str, str, str, str]:
    """Return a row: title, baseline, speculative, speedup."""
    baseline, speculative = figures[f"baseline_{name}"], figures[f"speculative_{name}"]
    speedup = f"{figures[ratio]:.2f}x" if ratio in figures else "-"
    return (title, number_format.format(baseline), number_format.format(speculative), speedup)
