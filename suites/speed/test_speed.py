"""One client, one long answer at a time: the figure that speculation is switched on for.

A pass means that the speedup in response tokens per second is above its gate with the interval that the boots and passes of this
run allow; where they allow none, the verdict is "speed not decided" and the interval is printed.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import SPEED

VACATION = SPEED.speed(max_tokens=80, passes=4)


@pytest.mark.specdec(VACATION, family="speed")
def test_answers_come_sooner(captured, check):
    check(judge.speed.judge(captured))
