"""Speedup at one client with long answers, and acceptance length (tokens per verify step).

A pass means: the interval of the speedup in output tokens per second, or of the acceptance length over twenty prompts or more, lies above
its gate, and the acceptance of every load is that of the stored run, to within 3 %. An interval that includes the gate is "speed not
decided". And no kind of request goes without drafts that others get.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, CATEGORIES, CODE, SPEED, load, traffic
from pytest_specdec.prompts.late import with_late

VACATION = SPEED.speed(max_tokens=80, passes=4)
EVERYDAY = CATEGORIES.speed(max_tokens=24, passes=2, take={Depth.SMOKE: 0, Depth.STANDARD: 11, Depth.DEEP: 44}, takes_prompts=True)
LOAD = replace(load.levels(CATEGORIES), take={Depth.SMOKE: 0})
MIXED = with_late(
    ALL.greedy(max_tokens=128, concurrency=24, draft_scored=True, take={Depth.SMOKE: 6, Depth.STANDARD: 20}),
    CODE.after(2).greedy(max_tokens=512),
    standard=2,
)
"""The workload of suites/greedy, captured once for both."""
OPEN = ALL.sampled(
    version=4,
    temperature=1.0,
    max_tokens=64,
    requests=320,
    prompts=48,
    concurrency=32,
    take={Depth.SMOKE: 20, Depth.STANDARD: 56},
)
"""The same of suites/sampling."""
MANY = ALL.greedy(max_tokens=96, concurrency=32, scored=False, name="many-prompts", take={Depth.SMOKE: 0, Depth.STANDARD: 100})
"""A hundred prompts of some forty steps find a loss of 8 % against a stored run in nine of ten runs; twenty do not."""


@pytest.mark.specdec(VACATION, family="speed")
def test_answers_come_sooner(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(EVERYDAY, family="speed")
def test_answers_of_every_category_come_sooner(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(LOAD, family="speed")
def test_answers_come_sooner_under_load(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(MIXED, family="speed")
def test_enough_drafts_are_accepted(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(MANY, family="speed")
def test_as_many_drafts_are_accepted_as_before(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(OPEN, family="speed")
def test_as_many_drafts_are_accepted_as_before_in_sampled_answers(captured, check):
    check(judge.speed.judge(captured))


@pytest.mark.specdec(traffic.kinds(), family="speed")
def test_every_kind_of_traffic_is_drafted_for(captured_run, check):
    check(judge.speed.judge(captured_run))
