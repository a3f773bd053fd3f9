"""Concurrent requests: alone, two to sixteen at once, and beside clients that leave.

A pass means: whatever is in flight beside it, every request at temperature 0 gets the baseline's tokens, and no answer goes to another one.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import ALL
from pytest_specdec.prompts.company import company

COMPANY = company(ALL)


@pytest.mark.specdec(COMPANY, family="concurrency")
def test_company_changes_no_answer(captured, check):
    check(judge.concurrency.judge(captured))
