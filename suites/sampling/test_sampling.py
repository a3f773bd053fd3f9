"""Temperature above 0: no two answers are the same, but their distribution is the baseline's.

A pass means that no bettor who knows the usual bugs (drafts accepted too easily, recovered tokens from the wrong distribution, a position
off by one) could make money against the baseline's own probabilities of the tokens that the speculative server drew.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, COPY, OPEN_ENDED

# Four prompts of every category. At standard depth eight of them are asked again, with another seed: an answer that comes again was not
# drawn on its own.
OPEN = ALL.sampled(
    version=4,
    temperature=1.0,
    max_tokens=64,
    requests=320,
    prompts=48,
    concurrency=32,
    take={Depth.SMOKE: 20, Depth.STANDARD: 56},
)
# Traffic as it is in production: no request brings a seed, and answers are long. vLLM leaves its fast sampler as soon as one request of
# the batch has a seed, so that no seeded request may be in flight meanwhile: a server is asked one workload at a time, and all requests
# of a workload have a seed or none has. Two prompts are asked again: without a seed, too, each answer is to be drawn on its own.
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
# Here the answers report log-probabilities, elsewhere not: being asked for them has switched drafting off before. No seeds either: the
# fast sampler is the one that truncates.
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
# Drafters that copy speak up where the text repeats itself: cool, and on prompts that ask for it.
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
