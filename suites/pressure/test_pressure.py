"""Pressure: requests that were put off for want of key-value cache go on as if they had not been.

A pass means: the server preempted requests, by its own count, and all of them were answered with the baseline's tokens and valid documents.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import pressure

TOGETHER = pressure.together(take={Depth.SMOKE: 0, Depth.STANDARD: 16, Depth.DEEP: 48})


@pytest.mark.specdec(TOGETHER, family="pressure")
def test_preempted_requests_go_on_as_if_nothing_had_happened(captured, check):
    check(judge.pressure.judge(captured))
