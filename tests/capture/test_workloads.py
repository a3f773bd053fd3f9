"""Requests as a config asks them: template arguments and effort over chat, room for reasoning where a document comes after it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec import prompts
from pytest_specdec.capture.workloads import add_reasoning, apply_config, fill_prompts
from pytest_specdec.config.config import Reasoning
from pytest_specdec.errors import BootError
from pytest_specdec.files import run_documents
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.prompts import context, responses
from pytest_specdec.prompts.long import LONG_CONTEXTS
from pytest_specdec.prompts.own import OwnPrompt

ON = Reasoning(tokens=1000, effort=("low",), template=({"enable_thinking": True},))
BOUND = {"response_format": {"type": "json_object"}}


def chat(**body):
    return Request(id="a", route=Route.CHAT, body={"messages": [], "max_tokens": 50, **body})


def test_a_chat_request_gets_template_arguments_and_effort_and_keeps_its_limit():
    asked = {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}
    assert add_reasoning(chat(), ON).body == {"messages": [], "max_tokens": 50, **asked}


def test_a_conversation_asks_alike_by_both_routes(config):
    both = Reasoning(tokens=1000, effort=("low", "high"), template=({"enable_thinking": True}, {"enable_thinking": False}))
    requests = apply_config(responses.pairs(), replace(config, reasoning=both), ()).by_id
    for name, request in requests.items():
        if request.route is Route.RESPONSES:
            asked = requests[name.replace("/responses", "/chat")].body
            assert request.body["reasoning"] == {"effort": asked["reasoning_effort"]}
            assert request.body["chat_template_kwargs"] == asked["chat_template_kwargs"]
            assert request.body["max_output_tokens"] == asked["max_tokens"]
    assert len({request.body["chat_template_kwargs"]["enable_thinking"] for request in requests.values()}) == 2


def test_what_a_request_asks_itself_stays():
    body = add_reasoning(chat(chat_template_kwargs={"enable_thinking": False, "x": 1}, reasoning_effort="high"), ON).body
    assert (body["chat_template_kwargs"], body["reasoning_effort"]) == ({"enable_thinking": False, "x": 1}, "high")


@pytest.mark.parametrize(
    "body, limits",
    [
        (BOUND, (1050, None)),
        ({**BOUND, "max_completion_tokens": 7}, (1050, 1007)),
        ({"tools": [{}]}, (1050, None)),
        ({"response_format": {"type": "text"}}, (50, None)),
        ({}, (50, None)),
    ],
)
def test_a_document_gets_room_behind_the_reasoning(body, limits):
    asked = add_reasoning(chat(**body), ON).body
    assert (asked.get("max_tokens"), asked.get("max_completion_tokens")) == limits


def test_without_reasoning_and_off_the_chat_route_nothing_changes():
    completion = Request(id="a", route=Route.COMPLETIONS, body={"prompt": "x", "max_tokens": 5, **BOUND})
    assert add_reasoning(completion, ON) is completion
    assert add_reasoning(chat(**BOUND), Reasoning()).body == chat(**BOUND).body


def test_reasoning_switched_off_gives_no_room():
    body = add_reasoning(chat(**BOUND), Reasoning(template=({"enable_thinking": False},))).body
    assert (body["max_tokens"], body["chat_template_kwargs"]) == (50, {"enable_thinking": False})


def test_template_arguments_leave_a_draw_unprocessed():
    assert add_reasoning(chat(temperature=1.0), ON).unprocessed


def test_a_workload_gets_the_prompts_of_the_config_and_they_get_its_reasoning(config):
    mine = OwnPrompt(id="mine", content={"messages": []}, schema={"type": "object"}, max_tokens=30)
    workload = apply_config(prompts.JSON_TASKS.structured(max_tokens=20), replace(config, reasoning=ON), (mine,))
    assert [request.body["max_tokens"] for request in workload.requests[:2]] == [1030, 1020]
    assert all(request.body["chat_template_kwargs"] == {"enable_thinking": True} for request in workload.requests)


BOTH = Reasoning(effort=("low", "high"), template=({"enable_thinking": True}, {"enable_thinking": False}))


def test_of_two_ways_to_ask_every_prompt_has_one_and_keeps_it(config):
    """Requests that share a conversation are compared with each other, so they are asked alike."""
    users = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    system, more = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "…"}
    said = [[users[0]], [system, users[1]], [users[0], more, users[2]], [users[2]], [users[1]]]
    requests = (
        *(replace(chat(messages=each), id=str(n)) for n, each in enumerate(said)),
        Request(id="5", route=Route.COMPLETIONS, body={"prompt": "x"}),
    )
    workload = replace(prompts.JSON_TASKS.structured(max_tokens=20), requests=requests)
    asked = [request.body for request in apply_config(workload, replace(config, reasoning=BOTH), ()).requests]
    assert [body["chat_template_kwargs"]["enable_thinking"] for body in asked[:5]] == [True, False, True, True, False]
    assert [body["reasoning_effort"] for body in asked[:5]] == ["low", "high", "low", "low", "high"]
    assert asked[5] == {"prompt": "x"}


def test_every_suite_that_talks_asks_both_ways(config):
    for workload in (prompts.JSON_TASKS.structured(max_tokens=20), prompts.CHAT.greedy(max_tokens=20)):
        asked = [request.body for request in apply_config(workload, replace(config, reasoning=BOTH), ()).requests]
        assert {body["chat_template_kwargs"]["enable_thinking"] for body in asked} == {True, False}


@pytest.mark.parametrize(
    "args, baseline, limit",
    [
        ({"max-model-len": 1024}, {}, 1024),
        ({"--max_model_len": "2048"}, {}, 2048),
        ({"max-model-len": 1024}, {"max-model-len": 512}, 512),
        ({}, {"max-model-len": 512}, None),
        ({"max-model-len": "8k"}, {}, None),
        ({"max-model-len": True}, {}, None),
        ({}, {}, None),
    ],
)
def test_requests_at_the_context_limit_take_it_from_the_arguments_of_every_arm(config, args, baseline, limit):
    stated = replace(config, engine=replace(config.engine, args=args), baseline=replace(config.baseline, args=baseline))
    filled = context.EDGES if limit is None else context.fitted(context.EDGES, limit)
    assert apply_config(context.EDGES, stated, ()).requests == filled.requests


class MortalArm:
    """A server of 4,096 tokens that is down, or dies of the first requests for token ids."""

    lost = ""
    recipe = SimpleNamespace(setup=SimpleNamespace(attached=""), log="servers/0-draft-k3.log")

    def __init__(self, *, deaths, restarts=3, made=True):
        self.running, self.deaths, self.restarts, self.made = not deaths, deaths, restarts, made

    def ensure_running(self):
        if not self.running and self.restarts:
            self.running, self.restarts = True, self.restarts - 1
        return self.running

    @property
    def client(self):
        return self

    def log_tail(self):
        return ("it died",)

    def prompt_token_ids(self, request):
        self.running = self.deaths <= 1
        self.deaths -= 1
        return tuple(map(ord, request.body["prompt"])) if self.running and self.made else ()

    def wait_for_end(self):
        return "" if self.running else "killed by signal 11"


@pytest.fixture
def fill(directory, monkeypatch):
    """Fill long contexts on a server, and return the types of the prompts written into the run."""
    monkeypatch.setattr("pytest_specdec.capture.server.context_limit.of", lambda arm: 4096 * arm.running)

    def _fill(arm):
        fill_prompts(LONG_CONTEXTS, directory, SimpleNamespace(workload=lambda _: LONG_CONTEXTS), arm)
        written = run_documents.read_workload(directory, SimpleNamespace(), LONG_CONTEXTS.name)
        return {type(request.body["prompt"]) for request in written.requests if request.id != "short"}

    return _fill


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_server_that_is_down_is_started_before_it_makes_the_token_ids_of_prompts(fill, deaths):
    """With one death it is down before, with two it dies of the first request too."""
    assert fill(MortalArm(deaths=deaths)) == {list}


def test_prompts_are_texts_only_where_a_server_that_runs_makes_no_ids(fill):
    assert fill(MortalArm(deaths=0, made=False)) == {str}


@pytest.mark.parametrize("deaths, restarts", [(1, 0), (9, 3)])
def test_a_server_that_is_gone_decides_nothing_about_the_prompts(fill, directory, deaths, restarts):
    with pytest.raises(BootError, match="died") as caught:
        fill(MortalArm(deaths=deaths, restarts=restarts))
    assert caught.value.where == "servers/0-draft-k3.log"
    assert not directory.workload(LONG_CONTEXTS.name).exists()
