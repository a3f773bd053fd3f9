"""The lengths, limits, parameters and formats that have taken servers down: whatever is asked, the server answers and lives.

A pass means that no request killed, hung or broke the speculative server that the baseline survived.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

LADDER = ALL.liveness(take={Depth.SMOKE: 13})


@pytest.mark.specdec(LADDER, family="liveness")
def test_no_request_takes_the_server_down(captured, check):
    check(judge.liveness.judge(captured))
