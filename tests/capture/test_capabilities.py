"""Capabilities: probes of servers that refuse, ignore and die, and what is made of their log-probabilities."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.config.config import Reasoning
from pytest_specdec.engines.protocol import COMPLETIONS
from pytest_specdec.model.captured import CHAT_ROUTE, FeatureSupport
from pytest_specdec.model.transcript import Answer, Choice, ScoringRoute
from tests.capture.test_scoring import Server, listed


@pytest.fixture
def arm(recipe, config):
    opened = []

    def _arm(**args):
        opened.append(ArmServer(recipe(config, **args), lambda: None))
        return opened[-1].__enter__()

    yield _arm
    for one in opened:
        one.__exit__(None, None, None)


def test_a_refused_feature_is_not_an_ignored_one(arm):
    found = CapabilityProbe(arm(refuse_fields="top_k,seed,response_format,stop,prompt_logprobs"), 7).run()
    refused = {"top_k", "top_p", "seed", "stop", "json_object", "json_schema", "prompt_logprobs", "continuations"}
    assert {feature for feature, support in found.support.items() if support is FeatureSupport.REFUSED} == refused
    assert (found.support["token_ids"], found.raw_logprobs, found.vocabulary) == (FeatureSupport.HONOURED, True, 7)


def test_a_server_without_token_ids_leaves_open_what_needs_them(arm):
    found = CapabilityProbe(arm(no_token_ids=True), 0).run()
    assert found.support["token_ids"] is FeatureSupport.IGNORED
    assert found.support["prompt_logprobs"] is FeatureSupport.UNKNOWN
    assert found.raw_logprobs


def test_a_server_that_fails_on_scoring_does_not_refuse_it(arm):
    found = CapabilityProbe(arm(die_on_scoring=True), 0).run()
    assert found.support["token_ids"] is FeatureSupport.HONOURED
    assert found.support["prompt_logprobs"] is FeatureSupport.UNKNOWN
    assert not found.unscorable


def test_a_probe_ends_with_the_server_and_leaves_the_rest_unknown(arm):
    found = CapabilityProbe(arm(die_on="Say hello"), 0).run()
    assert found.support["top_k"] is FeatureSupport.HONOURED
    assert found.support["json_object"] is found.support["json_schema"] is FeatureSupport.UNKNOWN
    nothing = CapabilityProbe(arm(die_on="Once upon"), 0).run()
    assert set(nothing.support.values()) == {FeatureSupport.UNKNOWN}


def test_conversations_that_are_sent_to_another_route_are_listed(arm, monkeypatch):
    server = arm()
    assert CHAT_ROUTE not in CapabilityProbe(server, 0).run().support
    monkeypatch.setattr(type(server.recipe.dialect), "path", lambda *_: COMPLETIONS)
    assert CapabilityProbe(server, 0).run().support[CHAT_ROUTE] is FeatureSupport.IGNORED


def test_a_format_that_the_reasoning_left_no_room_for_is_unknown(arm):
    found = CapabilityProbe(arm(reasoning="reasoning", reasoning_tokens=99), 0).run()
    assert found.support["json_object"] is found.support["json_schema"] is FeatureSupport.UNKNOWN
    found = CapabilityProbe(arm(reasoning="reasoning", reasoning_tokens=99), 0, Reasoning(tokens=90)).run()
    assert found.support["json_object"] is FeatureSupport.IGNORED


def test_chat_is_probed_as_the_config_asks_for_reasoning(arm):
    found = CapabilityProbe(arm(refuse_fields="chat_template_kwargs"), 0, Reasoning(template=({"enable_thinking": False},))).run()
    assert found.support["json_object"] is found.support["chat_logprobs"] is FeatureSupport.REFUSED
    assert found.support["logprobs"] is FeatureSupport.HONOURED


def prompt_listed(*beside):
    """Every prompt token's own log-probability, and those of ``beside``."""

    def reply(prompt):
        lists = [{str(token): {"logprob": math.log(0.5), "rank": 1}, **{str(t): {"logprob": -2.0} for t in beside}} for token in prompt]
        return {"choices": [{"prompt_logprobs": lists}]}

    return reply


@pytest.mark.parametrize("beside, support", [((), FeatureSupport.IGNORED), ((99, 98, 97, 96), FeatureSupport.HONOURED)])
def test_a_list_of_the_scored_token_alone_is_no_route_to_scores(beside, support):
    server = Server(prompt_listed(*beside))
    server.running = True
    assert CapabilityProbe(server, 4096)._try_scoring(warm(()), ScoringRoute.PROMPT_LOGPROBS) is support


HALF, UNLISTED = math.log(0.5), -7.0


def warm(reported):
    """Three tokens, of which the second is nowhere in the list."""
    choice = Choice(text="abc", token_ids=(10, 99, 12), logprobs=reported, finish_reason="length")
    return Answer(request_id="probe", status=200, prompt_token_ids=(1, 2), choices=(choice,))


@pytest.mark.parametrize(
    "reported,raw",
    [
        ((HALF, UNLISTED, HALF), True),
        ((HALF + 0.1, UNLISTED, HALF - 0.15), True),  # more noise than is ever met
        ((1.05 * HALF, UNLISTED, 1.05 * HALF), True),  # a scorer that leans
        ((-0.31, UNLISTED, -0.31), False),
        ((-0.31 + 0.1, UNLISTED, -0.31 - 0.1), False),
        ((-0.31, -math.inf, -0.31), False),
        ((), True),
        (None, True),
    ],
)
def test_log_probabilities_are_judged_by_the_listed_tokens(reported, raw):
    server = Server(listed)
    server.running = True
    assert CapabilityProbe(server, 4096)._reports_raw_logprobs(warm(reported), ScoringRoute.CONTINUATIONS) is raw
