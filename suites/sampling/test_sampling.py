"""Temperature above 0: answers differ, but their tokens follow the baseline's distribution.

A pass means: the sampled tokens show none of the known bugs (lenient acceptance, recovered tokens from the wrong distribution, a position
off by one, ...) of the printed size.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, COPY, OPEN_ENDED

# Four prompts of every category. At standard depth eight of them are sent twice, with different seeds: equal answers were not drawn
# independently.
OPEN = ALL.sampled(
    version=4,
    temperature=1.0,
    max_tokens=64,
    requests=320,
    prompts=48,
    concurrency=32,
    take={Depth.SMOKE: 20, Depth.STANDARD: 56},
)
# Production traffic: no seeds, long answers. vLLM leaves its fast sampler as soon as one request of the batch has a seed, so a server
# gets one workload at a time, and either all requests of a workload have a seed or none. Two prompts are sent twice.
LONG = OPEN_ENDED.sampled(
    temperature=1.0,
    max_tokens=256,
    requests=96,
    prompts=10,
    seeded=False,
    concurrency=16,
    name="long-sampled",
    take={Depth.SMOKE: 4, Depth.STANDARD: 12},
)
# These requests ask for log-probabilities, the others do not: asking has switched drafting off before. No seeds: the fast sampler
# truncates.
NUCLEUS = ALL.sampled(
    version=3,
    temperature=1.0,
    top_p=0.9,
    max_tokens=64,
    requests=320,
    logprobs=1,
    seeded=False,
    concurrency=32,
    take={Depth.SMOKE: 0, Depth.STANDARD: 24},
)
# Prompt lookup drafts where text repeats itself: low temperature, and prompts that ask for repetition.
COOL = COPY.sampled(temperature=0.6, max_tokens=64, requests=160, concurrency=32, take={Depth.SMOKE: 0, Depth.STANDARD: 24})


@pytest.mark.specdec(OPEN, family="sampling")
def test_tokens_are_drawn_from_the_baselines_distribution(captured, check):
    check(judge.sampling.judge(captured))


@pytest.mark.specdec(LONG, family="sampling")
def test_long_answers_without_seeds_are_drawn_from_the_baselines_distribution(captured, check):
    check(judge.sampling.judge(captured))


@pytest.mark.specdec(NUCLEUS, family="sampling")
def test_a_truncated_distribution_is_the_baselines_too(captured, check):
    check(judge.sampling.judge(captured))


@pytest.mark.specdec(COOL, family="sampling")
def test_a_cooled_distribution_is_the_baselines_too(captured, check):
    check(judge.sampling.judge(captured))
