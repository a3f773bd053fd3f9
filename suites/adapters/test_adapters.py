"""Adapters: requests with a LoRA adapter get its answers, and those beside them get their own.

A pass means: requests with either of two adapters and without, alone and mixed in one batch, the same prompt under each of them and again
in another order, got the tokens that the baseline gives under the same adapter, and drafts were accepted with adapters too. The config has
to load two adapters in all arms; without them nothing is sent.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import adapters

MIXED = adapters.mixed_batches(take={Depth.SMOKE: 21, Depth.STANDARD: 58})


@pytest.mark.specdec(MIXED, family="adapters")
def test_requests_with_adapters_get_the_baseline_s_answers_under_them(captured, check):
    check(judge.adapters.judge(captured))
