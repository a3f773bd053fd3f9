"""Pairs: every two values of two sampling parameters meet in a request, since a parameter may be lost beside another one only.

A pass means: each token is one that all parameters of its own request allow.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import parameters

PAIRS = parameters.pairs(105, concurrency=16, take={Depth.SMOKE: 5, Depth.STANDARD: 24})


@pytest.mark.specdec(PAIRS, family="parameters")
def test_no_parameter_is_lost_beside_another(captured, check):
    check(judge.parameters.judge(captured))
