"""Kinds of traffic: each prompt stands in each kind, and the kinds differ in nothing but what they are named after."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.judge.drafting.traffic import request_kinds
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import traffic
from tests.judge.captured_runs import a_part
from tests.judge.captured_values import answer

WORKLOAD = traffic.kinds()
NAMES = ("plain", "logprobs", "grammar", "penalty", "seeded", "drawn", "long")


def test_every_depth_sends_each_prompt_in_each_kind():
    prompts = {request.id.partition("#")[0] for request in WORKLOAD.requests}
    assert {request.id for request in WORKLOAD.requests} == {f"{prompt}#{name}" for prompt in prompts for name in NAMES}
    assert {len(WORKLOAD.at(depth).requests) for depth in Depth} == {5 * len(NAMES)}


def test_a_prompt_is_the_same_in_every_kind_but_the_long_one():
    keys = {}
    for request in WORKLOAD.requests:
        prompt, _, name = request.id.partition("#")
        keys.setdefault((prompt, name == "long"), set()).add(request.prompt_key)
    assert {len(same) for same in keys.values()} == {1}


def test_each_kind_is_known_by_its_request():
    part = a_part(WORKLOAD, [], [answer()])
    plain = request_kinds(part, WORKLOAD.requests[0], answer(), 8)
    more = [request_kinds(part, request, answer(), 8) - plain for request in WORKLOAD.requests[1:6]]
    assert more == [
        {"requests with log-probabilities"},
        {"requests with a grammar"},
        {"requests with penalties"},
        {"requests above temperature 0", "requests with a seed"},
        {"requests above temperature 0", "requests that draw without a seed"},
    ]


def test_an_answer_that_reasons_is_of_a_kind_of_its_own():
    part, plain = a_part(WORKLOAD, [], [answer()]), answer()
    reasoning = replace(plain, choices=(replace(plain.choice, reasoning="They ask."),))
    kinds, plain_kinds = (request_kinds(part, WORKLOAD.requests[0], one, 8) for one in (reasoning, plain))
    assert kinds - plain_kinds == {"requests that reason"}
