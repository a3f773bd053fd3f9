"""Endurance: after minutes of the same mixed traffic a server answers, drafts and takes memory as at first; at deep depth alone.

A pass means: for as many minutes as `endurance: {minutes: 30}` in the config says, no server failed, or refused what it had answered; as
many of the tokens were accepted drafts at the end as at the beginning, on every rank; greedy answers afterwards had the baseline's tokens;
and the server's memory did not go on growing where the baseline's stood still. How much slower it became is reported.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import endurance

MIXED_TRAFFIC = endurance.mixed_traffic()


@pytest.mark.specdec(MIXED_TRAFFIC, family="endurance")
def test_a_server_is_after_many_minutes_as_at_first(captured, check):
    check(judge.endurance.judge(captured))
