"""The double of SGLang's server is as strict, and as lenient, as its sources say."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from pytest_specdec.engines.attach import Attach
from pytest_specdec.engines.optional import Recognising
from specdec_reference.engine import ReferenceEngine
from tests.engines.doubles import sglang, sglang_http
from tests.reference.asgi_client import Client

TARGET = ("--model-path", "target", "--context-length", "512")
DRAFTED = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "draft", "--speculative-num-steps", "3")
CHAIN = (*DRAFTED, "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
PROMPT = {"prompt": "def main():\n", "max_tokens": 12, "temperature": 0.0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0.0}


@contextmanager
def served(*arguments):
    args = sglang.resolved([*TARGET, *arguments])
    app = sglang_http.Served(ReferenceEngine(sglang.settings(args)), args).application()
    loop, ready = asyncio.new_event_loop(), Future()

    async def live():
        leave = asyncio.Event()
        async with app.router.lifespan_context(app):
            ready.set_result(leave)
            await leave.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    leave = ready.result(30)
    yield Client(app, loop)
    loop.call_soon_threadsafe(leave.set)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="module")
def speculating():
    with served("--enable-metrics", *CHAIN) as client:
        yield client


@pytest.mark.parametrize(
    "path,body,status",
    [
        ("/v1/completions", {**PROMPT, "no_such_field": 1}, 200),
        ("/v1/completions", {**PROMPT, "top_k": 0}, 400),
        ("/v1/completions", {**PROMPT, "top_k": None}, 400),
        ("/v1/completions", {**PROMPT, "temperature": "hot"}, 400),
        ("/v1/completions", {"max_tokens": 1}, 400),
        ("/v1/chat/completions", {**CHAT, "top_k": None}, 200),
        ("/v1/chat/completions", {**CHAT, "stream": True, "return_token_ids": True}, 400),
        ("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}, "no_such_field": 1}, 200),
        ("/generate", {"input_ids": [5], "sampling_params": {"max_tokens": 1}}, 400),
    ],
)
def test_a_field_is_taken_ignored_or_refused(path, body, status, speculating):
    assert speculating.ask(path, body)[0] == status


def test_a_refusal_is_flat(speculating):
    refusal = json.loads(speculating.ask("/v1/completions", {**PROMPT, "top_k": 0})[1])
    assert (refusal["object"], refusal["code"]) == ("error", 400)
    assert "top_k must be -1" in refusal["message"]


def test_ids_come_where_they_were_asked_for(speculating):
    plain, whole = speculating.complete(PROMPT, {**PROMPT, "return_token_ids": True})
    assert "token_ids" not in plain["choices"][0]
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"] == 12
    chat = speculating.chat("Hi", max_tokens=8, return_token_ids=True)["choices"][0]
    assert chat["response_token_ids"]
    assert chat["prompt_token_ids"]
    *_, end = speculating.stream("/v1/chat/completions", {**CHAT, "return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True})
    assert end["choices"] == []
    assert end["sglext"].keys() == {"input_ids", "output_ids"}


def test_an_answer_counts_its_verify_calls_where_it_is_asked_to(speculating):
    plain, counted = speculating.complete(PROMPT, {**PROMPT, "return_spec_tokens_details": True})
    assert "sglext" not in plain
    details = counted["sglext"]["spec_tokens_details"]
    assert details["spec_num_proposed_drafts"] == 3 * details["spec_verify_ct"] == 3 * sum(details["spec_correct_drafts_histogram"])
    single = speculating.complete({**PROMPT, "max_tokens": 1, "return_spec_tokens_details": True})
    assert "sglext" not in single, "the prefill's token needs no verify call"


def test_the_native_route_scores_a_prompt_behind_an_empty_first_entry(speculating):
    ids = speculating.complete({**PROMPT, "return_token_ids": True})["choices"][0]
    prompt, answer = ids["prompt_token_ids"], ids["token_ids"]
    body = {"input_ids": prompt + answer, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}, "return_logprob": True}
    scored = json.loads(speculating.ask("/generate", {**body, "logprob_start_len": len(prompt) - 1, "top_logprobs_num": 2})[1])["meta_info"]
    assert scored["input_token_logprobs"][0] == [None, prompt[-1], None]
    assert scored["input_top_logprobs"][0] is None
    assert [entry[1] for entry in scored["input_token_logprobs"][1:]] == answer
    assert [listed[0][1] for listed in scored["input_top_logprobs"][1:]] == answer, "greedy tokens are the most probable ones"
    assert "input_top_logprobs" not in json.loads(speculating.ask("/generate", {**body, "logprob_start_len": 0})[1])["meta_info"]


def test_metrics_and_server_info_tell_of_the_verify_calls(speculating):
    speculating.complete(PROMPT)
    assert speculating.counters()["sglang:spec_verify_calls_total"] > 0
    told = json.loads(speculating.get("/server_info")[1])
    assert told["version"] == "0.5.23"
    assert told["internal_states"][0]["avg_spec_accept_length"] > 1
    assert told["max_running_requests"] == sglang.RUNNING_WITH_SPECULATION


def test_its_engine_recognises_it_and_no_other_does(speculating):
    models = bytes(speculating.get("/v1/models")[1]).decode()
    known = [each for each in Attach().candidates() if isinstance(each, Recognising) and each.recognises({"/v1/models": models}.get)]
    assert [each.kind for each in known] == ["sglang"]


def test_health_takes_a_second(speculating, monkeypatch):
    slept, sleep = [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: slept.append(seconds) or sleep(0))
    assert speculating.get("/health")[0] == 200
    assert slept == [1]


def drawn(client, **body):
    return client.complete({"prompt": "Once upon", "max_tokens": 24, "temperature": 1.5, **body})["choices"][0]["text"]


def test_seeds_count_in_deterministic_inference_alone_where_even_no_seed_is_one():
    with served() as plain:
        assert len({drawn(plain, seed=1) for _ in range(4)}) > 1
        assert plain.get("/metrics")[0] == 404
    with served("--enable-deterministic-inference") as deterministic:
        assert len({drawn(deterministic, seed=1) for _ in range(4)}) == 1
        assert drawn(deterministic) == drawn(deterministic, seed=sglang_http.SEED_WITHOUT_ONE) != drawn(deterministic, seed=1)


@pytest.mark.parametrize(
    "arguments,error",
    [
        (("--speculative-algorithm", "EAGLE3"), ValueError),
        (DRAFTED, TypeError),
        ((*CHAIN, "--speculative-use-rejection-sampling"), NotImplementedError),
        (("--no-enable-metrics",), SystemExit),
    ],
)
def test_a_command_line_that_ends_the_start(arguments, error):
    with pytest.raises(error):
        sglang.resolved([*TARGET, *arguments])


def test_the_stand_in_for_python_names_the_release(tmp_path):
    told = subprocess.run([sglang.python(tmp_path), "-c", "whatever asks"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == sglang_http.VERSION
