"""A verdict as properties of its test case in a JUnit file: scalars, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When

if TYPE_CHECKING:
    from pytest_specdec.model.verdict import Verdict

__all__ = ["FORMAT", "properties"]


def properties(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return names and values; JUnit readers show them as text, so nothing nested goes in."""
    return (
        ("specdec.outcome", verdict.outcome.value),
        ("specdec.family", verdict.family.value),
        ("specdec.pair", printable(verdict.pair)),
        ("specdec.workload", printable(verdict.workload)),
        ("specdec.headline", printable(verdict.headline)),
    )


FORMAT = ReportFormat(name="junit", target="--junit-xml", when=When.TEST, render=properties)
