"""Lengths, limits, parameters and formats that have crashed speculative servers.

A pass means: no request killed, hung or broke the speculative server, unless the baseline failed on it too.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

CRASH_CASES = ALL.liveness(version=3, take={Depth.SMOKE: 13})


@pytest.mark.specdec(CRASH_CASES, family="liveness")
def test_no_request_takes_the_server_down(captured, check):
    check(judge.liveness.judge(captured))
