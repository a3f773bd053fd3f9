"""Speedup at one client with long answers, and acceptance length (tokens per verify step).

A pass means: the interval of the speedup in output tokens per second, or of the acceptance length over twenty prompts, lies above its
gate. An interval that includes the gate is "speed not decided". And no kind of request goes without drafts that others get.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL, CATEGORIES, SPEED, load, traffic

VACATION = SPEED.speed(max_tokens=80, passes=4)
EVERYDAY = CATEGORIES.speed(max_tokens=32, passes=2, take={Depth.SMOKE: 0, Depth.STANDARD: 11, Depth.DEEP: 44}, takes_prompts=True)
LOAD = replace(load.levels(CATEGORIES), take={Depth.SMOKE: 0})
MIXED = ALL.greedy(max_tokens=128, concurrency=24, draft_scored=True, take={Depth.SMOKE: 6, Depth.STANDARD: 20})
"""The workload of suites/greedy, captured once for both."""


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


@pytest.mark.specdec(traffic.kinds(), family="speed")
def test_every_kind_of_traffic_is_drafted_for(captured_run, check):
    check(judge.speed.judge(captured_run))
