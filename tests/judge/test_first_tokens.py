"""First tokens of prompts asked again: the ratio of both arms to their own new prompts, and what is left out of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.speed.first_tokens import first_tokens
from pytest_specdec.model.transcript import Usage
from tests.judge.captured_values import VARIANT, a_workload, captured, requests, timed, transcript

PROMPTS = {"chat-00": 80, "chat-01": 400, "chat-02": 20}


def an_arm(name, warm_s, new_s=0.5, *, cached=1.0):
    """Two passes of three prompts; the third is too short to count."""
    answers = [
        replace(
            timed(request_id, per_s=50, ttft_s=warm_s, pass_index=pass_index),
            usage=Usage(prompt_tokens=tokens, completion_tokens=101, cached_tokens=int(cached * tokens)),
        )
        for pass_index in range(2)
        for request_id, tokens in PROMPTS.items()
    ]
    return transcript(name, answers, new_ttft_s=dict.fromkeys(PROMPTS, new_s))


def compared(variant, base=None, **traffic):
    base = base or an_arm("baseline", 0.05)
    workload = a_workload(requests(3), **{"concurrency": 1, **traffic})
    return first_tokens(captured("speed", variant, base, replace(base, arm="control"), workload=workload))


def test_the_ratio_is_of_long_prompts_that_both_arms_cached():
    again = compared(an_arm(VARIANT, 0.1))
    assert (again.prompts, again.baseline, again.speculative, again.ratio) == pytest.approx((2, 0.1, 0.2, 2.0))
    assert "20.0% of the time" in str(again)


def test_a_variant_that_computes_cached_prompts_again_stands_out():
    assert compared(an_arm(VARIANT, 0.5)).ratio == pytest.approx(10.0)


@pytest.mark.parametrize(
    "variant, traffic",
    [
        (an_arm(VARIANT, 0.1, cached=0.2), {}),
        (replace(an_arm(VARIANT, 0.1), new_ttft_s={}), {}),
        (an_arm(VARIANT, 0.1), {"concurrency": 4}),
    ],
    ids=["not cached", "never new", "in company"],
)
def test_nothing_is_said_without_a_new_and_a_cached_prompt_alone(variant, traffic):
    assert compared(variant, **traffic) is None
