"""Offload: the cache of a prompt that left the device and comes back is as good as one that stayed.

A pass means: prompts asked again after more tokens than the cache holds got the baseline's tokens, their drafts were accepted as before,
and as many of their tokens came from the cache as with the baseline. It is sent where the config's servers have a second tier for it.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import offload

OUT_AND_BACK = offload.out_and_back(take={Depth.SMOKE: 0})


@pytest.mark.specdec(OUT_AND_BACK, family="offload")
def test_a_prompt_whose_cache_comes_back_is_answered_as_before(captured, check):
    check(judge.offload.judge(captured))
