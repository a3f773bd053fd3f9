"""Structured: every answer to a request with a grammar is of that grammar, as often as the baseline's are.

At temperature 0 it is the baseline's own document as well, up to the first token at which rounding may part them.
"""

from __future__ import annotations

from pytest_specdec.judge.structured.verdict import judge

__all__ = ["judge"]
