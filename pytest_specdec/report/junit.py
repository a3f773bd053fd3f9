"""What a JUnit file says about a verdict: scalar properties of its test case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from pytest_specdec.model.verdict import Verdict

__all__ = ["properties"]


def properties(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return names and values; JUnit readers show them as text, so nothing nested goes in."""
    return (
        ("specdec.outcome", verdict.outcome.value),
        ("specdec.family", verdict.family.value),
        ("specdec.pair", verdict.pair),
        ("specdec.workload", verdict.workload),
        ("specdec.headline", printable(verdict.headline)),
    )
