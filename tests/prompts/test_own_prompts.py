"""Own prompts: in front of a workload's requests, under their parameters, at every depth that sends anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec import prompts
from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts.own import OwnPrompt, digest_of, with_own_prompts

TALK = OwnPrompt(id="talk", content={"messages": [{"role": "user", "content": "hello"}]})
TEXT = OwnPrompt(id="text", content={"prompt": "Once"}, max_tokens=9)
FORM = OwnPrompt(id="form", content={"messages": [{"role": "user", "content": "as JSON"}]}, schema={"type": "array"}, max_tokens=500)
OWN = (TALK, TEXT, FORM)


def ids(workload):
    return [request.id for request in workload.requests]


def body(workload, name):
    (found,) = [request.body for request in workload.requests if request.id == name]
    return found


def test_they_come_before_the_same_requests_at_every_depth_and_change_the_digest():
    plain = prompts.ALL.greedy(max_tokens=64, take={Depth.SMOKE: 4, Depth.STANDARD: 20})
    with_own = with_own_prompts(plain, OWN)
    for depth in Depth:
        assert ids(with_own.at(depth)) == ["own:talk", "own:text", "own:form", *ids(plain.at(depth))]
        assert with_own.at(depth).own_requests == 3
        assert with_own.at(depth).digest != plain.at(depth).digest
    assert with_own.requests[3:] == plain.requests


def test_a_depth_that_is_left_out_stays_left_out():
    assert with_own_prompts(prompts.CHAT.greedy(take={Depth.SMOKE: 0}), OWN).take == {Depth.SMOKE: 0}


def test_they_have_the_workloads_parameters_but_for_a_limit_of_their_own():
    workload = with_own_prompts(prompts.ALL.greedy(max_tokens=64, presence_penalty=0.5), OWN)
    same = {"temperature": 0.0, "top_p": 1.0, "presence_penalty": 0.5}
    assert body(workload, "own:talk") == {**TALK.content, "max_tokens": 64, **same}
    assert body(workload, "own:text") == {**TEXT.content, "max_tokens": 9, **same}
    assert {request.id: request.route for request in workload.requests}["own:text"] is Route.COMPLETIONS


def test_a_limit_of_their_own_replaces_that_of_either_name():
    asked = Request(id="a", route=Route.CHAT, body={"messages": [], "max_completion_tokens": 8, "temperature": 0.0})
    workload = with_own_prompts(Workload(name="w", version=1, requests=(asked,), takes_prompts=True), (FORM, TALK))
    limits = ("max_tokens", "max_completion_tokens")
    assert [body(workload, name).get(limit) for name in ("own:form", "own:talk") for limit in limits] == [500, None, None, 8]


def test_every_draw_has_a_seed_of_its_own_and_the_others_keep_theirs():
    plain = prompts.ALL.sampled(requests=30, prompts=20)
    seeds = [request.seed for request in with_own_prompts(plain, OWN).requests]
    assert seeds == [31, 32, 33, *range(1, 31)]
    assert {request.seed for request in with_own_prompts(prompts.ALL.sampled(seeded=False), OWN).requests} == {None}


@pytest.mark.parametrize("collection", [prompts.CHAT, prompts.CODE])
def test_log_probabilities_are_asked_for_in_the_way_of_their_own_route(collection):
    workload = with_own_prompts(collection.sampled(logprobs=2), OWN)
    assert {name: body(workload, "own:talk").get(name) for name in ("logprobs", "top_logprobs")} == {"logprobs": True, "top_logprobs": 2}
    assert {name: body(workload, "own:text").get(name) for name in ("logprobs", "top_logprobs")} == {"logprobs": 2, "top_logprobs": None}


def test_a_workload_of_documents_takes_those_with_a_schema_each_bound_to_its_own():
    workload = with_own_prompts(prompts.JSON_TASKS.structured(), OWN)
    assert ids(workload)[:2] == ["own:form", "json-01"]
    bound = body(workload, "own:form")
    assert (bound["response_format"]["json_schema"]["schema"], bound["max_tokens"]) == ({"type": "array"}, 500)
    assert "response_format" not in body(with_own_prompts(prompts.ALL.greedy(), OWN), "own:form")


def test_a_workload_with_and_without_seeds_takes_each_both_ways():
    plain = prompts.JSON_TASKS.structured_draws(requests=10)
    workload = with_own_prompts(plain, OWN)
    assert ids(workload)[:3] == ["own:form", "own:form#2", ids(plain)[0]]
    assert [request.seed for request in workload.requests[:2]] == [10, None]


def test_no_prompt_that_fits_leaves_a_workload_as_it_is():
    workload = prompts.JSON_TASKS.structured(take={Depth.SMOKE: 2})
    assert with_own_prompts(workload, (TALK, TEXT)) == with_own_prompts(workload, ()) == workload


def test_what_does_not_take_them_is_left_alone():
    by_hand = Workload(name="w", version=1, requests=prompts.CHAT.greedy().requests)
    for workload in (by_hand, prompts.ALL.liveness(), prompts.SPEED.speed(), prompts.CHAT.greedy(takes_prompts=False)):
        assert with_own_prompts(workload, OWN) is workload


def test_their_digest_holds_all_that_a_line_says_and_is_empty_without_any():
    others = [(), OWN[:2], OWN[::-1], (*OWN[:2], replace(FORM, schema={})), (*OWN[:2], replace(FORM, max_tokens=None))]
    digests = {digest_of(prompts) for prompts in (OWN, *others)}
    assert len(digests) == 6
    assert {len(digest) for digest in digests} == {0, 16}
