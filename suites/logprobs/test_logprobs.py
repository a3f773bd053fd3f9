"""Log-probabilities reported beside sampled tokens: they are the target's, whoever proposed the token.

A pass means that what the speculative server reports of its own tokens lies as near to the baseline's distribution as what the baseline
reports. The temperature is not 1: log-probabilities taken after it, or of the draft, have been reported for the distribution's own.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

# Without seeds, as in production.
TOLD = ALL.sampled(
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


@pytest.mark.specdec(TOLD, family="logprobs")
def test_reported_logprobs_are_the_baselines(captured, check):
    check(judge.logprobs.judge(captured))
