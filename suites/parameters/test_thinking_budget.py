"""Thinking budgets: reasoning that a request limits ends at the limit, wherever in a verify window that falls.

A pass means: no answer reasons for more tokens than its budget and the baseline's own marks, and with the end forced there, the baseline
would have chosen every token of the speculative server. Sent where the config's servers know such a budget.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts.thinking import BUDGETS


@pytest.mark.specdec(BUDGETS, family="parameters")
def test_reasoning_ends_at_its_budget(captured, check):
    check(judge.parameters.judge(captured))
