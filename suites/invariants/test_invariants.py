"""Invariants: rules that every answer of any server keeps, held on all answers of the run.

A pass means: token counts, finish reasons, text, token ids and speculation counters agree with each other in every answer, as far as they
do in the baseline's.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import traffic


@pytest.mark.specdec(traffic.kinds(), family="invariants")
def test_every_answer_of_the_run_keeps_the_rules(captured_run, check):
    check(judge.invariants.judge(captured_run))
