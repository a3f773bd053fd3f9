"""Parameters: what a request's fields ask for is what the server does, at draft positions as elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]


def judge(captured: Captured) -> Verdict:
    """Return whether every token is the baseline's choice after the request's penalties and biases."""
    return greedy.judge(captured)
