"""Each fault of structured output and of reported log-probabilities shows in answers, and in none that it spares."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.judge.structured.output_formats import formats
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.prompts.graded_schemas import GRADED
from tests.reference.asgi_client import PROBABILISTIC, served

FLAGS = {"response_format": next(one.bound for one in GRADED if one.name == "twelve-flags")}
OBJECT = {"response_format": {"type": "json_object"}}
REGEX = {"structured_outputs": {"regex": "(ha){2,6}!"}}
CHOICE = {"structured_outputs": {"choice": ["yes", "no", "maybe so"]}}
SAYING = {"temperature": 0, "max_tokens": 96}


def fault_in(client, body, *, stream=False, **more):
    """What is wrong with an answer that ``body`` binds, as the judge reads it."""
    asked = {**SAYING, **body, **more}
    wanted = formats([Request(id="r", route=Route.CHAT, body=asked)])["r"]
    if stream:
        chunks = client.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say it."}], **asked})
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        text, finish = "".join(choice["delta"]["content"] for choice in choices), choices[-1]["finish_reason"]
    else:
        choice = client.chat("Say it.", **asked)["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    return wanted.read(text, cut=finish == "length").fault


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault, red, spared", [
    ("grammar-skipped", FLAGS, {}),
    ("grammar-bonus-unmasked", FLAGS, {}),
    ("grammar-mask-late", FLAGS, {}),
    ("grammar-not-advanced", FLAGS, {}),
    ("grammar-rollback-short", FLAGS, {}),
    ("json-object-array", OBJECT, FLAGS),
    ("regex-prefix-only", REGEX, CHOICE),
    ("choice-with-tail", CHOICE, REGEX),
    ("document-cut-off", FLAGS, CHOICE),
    ("grammar-only-streamed", FLAGS, {}),
])  # fmt: skip
def test_a_fault_of_grammars_breaks_the_answers_that_it_says(fault, red, spared):
    with served(PROBABILISTIC) as client:
        assert not fault_in(client, red)
    with served(PROBABILISTIC, fault=fault) as client:
        assert fault_in(client, red)
        assert not (spared and fault_in(client, spared))


@pytest.mark.parametrize("fault, streamed", [("grammar-only-streamed", True), ("grammar-only-unstreamed", False)])
def test_a_grammar_that_is_enforced_one_way_only_is_enforced_that_way(fault, streamed):
    with served(PROBABILISTIC, fault=fault) as client:
        assert not fault_in(client, FLAGS, stream=streamed)
        assert fault_in(client, FLAGS, stream=not streamed)


def test_a_stuck_grammar_says_nothing_but_white_space():
    with served(PROBABILISTIC, fault="grammar-stuck") as client:
        text = client.chat("Say it.", **SAYING, **FLAGS)["choices"][0]["message"]["content"]
    assert len(text) - len(text.rstrip()) > 60


def test_a_neighbours_grammar_is_that_of_the_request_before():
    with served(PROBABILISTIC, fault="grammar-before") as client:
        client.chat("Say it.", **SAYING, **CHOICE)
        assert client.chat("Say it.", **SAYING, **REGEX)["choices"][0]["message"]["content"] in {"yes", "no", "maybe so"}


@pytest.mark.parametrize("fault", ["grammar-off-reasoning", "grammar-end-missed"])
def test_a_grammar_that_is_lost_behind_reasoning_holds_where_nothing_reasons(fault):
    asked = {**SAYING, **FLAGS, "max_tokens": 128}
    with served(PROBABILISTIC, fault=fault, reasoning_end='":') as client:
        for seed in range(6):
            plain = client.chat("Say it.", **{**asked, "temperature": 1, "seed": seed, "chat_template_kwargs": {"enable_thinking": False}})
            assert json.loads(plain["choices"][0]["message"]["content"])
        texts = [
            client.chat("Say it.", **{**asked, "temperature": 1, "seed": seed})["choices"][0]["message"]["content"] for seed in range(6)
        ]
    assert any(not text.lstrip().startswith('{"p01') for text in texts if text)


def test_a_500_comes_of_any_object_and_nothing_else():
    with served(PROBABILISTIC, fault="json-object-error") as client:
        assert not fault_in(client, FLAGS)
        with pytest.raises(RuntimeError, match="unexpected keyword"):
            client.chat("Say it.", **SAYING, **OBJECT)


def test_a_grammar_that_cannot_be_compiled_kills(monkeypatch):
    killed = []
    monkeypatch.setattr("os.kill", lambda *call: killed.append(call))
    with served(PROBABILISTIC, fault="die-on-bad-grammar") as client:
        assert not fault_in(client, REGEX)
        assert not killed
        client.refused({"prompt": "x", "structured_outputs": {"regex": "("}})
    assert [signal for _, signal in killed] == [9]


TOLD = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 32, "logprobs": 2, "ignore_eos": True, "prompt_logprobs": 0}


def told(fault="", **more):
    with served(PROBABILISTIC, **({"fault": fault} if fault else {})) as client:
        return client.complete({**TOLD, **more})["choices"][0]


@pytest.fixture(scope="module")
def right():
    return told()


@pytest.mark.parametrize("fault, wrong", [
    ("logprobs-zero", lambda values, own: set(values[1:]) == {0.0}),
    ("logprobs-first-only", lambda values, own: 0.0 in values and values != own),
    ("logprobs-constant", lambda values, own: set(values[1:]) == {-1.0}),
    ("logprobs-none-accepted", lambda values, own: None in values),
    ("logprobs-last-only", lambda values, own: len(values) < len(own)),
    ("logprobs-shifted", lambda values, own: sum(values) == pytest.approx(sum(own), abs=1e-3) and values != pytest.approx(own, abs=1e-3)),
    ("report-warm-logprobs", lambda values, own: values != pytest.approx(own, abs=1e-2)),
    ("logprobs-not-streamed", lambda values, own: values == pytest.approx(own, abs=1e-4)),
])  # fmt: skip
def test_a_fault_of_log_probabilities_leaves_the_tokens_alone(fault, wrong, right):
    choice = told(fault)
    assert choice["text"] == right["text"]
    assert wrong(choice["logprobs"]["token_logprobs"], right["logprobs"]["token_logprobs"])


def test_streams_without_log_probabilities_have_those_of_the_first_token_only():
    with served(PROBABILISTIC, fault="logprobs-not-streamed") as client:
        chunks = client.stream("/v1/completions", {name: value for name, value in TOLD.items() if name != "prompt_logprobs"})
    assert sum(len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks if chunk["choices"]) == 1


@pytest.mark.parametrize("fault", ["top-logprobs-fewer", "top-logprobs-unsorted", "top-logprobs-of-next"])
def test_a_fault_of_lists_leaves_the_values_alone(fault):
    right, choice = told(logprobs=5), told(fault, logprobs=5)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(right["logprobs"]["token_logprobs"], abs=1e-4)
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] != [list(top) for top in right["logprobs"]["top_logprobs"]]


def values_of_prompt(choice):
    return [next(iter(entry.values()))["logprob"] for entry in choice["prompt_logprobs"] if entry]


@pytest.mark.parametrize("tokens, wrong", [(15, False), (16, True), (17, False), (32, True)])
def test_prompts_that_fill_their_blocks_report_noise_for_the_last_one(tokens, wrong):
    prompt = {"prompt": list(range(40, 40 + tokens)), "max_tokens": 2}
    own, faulty = (values_of_prompt(told(fault, **prompt)) for fault in ("", "prompt-logprobs-blocks"))
    assert (faulty[-8:] != pytest.approx(own[-8:], abs=1e-3)) == wrong
    assert faulty[:-16] == pytest.approx(own[:-16], abs=1e-3)


def test_shifted_log_probabilities_of_a_prompt_are_of_one_position_early(right):
    assert values_of_prompt(told("prompt-logprobs-shifted")) != pytest.approx(values_of_prompt(right), abs=1e-3)
