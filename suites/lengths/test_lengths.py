"""Stops and limits at every place of a verify window: an answer ends at the token where it should, whatever was accepted after it.

A pass means: every answer of the speculative server kept the law that its own request sets, for as many places as are named.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts.lengths import LIMITS, STOPS


@pytest.mark.specdec(STOPS, family="lengths")
def test_answers_stop_at_the_first_stop(captured, check):
    check(judge.lengths.judge(captured))


@pytest.mark.specdec(LIMITS, family="lengths")
def test_answers_end_at_their_limit_or_their_end(captured, check):
    check(judge.lengths.judge(captured))
