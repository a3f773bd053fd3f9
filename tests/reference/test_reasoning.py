"""Reasoning: a chat answer in two parts, whole and streamed, and a grammar that binds the second alone."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_specdec.errors import EngineError
from specdec_reference.cli import ServerSettings
from specdec_reference.engine import ReferenceEngine
from specdec_reference.faults.catalogue import rules
from specdec_reference.openai_request import EngineRequest
from specdec_reference.reasoning import GrammarAfterReasoning, ReasoningSplit
from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served

ASKED = "Explain to a ten-year-old why the moon seems to follow a moving car."
BODY = {"temperature": 0, "max_tokens": 80, "return_token_ids": True}
END = '":'
SCHEMA = {"type": "object", "properties": {"sky": {"enum": ["clear", "rain"]}}, "required": ["sky"], "additionalProperties": False}
BOUND = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA}}


@pytest.fixture(scope="module", params=[None, PROBABILISTIC, NGRAM], ids=["baseline", "draft", "ngram"])
def server(request):
    with served(request.param, reasoning_end=END) as client:
        yield client


def parts(answer):
    message = answer["choices"][0]["message"]
    return message.get("reasoning", ""), message["content"]


def test_an_answer_comes_in_two_parts_that_are_the_plain_answer(server, baseline):
    plain, reasoned = baseline.chat(ASKED, **BODY), server.chat(ASKED, **BODY)
    reasoning, text = parts(reasoned)
    assert reasoning.endswith(END)
    assert text
    assert reasoning.count(END) == 1
    assert reasoning + text == parts(plain)[1]
    assert reasoned["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    counted = reasoned["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < counted < reasoned["usage"]["completion_tokens"]
    assert "completion_tokens_details" not in plain["usage"]


def test_a_stream_has_the_same_parts(server):
    body = {"messages": [{"role": "user", "content": ASKED}], **BODY}
    deltas = [choice["delta"] for chunk in server.stream("/v1/chat/completions", body) for choice in chunk["choices"]]
    streamed = tuple("".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content"))
    assert streamed == parts(server.chat(ASKED, **BODY))


def test_switched_off_it_is_all_text(server, baseline):
    off = server.chat(ASKED, **BODY, chat_template_kwargs={"enable_thinking": False})
    assert parts(off) == parts(baseline.chat(ASKED, **BODY))
    assert "completion_tokens_details" not in off["usage"]


def test_a_completion_has_no_reasoning(server):
    assert "reasoning" not in json.dumps(server.complete({"prompt": "Once upon", "max_tokens": 40}))


def test_an_answer_cut_before_the_end_of_its_reasoning_has_no_text(server):
    answer = server.chat(ASKED, **{**BODY, "max_tokens": 2})
    reasoning, text = parts(answer)
    assert (bool(reasoning), text, answer["choices"][0]["finish_reason"]) == (True, "", "length")


@pytest.mark.examples(2)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_binds_what_comes_behind_the_reasoning(server, temperature):
    for seed in range(4):
        body = {"temperature": temperature, "seed": seed, "max_tokens": 300, "response_format": BOUND}
        answer = server.chat(ASKED, **body)
        reasoning, text = parts(answer)
        if answer["choices"][0]["finish_reason"] == "stop":
            assert reasoning.endswith(END)
            assert json.loads(text)["sky"] in {"clear", "rain"}
        else:
            assert not text


@pytest.mark.examples(2)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_budget_forces_the_end_of_the_reasoning_at_any_place_of_a_window(server, temperature):
    asked = "Change nothing in this code:\n\ndef area(width, height):\n    return width * height\n"
    counts = {}
    for budget in (-1, 0, 3, 4, 5):
        answer = server.chat(asked, temperature=temperature, seed=1, max_tokens=9, thinking_token_budget=budget)
        counts[budget] = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    free = counts.pop(-1)
    assert counts == {budget: min(free, budget + 1) for budget in counts}


def test_a_budget_without_reasoning_is_refused(server, baseline):
    body = {"messages": [{"role": "user", "content": "a"}], "thinking_token_budget": 3}
    assert baseline.refused(body, "/v1/chat/completions")[1]["param"] == "thinking_token_budget"
    assert server.refused({**body, "thinking_token_budget": -2}, "/v1/chat/completions")[1]["param"] == "thinking_token_budget"


@pytest.mark.parametrize(
    "fault, drafted, positions",
    [
        ("", [7, 7, 7], [2, 3]),
        ("", [7, 9, 7], []),
        ("", [7, 7, 9], [2]),
        ("", [], []),
        ("thinking-budget-without-drafts", [7, 7, 7], []),
        ("thinking-budget-by-step", [7, 7, 7], []),
        ("thinking-budget-counts-drafts", [7, 7, 7], [0, 1, 2, 3]),
    ],
)
def test_the_end_is_forced_from_the_budget_on_up_to_an_end_among_the_drafts(fault, drafted, positions):
    split = ReasoningSplit(9, budget=4)
    split.take(1, 1)
    split.take(2, 2)
    assert rules(fault, speculating=True).force_end(split, drafted) == positions


def test_faults_of_a_budget_force_the_end_in_the_next_step():
    split = ReasoningSplit(9, budget=0)
    assert rules("thinking-budget-by-step", speculating=True).force_end(split, [7]) == [0, 1]
    assert rules("thinking-budget-without-drafts", speculating=True).force_end(split, []) == [0]


def test_arguments_of_a_template_that_nothing_honours_are_refused(server):
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"enable_thinkin": False}}
    status, error = server.refused(body, "/v1/chat/completions")
    assert (status, error["param"]) == (400, "chat_template_kwargs")
    assert "did you mean enable_thinking?" in error["message"]


def test_reasoning_that_would_end_at_several_tokens_is_wrong_usage():
    with pytest.raises(EngineError, match="reasoning ends at one token"):
        ReferenceEngine(ServerSettings(model="target", reasoning_end="the end of it all"))


def test_a_split_holds_however_the_text_is_released():
    split = ReasoningSplit(9)
    for characters, token in enumerate([1, 2, 9, 9, 3], 1):
        split.take(token, characters)
    assert (split.tokens, split.characters) == (3, 3)
    assert split.split_whole("abcde") == ("abc", "de")
    assert [split.split_next(text) for text in ("ab", "cd", "e")] == [("ab", ""), ("c", "d"), ("", "e")]


class Counting:
    """A grammar of the tokens 0, 1, 2, ... in this order."""

    def __init__(self):
        self.at = 0

    def mask(self):
        return np.arange(5) == self.at

    def advance(self, token):
        assert token == self.at
        self.at += 1

    def retreat(self, count):
        self.at -= count

    def allowed_prefix(self, tokens):
        return tokens[: next((i for i, token in enumerate(tokens) if token != self.at + i), len(tokens))]


def test_a_grammar_begins_behind_the_last_token_of_the_reasoning_and_goes_back_before_it():
    inner = Counting()
    grammar = GrammarAfterReasoning(inner, 3, 5, (4,))
    assert list(grammar.mask()) == [True, True, True, True, False]
    assert grammar.allowed_prefix((2, 3, 0, 1, 1)) == (2, 3, 0, 1)
    assert grammar.allowed_prefix((2, 4, 3)) == (2,)
    assert grammar.allowed_prefix((2, 2)) == (2, 2)
    for token in (2, 3, 0, 1):
        grammar.advance(token)
    assert inner.at == 2
    grammar.retreat(1)
    assert (inner.at, list(grammar.mask())) == (1, [False, True, False, False, False])
    grammar.retreat(2)
    assert (inner.at, list(grammar.mask())) == (0, [True, True, True, True, False])
    assert grammar.allowed_prefix((0, 3, 0)) == (0, 3, 0)


@pytest.mark.parametrize("ended, counted", [(False, 8), (True, 6)])
def test_what_a_limit_discards_counts_as_reasoning_only_while_that_goes_on(ended, counted):
    """The prefill's token and two steps of three and four tokens, of which a limit left six."""
    split = ReasoningSplit(9)
    for token in (1, 2, 3, 4, 5, 9 if ended else 6):
        split.take(token, token)
    request = EngineRequest(prompt=(1, 2), max_tokens=6)
    sequence = SimpleNamespace(request=request, reasoning=split, accepted=[2, 3], completion_tokens=6)
    usage = rules("reasoning-counts-discarded", speculating=True).usage([sequence])
    assert (usage.completion, split.tokens) == (6, counted)
