"""Temperature above 0: no two answers are the same, but their law is the baseline's.

A pass means that no bettor who knows the usual bugs (drafts accepted too easily, recovered tokens from the wrong law, a position
off by one) could make money against the baseline's own probabilities of the tokens that the speculative server drew.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, COPY

# Of 96 prompts the 48 are sent that leave the baseline most choice; at smoke depth the first ones. Eight and more are asked again, with
# another seed: an answer that comes again was not drawn on its own.
OPEN = ALL.sampled(
    version=3,
    temperature=1.0,
    max_tokens=64,
    requests=640,
    prompts=96,
    survey=True,
    concurrency=32,
    take={Depth.SMOKE: 20, Depth.STANDARD: 56, Depth.DEEP: 320},
)
# Here the answers report log-probabilities, elsewhere not: being asked for them has switched drafting off before.
NUCLEUS = ALL.sampled(
    version=2,
    temperature=1.0,
    top_p=0.9,
    max_tokens=64,
    requests=320,
    logprobs=1,
    concurrency=32,
    take={Depth.SMOKE: 0, Depth.STANDARD: 24},
)
# Drafters that copy speak up where the text repeats itself: cool, and on prompts that ask for it.
COOL = COPY.sampled(temperature=0.6, max_tokens=64, requests=160, concurrency=32, take={Depth.SMOKE: 0, Depth.STANDARD: 24})


@pytest.mark.specdec(OPEN, family="sampling")
def test_tokens_are_drawn_from_the_baselines_law(captured, check):
    check(judge.sampling.judge(captured))


@pytest.mark.specdec(NUCLEUS, family="sampling")
def test_a_truncated_law_is_the_baselines_too(captured, check):
    check(judge.sampling.judge(captured))


@pytest.mark.specdec(COOL, family="sampling")
def test_a_cooled_law_is_the_baselines_too(captured, check):
    check(judge.sampling.judge(captured))
