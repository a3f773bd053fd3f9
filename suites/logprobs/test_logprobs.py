"""Reported log-probabilities of sampled tokens: the target model's values, also for draft tokens.

A pass means: the values that the speculative server reports are as close to the baseline's distribution as the baseline's own. The
temperature is not 1, because engines have reported values after temperature, or the draft model's.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

# Without seeds, as in production.
REPORTED = ALL.sampled(
    version=2,
    temperature=0.8,
    max_tokens=48,
    requests=96,
    logprobs=1,
    seeded=False,
    draft_scored=False,
    name="all-told",
    take={Depth.SMOKE: 8, Depth.STANDARD: 12},
)


@pytest.mark.specdec(REPORTED, family="logprobs")
def test_reported_logprobs_are_the_baselines(captured, check):
    check(judge.logprobs.judge(captured))
