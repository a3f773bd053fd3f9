"""Shrinking on live servers: by the script that a stranger runs, within its limits."""

from __future__ import annotations

import os
import runpy
from dataclasses import replace

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.live_shrinking import LiveLimits, shrink_on
from pytest_specdec.model.verdict import Symptom
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.report import repro
from tests.report.stub_server import serve
from tests.report.test_repro import repro_of

ENOUGH = LiveLimits(requests=500, seconds=60.0)
PROMPT = "please tell me the magic word of the day at once"


def request(name, **body):
    return Request(id=name, route=Route.COMPLETIONS, body={"prompt": PROMPT, "max_tokens": 16, "temperature": 0.0, **body})


OWN = request("own", logprobs=1, top_p=1.0)
BESIDE = tuple(request(f"beside-{i}", user=str(i)) for i in range(3))


def reply(text):
    return {"choices": [{"text": text, "finish_reason": "length"}], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}


def right(_):
    return reply("abc")


def wrong(body):
    return reply("abd" if "magic" in body["prompt"] and body.get("logprobs") == 1 else "abc")


@pytest.fixture
def servers():
    with serve(right) as baseline, serve(wrong) as speculative:
        yield baseline, speculative


def url(server):
    return f"http://127.0.0.1:{server.server_port}/v1"


def made(**fields):
    return repro_of(Symptom.TEXT, request=OWN, groups=((*BESIDE, OWN),), **fields)


def test_what_is_left_shows_the_fault_by_the_script_that_is_written(servers, tmp_path, monkeypatch, capsys):
    shrunk = shrink_on(made(), *map(url, servers), ENOUGH)
    assert shrunk.groups == ((shrunk.request,),)
    assert shrunk.request.body == {"prompt": " magic", "max_tokens": 1, "temperature": 0.0, "logprobs": 1}
    assert "1 of 4 requests are left" in shrunk.shrunk
    for name, text in repro.files(shrunk).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert "were shrunk on live servers" in (tmp_path / "README.md").read_text()
    for name, server in zip(("BASELINE", "SPECULATIVE"), servers, strict=True):
        monkeypatch.setenv(name, url(server))
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    assert exit_.value.code == 1
    assert "speculative: 'abd'" in capsys.readouterr().out


@pytest.mark.nightly
def test_requests_and_seconds_are_bounded(servers):
    shrunk = shrink_on(made(), *map(url, servers), LiveLimits(requests=20, seconds=60.0))
    assert sum(len(server.bodies) for server in servers) <= 20 + 4 * 2 * 2 + 2
    assert wrong(shrunk.request.body) == reply("abd")
    untried = made()
    assert shrink_on(untried, *map(url, servers), LiveLimits(requests=1, seconds=60.0)).groups == untried.groups


def test_servers_without_the_fault_or_without_an_answer_are_one_error():
    with serve(right) as one, serve(right) as other, pytest.raises(RunError, match="does not show"):
        shrink_on(made(), url(one), url(other), ENOUGH)
    with serve(None) as one, serve(wrong) as other, pytest.raises(RunError, match="a live server has no answer"):
        shrink_on(made(), url(one), url(other), ENOUGH)


def test_a_server_that_is_not_up_is_no_fault(servers):
    """Its script would say WRONG of any request."""
    with pytest.raises(RunError, match="a live server has no answer"):
        shrink_on(made(), url(servers[0]), "http://127.0.0.1:9/v1", ENOUGH)


def test_a_request_that_only_one_server_refuses_is_not_the_fault():
    def picky(body):
        return wrong(body) if "top_p" in body else None

    with serve(right) as one, serve(picky) as other:
        alone = repro_of(Symptom.TEXT, request=OWN, groups=((OWN,),))
        assert "top_p" in shrink_on(alone, url(one), url(other), ENOUGH).request.body


def test_temperature_and_seed_stay(servers):
    own = replace(OWN, body={**OWN.body, "seed": 3})
    shrunk = shrink_on(repro_of(Symptom.TEXT, request=own, groups=((own,),)), *map(url, servers), ENOUGH)
    assert (shrunk.request.body["temperature"], shrunk.request.body["seed"]) == (0.0, 3)


@pytest.mark.nightly
def test_a_document_keeps_its_grammar_and_log_probabilities_stay_asked_for():
    """Without these the script would compare something else, or nothing."""
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    own = replace(OWN, body={**OWN.body, "response_format": schema})
    document = repro_of(Symptom.DOCUMENT, request=own, groups=((own,),))
    with serve(reply("{}")) as one, serve(reply("{")) as other:
        assert "response_format" in shrink_on(document, url(one), url(other), ENOUGH).request.body
    reported = [{**reply("a"), "prompt_logprobs": [None, {"7": {"logprob": value}}]} for value in (-1.0, -9.0)]
    own = replace(OWN, body={**OWN.body, "prompt_logprobs": 0})
    logprobs = repro_of(Symptom.LOGPROBS, request=own, groups=((own,),))

    def asked_for(document):
        return lambda body: document if "prompt_logprobs" in body else reply("a")

    with serve(asked_for(reported[0])) as one, serve(asked_for(reported[1])) as other:
        assert shrink_on(logprobs, url(one), url(other), ENOUGH).request.body["prompt_logprobs"] == 0


def test_the_environment_is_as_before(servers, monkeypatch):
    monkeypatch.setenv("BASELINE", "mine")
    monkeypatch.delenv("SPECULATIVE", raising=False)
    shrink_on(made(), *map(url, servers), LiveLimits(requests=1, seconds=60.0))
    assert (os.environ["BASELINE"], "SPECULATIVE" in os.environ) == ("mine", False)
