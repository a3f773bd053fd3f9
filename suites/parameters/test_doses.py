"""Doses: each sampling parameter alone, on prompts where it decides which token comes.

A pass means: the parameters that bind on the baseline bind on the speculative server too, at every token that their law speaks of.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import parameters

DOSES = parameters.doses(concurrency=16, take={Depth.SMOKE: 6})


@pytest.mark.specdec(DOSES, family="parameters")
def test_every_parameter_that_binds_is_honoured(captured, check):
    check(judge.parameters.judge(captured))
