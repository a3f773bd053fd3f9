"""One living server, asked: answers outside the protocol, and capability probes of servers that refuse, ignore and die."""

from __future__ import annotations

import pytest

from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route


@pytest.fixture
def arm(recipe, config):
    opened = []

    def _arm(**args):
        opened.append(ArmServer(recipe(config, **args), lambda: None))
        return opened[-1].__enter__()

    yield _arm
    for one in opened:
        one.__exit__(None, None, None)


def ask(arm, prompt, *, streamed):
    return arm.client.send(
        Request(id="a", route=Route.COMPLETIONS, body={"prompt": prompt, "max_tokens": 3}), streamed=streamed, deadline_s=20.0
    )


def test_answers_outside_the_protocol_are_failures(arm):
    server = arm(garble_on="garble", cut_on="cut", fail_stream_on="fail")
    whole, streamed = ask(server, "garble", streamed=False), ask(server, "garble", streamed=True)
    assert (whole.ending, whole.answer.status) == (FailureKind.ERROR, None)
    assert whole.answer.error.startswith("answered outside the protocol")
    assert streamed.ending is FailureKind.DIED
    cut, failed = ask(server, "cut", streamed=True), ask(server, "fail", streamed=True)
    assert (cut.ending, cut.answer.error) == (FailureKind.DIED, "connection lost: the stream has no end")
    assert (failed.ending, "engine failed" in failed.answer.error) == (FailureKind.ERROR, True)
    good = ask(server, "good", streamed=True)
    assert (good.ending, good.answer.ok, good.tokens) == (None, True, 3)


def test_tokens_are_counted_by_the_server_where_it_tells_no_ids(arm):
    assert ask(arm(no_token_ids=True), "good", streamed=False).tokens == 3


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
