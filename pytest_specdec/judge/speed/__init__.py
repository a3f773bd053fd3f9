"""Speed: response tokens per second over the baseline's, with an interval that includes the spread between boots."""

from __future__ import annotations

from pytest_specdec.judge.speed.verdict import judge

__all__ = ["judge"]
