"""Temperature 0: speculation may change when a token comes, never which one.

A pass means: after the same prefix the baseline would have chosen every token of the speculative server, within the numerical noise
between two boots of the baseline.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, CODE
from pytest_specdec.prompts.late import with_late
from pytest_specdec.prompts.windows import WINDOWS

# Two answers of 512 tokens are among those of 128: what begins late in an answer, as a cache that goes stale, shows in no short one.
MIXED = with_late(
    ALL.greedy(max_tokens=128, concurrency=24, draft_scored=True, take={Depth.SMOKE: 6, Depth.STANDARD: 20}),
    CODE.after(2).greedy(max_tokens=512),
    standard=2,
)


@pytest.mark.specdec(MIXED, family="greedy")
def test_every_token_is_the_baselines_choice(captured, check):
    check(judge.greedy.judge(captured))


@pytest.mark.specdec(WINDOWS, family="greedy")
def test_short_prompts_and_drafts_that_stop_change_no_token(captured, check):
    check(judge.greedy.judge(captured))
