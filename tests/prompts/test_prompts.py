from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pytest_specdec import prompts
from pytest_specdec.model.workload import Depth, Route
from pytest_specdec.prompts import crash_cases, schemas

CATEGORIES = ["CHAT", "CODE", "EDIT", "STORY", "JSON_TASKS", "MATH", "QA", "SUMMARY", "TRANSLATE", "LIST", "COPY", "REPEAT"]
NEUTRAL = {"top_k", "min_p", "presence_penalty", "frequency_penalty", "n", "stop", "response_format", "ignore_eos", "logprobs"}


def every():
    return prompts.ALL.items


@pytest.mark.parametrize("name", CATEGORIES)
def test_a_category_has_eight_to_twelve_prompts_of_one_route(name):
    collection = getattr(prompts, name)
    assert 8 <= len(collection.items) <= 12
    assert len({prompt.route for prompt in collection.items}) == 1
    assert {prompt.category for prompt in collection.items} == {collection.category}
    assert [prompt.id for prompt in collection.items] == [f"{collection.category}-{i:02d}" for i in range(1, len(collection.items) + 1)]


def test_there_are_more_than_120_prompts_and_no_two_are_alike():
    assert len(every()) > 120
    assert len({prompt.text for prompt in every()}) == len({prompt.id for prompt in every()}) == len(every())
    assert sum(len(getattr(prompts, name).items) for name in CATEGORIES) == len(every())


def test_prompts_are_short_and_ours():
    for prompt in every():
        assert 1 <= len(prompt.text.split()) <= 120, prompt.id
        assert prompt.provenance == "pytest-specdec authors, Apache-2.0"


def test_code_and_repetition_are_completed_and_the_rest_is_chat():
    completed = {prompt.category for prompt in every() if prompt.route is Route.COMPLETIONS}
    assert completed == {"code", "repeat"}
    assert {prompt.route for prompt in every() if prompt.category not in completed} == {Route.CHAT}


def test_the_first_prompts_of_all_are_of_every_category():
    assert len({prompt.category for prompt in every()[: len(CATEGORIES)]}) == len(CATEGORIES)


def test_greedy_asks_every_prompt_once_with_neutral_parameters_written_out():
    workload = prompts.ALL.greedy(max_tokens=99, take={Depth.SMOKE: 4}, concurrency=3)
    assert (workload.name, workload.concurrency, workload.passes, workload.scored) == ("all-greedy", 3, 1, True)
    assert [request.id for request in workload.requests] == [prompt.id for prompt in every()]
    assert len(workload.at(Depth.SMOKE).requests) == 4
    for request in workload.requests:
        assert {"max_tokens": 99, "temperature": 0.0, "top_p": 1.0}.items() <= request.body.items()
        assert not NEUTRAL & request.body.keys()
        assert ("messages" in request.body) == (request.route is Route.CHAT) != ("prompt" in request.body)


def test_sampled_takes_every_prompt_before_it_takes_one_again():
    workload = prompts.CODE.sampled(requests=30, max_tokens=7)
    assert [request.body["seed"] for request in workload.requests] == list(range(1, 31))
    assert [request.id for request in workload.requests[:13]] == [*(p.id for p in prompts.CODE.items), "code-01#13"]
    assert workload.requests[29].body["prompt"] == prompts.CODE.items[29 % 12].text
    assert (workload.draft_scored, workload.scored) == (True, True)


def test_draws_without_seeds_are_the_same_requests_otherwise():
    seeded, unseeded = (prompts.CODE.sampled(requests=14, seeded=seeded, logprobs=1) for seeded in (True, False))
    assert {request.seed for request in unseeded.requests} == {None}
    assert all("seed" not in request.body for request in unseeded.requests)
    assert [(r.id, r.asks) for r in unseeded.requests] == [(r.id, r.asks) for r in seeded.requests]


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 400))
def test_ids_and_seeds_of_draws_are_distinct_and_stable(count):
    workload = prompts.ALL.sampled(requests=count)
    assert len({request.id for request in workload.requests}) == count
    assert workload.requests == prompts.ALL.sampled(requests=400).requests[:count]


