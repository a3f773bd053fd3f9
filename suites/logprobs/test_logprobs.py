"""Reported log-probabilities: the target model's values, also for draft tokens and for prompts, and in lists as asked for.

A pass means: the values that the speculative server reports are as close to the baseline's distribution as the baseline's own. The
temperature of the first is not 1, because engines have reported values after temperature, or the draft model's.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, CODE, logprobs
from pytest_specdec.prompts.late import with_late

# Without seeds, as in production. Two answers go on to 512 tokens, beside all others.
REPORTED = with_late(
    ALL.sampled(
        version=3,
        temperature=0.8,
        max_tokens=48,
        requests=96,
        logprobs=1,
        seeded=False,
        draft_scored=False,
        concurrency=24,
        name="all-told",
        take={Depth.SMOKE: 16, Depth.STANDARD: 20},
    ),
    CODE.after(2).sampled(temperature=0.8, max_tokens=512, logprobs=1, seeded=False),
    standard=2,
)
LISTED = logprobs.top_lists(ALL, stream=True, take={Depth.SMOKE: 2, Depth.STANDARD: 10})
PROMPTS = logprobs.prompt_lengths(concurrency=4, take={Depth.SMOKE: 2, Depth.STANDARD: 16})


@pytest.mark.specdec(REPORTED, family="logprobs")
def test_reported_logprobs_are_the_baselines(captured, check):
    check(judge.logprobs.judge(captured))


@pytest.mark.specdec(LISTED, family="logprobs")
def test_most_probable_tokens_are_listed_as_asked_for(captured, check):
    check(judge.logprobs.judge(captured))


@pytest.mark.specdec(PROMPTS, family="logprobs")
def test_logprobs_of_prompts_are_the_baselines_at_any_length(captured, check):
    check(judge.logprobs.judge(captured))
