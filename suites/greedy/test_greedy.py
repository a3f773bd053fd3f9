"""Temperature 0: speculation may change when a token comes, never which.

A pass means that the baseline, reading the speculative server's own words, would have chosen every one of them, up to the
numerical noise that two boots of the baseline show between themselves.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

MIXED = ALL.greedy(max_tokens=128, concurrency=24, draft_scored=True, take={Depth.SMOKE: 6, Depth.STANDARD: 20})


@pytest.mark.specdec(MIXED, family="greedy")
def test_every_token_is_the_baselines_choice(captured, check):
    check(judge.greedy.judge(captured))