@pytest.mark.parametrize(
    "asked, name, body",
    [
        ({}, "chat-sampled", {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": 0.7, "top_p": 0.9}, "chat-sampled-t0.7-p0.9", {"temperature": 0.7, "top_p": 0.9}),
        ({"top_k": 20, "min_p": 0.1}, "chat-sampled-k20-m0.1", {"temperature": 1.0, "top_p": 1.0, "top_k": 20, "min_p": 0.1}),
        ({"name": "mine"}, "mine", {"temperature": 1.0}),
    ],
)
def test_a_sampled_workload_is_named_after_what_is_not_neutral(asked, name, body):
    workload = prompts.CHAT.sampled(**asked)
    assert workload.name == name
    assert len(workload.requests) == len(prompts.CHAT.items)
    assert all(body.items() <= request.body.items() for request in workload.requests)
    assert all(NEUTRAL & request.body.keys() <= body.keys() for request in workload.requests)


def test_few_prompts_are_asked_again_with_other_seeds():
    workload = prompts.CHAT.sampled(requests=5, prompts=3)
    assert [request.id for request in workload.requests[3:]] == [f"{workload.requests[0].id}#4", f"{workload.requests[1].id}#5"]
    assert workload.requests[3].body["messages"] == workload.requests[0].body["messages"]
    assert len({request.body["seed"] for request in workload.requests}) == 5


def test_log_probabilities_are_asked_for_in_each_routes_words():
    chat, code = prompts.CHAT.sampled(logprobs=1).requests[0].body, prompts.CODE.sampled(logprobs=0).requests[0].body
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 1)
    assert (code["logprobs"], "top_logprobs" in code) == (0, False)


def test_callers_have_the_last_word_on_traffic():
    assert not prompts.CHAT.sampled(draft_scored=False).draft_scored
    assert prompts.JSON_TASKS.structured(scored=True).scored
    assert not prompts.ALL.liveness(may_kill=False).may_kill
    assert prompts.SPEED.speed(concurrency=4).concurrency == 4
    assert prompts.CHAT.greedy(version=3, passes=2).version == 3


def test_structured_binds_every_prompt_to_its_own_schema_and_asks_for_any_object():
    workload = prompts.JSON_TASKS.structured()
    assert [request.id for request in workload.requests[:4]] == ["json-01", "json-01#object", "json-02", "json-02#object"]
    for prompt, bound, free in zip(prompts.JSON_TASKS.items, workload.requests[::2], workload.requests[1::2], strict=True):
        form = bound.body["response_format"]
        assert (form["type"], form["json_schema"]["name"]) == ("json_schema", prompt.schema)
        assert form["json_schema"]["schema"] == schemas.SCHEMAS[prompt.schema]
        assert free.body["response_format"] == {"type": "json_object"}
        assert "JSON" in prompt.text
        assert (bound.route, free.route) == (Route.CHAT, Route.CHAT)
    assert {prompt.schema for prompt in prompts.JSON_TASKS.items} == set(schemas.SCHEMAS)


def test_drawn_documents_are_of_every_prompt_and_kind_half_of_them_without_seeds():
    workload = prompts.JSON_TASKS.structured_draws(requests=200, take={Depth.STANDARD: 90})
    assert len({request.id for request in workload.requests}) == 200
    seeds = [request.seed for request in workload.at(Depth.STANDARD).requests]
    assert (seeds[::2], set(seeds[1::2])) == (list(range(1, 91, 2)), {None})
    asked = [request.asks for request in workload.requests]
    assert asked[:96:2] == asked[1:96:2]
    assert len(set(asked)) == 12 * len(schemas.DRAWN) == 48
    assert workload.scored is False
    assert [len(turn) for turn in workload.turns] == [100, 100]


@pytest.mark.parametrize("schema, name", [("order", "order"), ({"type": "object"}, "answer")])
def test_structured_takes_one_schema_for_all(schema, name):
    forms = [request.body["response_format"] for request in prompts.CHAT.structured(schema=schema).requests[::2]]
    assert {form["json_schema"]["name"] for form in forms} == {name}


def test_prompts_without_a_schema_take_ours_in_turn():
    names = [request.body["response_format"]["json_schema"]["name"] for request in prompts.CHAT.structured().requests[::2]]
    assert names[: len(schemas.SCHEMAS) + 1] == [*schemas.SCHEMAS, next(iter(schemas.SCHEMAS))]


def test_structured_needs_the_chat_route():
    with pytest.raises(ValueError, match="code has no prompt for the chat route"):
        prompts.CODE.structured()


VALID = {
    "weather": {"city": "Ulm", "sky": "rain", "degrees": -1.5, "windy": True},
    "ticket": {"priority": "high", "team": "network", "answered": False},
    "person": {"name": "A", "age": 3, "address": {"street": "S", "town": "T", "country": "SE"}, "email": None},
    "order": {"id": 1, "items": [{"product": "milk", "amount": 2}], "paid": True},
    "palette": {"colours": ["red", "blue"]},
    "reading": {"sensor": "a1", "values": [1, 2.5, -3]},
}


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_our_schemas_are_schemas_and_closed(name):
    Draft202012Validator.check_schema(schemas.SCHEMAS[name])
    validator = Draft202012Validator(schemas.SCHEMAS[name])
    assert validator.is_valid(VALID[name])
    assert not validator.is_valid({**VALID[name], "more": 1})
    for key in VALID[name]:
        assert not validator.is_valid({k: v for k, v in VALID[name].items() if k != key})


def test_the_ladder_has_a_rung_for_every_kind_and_ends_with_a_plain_request():
    workload = prompts.ALL.liveness()
    assert (workload.may_kill, workload.scored, workload.name) == (True, False, "all-liveness")
    bodies = {request.id: request.body for request in workload.requests}
    assert len(bodies) == len(crash_cases.CRASH_CASES) == len(workload.requests)
    assert [bodies[f"live-{name}-token{s}"]["max_tokens"] for name, s in (("one", ""), ("two", "s"), ("eight", "s"))] == [1, 2, 8]
    assert len(bodies["live-long-prompt"]["prompt"].split()) > 300
    assert bodies["live-two-choices"]["n"] == 2
    assert {"messages", "response_format"} <= bodies["live-json-object"].keys()
    assert workload.requests[-1].id == "live-plain-again"
    assert NEUTRAL.isdisjoint(bodies["live-plain-again"])


def test_the_ladder_can_be_climbed_with_few_prompts():
    assert len(prompts.SPEED.liveness().requests) == len(crash_cases.CRASH_CASES)


def test_speed_asks_one_client_for_full_length_answers():
    workload = prompts.SPEED.speed(max_tokens=64, passes=6)
    assert (workload.timed, workload.stream, workload.concurrency, workload.passes, workload.scored) == (True, True, 1, 6, False)
    (request,) = workload.requests
    assert request.body["ignore_eos"] is True
    assert request.body["messages"][0]["content"].startswith("Imagine you are planning a week-long vacation")
    assert request.body["temperature"] == 0.0


def test_every_workload_is_json_and_has_a_digest():
    made = [
        prompts.ALL.greedy(),
        prompts.ALL.sampled(requests=200),
        prompts.JSON_TASKS.structured(),
        prompts.ALL.liveness(),
        prompts.SPEED.speed(),
    ]
    for workload in made:
        assert json.loads(json.dumps([request.body for request in workload.requests])) == [request.body for request in workload.requests]
    assert len({workload.digest for workload in made}) == len(made)


def test_a_collection_tells_what_it_is():
    assert repr(prompts.CODE) == "<Prompts code: 12 code>"
    assert repr(prompts.ALL).endswith(" mixed>")
