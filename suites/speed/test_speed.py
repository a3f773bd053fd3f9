"""One client, one long answer at a time: the figure that speculation is switched on for; and what it comes from, tokens per step.

A pass means that the speedup in response tokens per second, or the acceptance length over twenty prompts, is above its gate by the limits
that the boots, passes and prompts of this run allow; where they allow neither that nor a fail, the verdict is "speed not decided".
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, SPEED

VACATION = SPEED.speed(max_tokens=80, passes=4)
MIXED = ALL.greedy(max_tokens=128, concurrency=24, draft_scored=True, take={Depth.SMOKE: 6, Depth.STANDARD: 20})
"""As in suites/greedy: answered once for both."""


@pytest.mark.specdec(VACATION, family="speed")
def test_answers_come_sooner(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(MIXED, family="speed")
def test_enough_drafts_are_accepted(captured, check):
    check(judge.speed.judge(captured))
