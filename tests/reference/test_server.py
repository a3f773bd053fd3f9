"""What the server answers, whole and streamed, with each way of speculating and with none."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specdec_reference import checkpoint, model
from specdec_reference.drafters import lookup
from tests.reference.asgi_client import served

CODE = "def main():\n"
PROMPTS = (
    CODE,
    "import os\nimport sys\n",
    "class Reader:\n",
    "for i in range(10):\n",
    "<|im_start|>user\nWrite JSON.<|im_end|>\n<|im_start|>assistant\n",
)


def greedy(prompt=CODE, **body):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 48, "return_token_ids": True, **body}


def sampled(prompt=CODE, **body):
    return {"prompt": prompt, "max_tokens": 24, "return_token_ids": True, "seed": 3, **body}


def ids(answer):
    return answer["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def distribution():
    """Raw log-probabilities at every position, from the model alone."""
    decoder = model.load(checkpoint.read("target"), 320)

    def of(tokens):
        logits = decoder.logits(decoder.forward(np.array([tokens]), decoder.cache(1), np.zeros(1, np.intp))).astype(np.float64)
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    return of


@pytest.mark.examples(2)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_speculative_greedy_token_is_the_baselines(baseline, probabilistic, greedy_draft, ngram, prompt):
    expected = ids(baseline.complete(greedy(prompt)))
    for variant in (probabilistic, greedy_draft, ngram):
        assert ids(variant.complete(greedy(prompt))) == expected


def test_greedy_is_the_largest_logit(baseline, distribution):
    answer = baseline.complete(greedy())
    tokens = answer["choices"][0]["prompt_token_ids"] + ids(answer)
    assert distribution(tokens)[len(tokens) - 49 : -1].argmax(axis=1).tolist() == ids(answer)


@pytest.mark.examples(2)
def test_a_seed_repeats_in_any_batch(server):
    alone = server.complete(sampled(temperature=0.8, top_p=0.9))
    others = [
        sampled(p, seed=i, temperature=t, top_k=k, max_tokens=5 + 9 * i)
        for i, (p, t, k) in enumerate(zip(PROMPTS, (0, 1, 0.5, 2, 1), (0, 0, 5, 0, 1), strict=True))
    ]
    together = server.complete(*others[:3], sampled(temperature=0.8, top_p=0.9), *others[3:])
    assert ids(together[3]) == ids(alone)


def test_without_a_seed_requests_differ(server):
    first, second = (ids(server.complete(sampled(seed=None))) for _ in range(2))
    assert first != second


def test_choices_of_one_request_differ_and_repeat(server):
    answers = [server.complete(sampled(n=3)) for _ in range(2)]
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    assert answers[0]["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in answers[0]["choices"])


@pytest.mark.examples(2)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_max_tokens_cuts_a_window(server, limit):
    whole, cut = server.complete(greedy()), server.complete(greedy(max_tokens=limit))
    assert ids(cut) == ids(whole)[:limit]
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", limit)


def test_the_end_of_sequence_token_is_an_id_and_no_text(server):
    answer = server.complete(greedy(PROMPTS[-1]))
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["token_ids"][-1]) == ("stop", None, 2)
    assert "<|im_end|>" not in choice["text"]


def test_ignore_eos_goes_on(server):
    answer = server.complete(greedy(PROMPTS[-1], ignore_eos=True))
    assert 2 in ids(answer)
    assert len(ids(answer)) == 48


@pytest.mark.examples(2)
@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_wherever_it_straddles(server, length, stream):
    answer = server.complete(greedy())
    whole = answer["choices"][0]["text"]
    for at in (4, 17, 46):
        stop = whole[at : at + length]
        body = greedy(stop=[stop, "never seen"])
        if stream:
            choices = [chunk["choices"][0] for chunk in server.stream("/v1/completions", body)]
            text, tokens, last = "".join(c["text"] for c in choices), [i for c in choices for i in c["token_ids"]], choices[-1]
        else:
            last = server.complete(body)["choices"][0]
            text, tokens = last["text"], last["token_ids"]
        assert text == whole[: whole.index(stop)]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        assert tokens == ids(answer)[: len(tokens)]


@pytest.mark.examples(2)
def test_a_stream_is_the_answer_in_one_chunk_a_step(server):
    body = sampled(max_tokens=40, ignore_eos=True, stream_options={"include_usage": True})
    *chunks, usage = server.stream("/v1/completions", body)
    answer = server.complete({k: v for k, v in body.items() if k != "stream_options"})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["text"] for c in choices) == answer["choices"][0]["text"]
    assert [i for c in choices for i in c["token_ids"]] == ids(answer)
    assert choices[0]["prompt_token_ids"] == answer["choices"][0]["prompt_token_ids"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert usage["usage"] == answer["usage"]
    if "metrics" in usage:
        accepted = usage["metrics"]["speculative_decoding"]["per_step_accepted"]
        assert [len(c["token_ids"]) for c in choices[:-1]] == [1, *(1 + a for a in accepted[:-1])]


def test_chat_streams_a_role_then_the_answer(server):
    answer = server.chat("Write JSON.", temperature=0, max_tokens=20, return_token_ids=True)
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Write JSON."}]}],
        "temperature": 0,
        "max_tokens": 20,
        "return_token_ids": True,
    }
    opening, *chunks = server.stream("/v1/chat/completions", body)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert opening["prompt_token_ids"] == answer["prompt_token_ids"]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == answer["choices"][0]["message"]["content"]


def test_chat_is_the_template_filled_in(baseline):
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    answer = baseline.chat("hello", temperature=0, max_tokens=8, return_token_ids=True)
    written = baseline.complete(greedy(text, max_tokens=8))
    assert answer["prompt_token_ids"] == written["choices"][0]["prompt_token_ids"]
    assert ids(answer) == ids(written)


@pytest.mark.parametrize("top", [0, 1, 20])
def test_prompt_logprobs_are_the_raw_distribution(server, distribution, top):
    tokens = ids(server.complete(sampled(max_tokens=12)))
    answer = server.complete({"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": top})
    first, *positions = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    for position, token, row in zip(positions, tokens[1:], distribution(tokens), strict=False):
        listed = {int(i): entry for i, entry in position.items()}
        assert set(listed) == {token, *np.argsort(-row)[:top].tolist()}
        assert sum(math.exp(entry["logprob"]) for entry in listed.values()) <= 1 + 1e-6
        assert all(math.isclose(entry["logprob"], row[i], abs_tol=1e-4) for i, entry in listed.items())
        assert all(entry["rank"] == 1 + (row > row[i] + 1e-9).sum() for i, entry in listed.items())


def test_prompt_logprobs_are_refused_where_they_are_switched_off():
    with served(prompt_logprobs=False) as client:
        status, error = client.refused({"prompt": [5, 6], "max_tokens": 1, "prompt_logprobs": 1})
        assert (status, error["param"]) == (400, "prompt_logprobs")
        assert "--no-prompt-logprobs" in error["message"]
        assert client.refused({"prompt": [5, 6], "max_tokens": 1, "echo": True, "logprobs": 1})[0] == 400
        assert client.complete({"prompt": [5, 6], "max_tokens": 1, "echo": True})["choices"][0]["text"]
        assert client.complete({"prompt": [5, 6], "max_tokens": 1, "logprobs": 1})["choices"][0]["logprobs"]


ECHOED = {"prompt": "import os\nimport sys\n", "temperature": 0, "ignore_eos": True, "return_token_ids": True, "echo": True}


@pytest.mark.parametrize("most", [1, 9])
def test_an_echo_is_the_prompt_before_the_answer_in_text_and_raw_logprobs(server, distribution, most):
    asked = {**ECHOED, "max_tokens": most}
    plain = server.complete({**asked, "echo": False})["choices"][0]
    answer = server.complete({**asked, "logprobs": 2, "return_tokens_as_token_ids": True})
    choice = answer["choices"][0]
    lists, tokens = choice["logprobs"], choice["prompt_token_ids"] + choice["token_ids"]
    assert choice["text"] == ECHOED["prompt"] + plain["text"]
    assert (choice["token_ids"], answer["usage"]["completion_tokens"]) == (plain["token_ids"], most)
    assert lists["tokens"] == [f"token_id:{i}" for i in tokens]
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    assert {len(listed) for listed in lists.values()} == {len(tokens)}
    np.testing.assert_allclose(lists["token_logprobs"][1:], distribution(tokens)[range(len(tokens) - 1), tokens[1:]], atol=1e-4)


def test_an_echo_without_logprobs_is_text_alone(server):
    choice = server.complete({**ECHOED, "max_tokens": 3})["choices"][0]
    assert choice["text"].startswith(ECHOED["prompt"])
    assert (choice["logprobs"], choice["prompt_logprobs"]) == (None, None)


@pytest.mark.parametrize("more", [{"stream": True}, {"n": 2, "temperature": 1.0}])
def test_an_echo_of_several_choices_or_a_stream_is_refused(baseline, more):
    status, error = baseline.refused({**ECHOED, **more})
    assert (status, error["param"]) == (400, "echo")


def test_logprobs_are_raw_whatever_the_temperature(server, distribution):
    answer = server.complete(sampled(temperature=0.6, top_k=4, logprobs=2, return_tokens_as_token_ids=True))
    choice = answer["choices"][0]
    tokens = choice["prompt_token_ids"] + choice["token_ids"]
    rows = distribution(tokens)[len(choice["prompt_token_ids"]) - 1 : -1]
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], rows[range(len(rows)), choice["token_ids"]], atol=1e-4)
    assert all(2 <= len(top) <= 3 for top in choice["logprobs"]["top_logprobs"])


def test_chat_logprobs_name_each_token(server):
    answer = server.chat("Write JSON.", temperature=0, max_tokens=10, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == answer["choices"][0]["message"]["content"]


@pytest.mark.examples(2)
def test_prompts_of_different_lengths_that_enter_together_are_scored_as_alone(server, distribution):
    prompts = [[5 + (7 * i + 11 * j) % 4000 for j in range(length)] for i, length in enumerate((2, 90, 33, 300, 120, 1))]
    asked = [{"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1, "return_token_ids": True} for tokens in prompts]
    for tokens, answer in zip(prompts, server.complete(*asked), strict=True):
        _, *positions = answer["choices"][0]["prompt_logprobs"]
        expected = distribution(tokens)
        got = [position[str(token)]["logprob"] for position, token in zip(positions, tokens[1:], strict=True)]
        np.testing.assert_allclose(got, expected[np.arange(len(tokens) - 1), tokens[1:]], atol=1e-4)
        assert ids(answer) == [int(expected[-1].argmax())]


def test_chat_gives_prompt_logprobs_at_the_top(baseline):
    answer = baseline.chat("hi", max_tokens=1, prompt_logprobs=1, return_token_ids=True)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])


def test_streamed_logprobs_come_with_their_tokens(probabilistic):
    chunks = [c["choices"][0] for c in probabilistic.stream("/v1/completions", sampled(logprobs=0))]
    assert all(len(c["logprobs"]["token_logprobs"]) == len(c["token_ids"]) for c in chunks)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}


@pytest.mark.examples(2)
@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_a_schema_binds_every_token(server, temperature):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    for seed in range(4):
        choice = server.chat("Write a person.", temperature=temperature, seed=seed, max_tokens=120, response_format=wanted)["choices"][0]
        if choice["finish_reason"] == "stop":
            person = json.loads(choice["message"]["content"])
            assert set(person) == {"name", "age", "ok"}
            assert isinstance(person["age"], int)
    assert choice["finish_reason"] == "stop"


def test_a_grammar_with_greedy_tokens_is_the_baselines(baseline, probabilistic, greedy_draft, ngram):
    body = {"temperature": 0, "max_tokens": 60, "return_token_ids": True, "response_format": {"type": "json_object"}}
    expected = baseline.chat("Write JSON.", **body)
    assert isinstance(json.loads(expected["choices"][0]["message"]["content"]), dict)
    for variant in (probabilistic, greedy_draft, ngram):
        assert ids(variant.chat("Write JSON.", **body)) == ids(expected)


def test_a_grammar_that_has_ended_gives_nothing_but_ends(probabilistic):
    body = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "return_token_ids": True, "response_format": {"type": "json_object"}}
    tokens = ids(probabilistic.chat("Write JSON.", **body))
    assert len(tokens) == 60
    assert set(tokens[tokens.index(2) :]) == {2}


def test_bound_and_free_requests_share_a_batch(probabilistic):
    free = sampled(temperature=1.0)
    alone = ids(probabilistic.complete(free))
    bound = sampled(response_format={"type": "json_object"}, logprobs=1)
    together = probabilistic.complete(bound, free, bound)
    assert ids(together[1]) == alone
    assert ids(together[0]) == ids(together[2])


def test_the_counters_add_up_with_the_windows(probabilistic, ngram):
    for client in (probabilistic, ngram):
        before = client.counters()
        answers = client.complete(*(sampled(p, max_tokens=30, ignore_eos=True) for p in PROMPTS))
        spent = {name: value - before[name] for name, value in client.counters().items()}
        reports = [a["metrics"]["speculative_decoding"] for a in answers]
        assert spent["vllm:spec_decode_num_drafts_total"] == sum(s["num_spec_steps"] for s in reports) > 0
        assert spent["vllm:spec_decode_num_draft_tokens_total"] == sum(sum(s["per_step_drafted"]) for s in reports)
        assert spent["vllm:spec_decode_num_accepted_tokens_total"] == sum(sum(s["per_step_accepted"]) for s in reports)
        by_position = [spent[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{i}"] for i in range(3)]
        assert sum(by_position) == spent["vllm:spec_decode_num_accepted_tokens_total"]
        assert by_position == sorted(by_position, reverse=True)
        assert spent["vllm:generation_tokens_total"] == 30 * len(PROMPTS)
        assert spent["vllm:prompt_tokens_total"] == sum(a["usage"]["prompt_tokens"] for a in answers)
        for answer, steps in zip(answers, reports, strict=True):
            windows = 1 + sum(1 + a for a in steps["per_step_accepted"])
            assert len(ids(answer)) <= windows <= len(ids(answer)) + 3


def test_a_baseline_has_no_speculation_series(baseline):
    assert not any("spec_decode" in name for name in baseline.counters())


def test_prompt_lookup_proposes_what_the_client_can_recompute(ngram):
    answer = ngram.complete(greedy("a b c d a b c d a b", max_tokens=30, ignore_eos=True))
    choice, report = answer["choices"][0], answer["metrics"]["speculative_decoding"]
    tokens, emitted = choice["prompt_token_ids"], choice["token_ids"]
    at = 1
    for drafted, accepted in zip(report["per_step_drafted"], report["per_step_accepted"], strict=True):
        draft = lookup(tokens + emitted[:at], 2, 4, 3)
        assert len(draft) == drafted
        assert tuple(emitted[at : at + accepted]) == draft[:accepted][: len(emitted) - at]
        at += 1 + accepted
    assert sum(report["per_step_accepted"]) > 0


def test_more_requests_than_slots_are_all_answered(baseline):
    answers = baseline.complete(*(sampled(seed=i, max_tokens=1 + i % 7) for i in range(70)))
    assert [len(ids(a)) for a in answers] == [1 + i % 7 for i in range(70)]
    assert baseline.counters()["vllm:num_requests_running"] == 0


def test_a_client_that_hangs_up_frees_its_slot(probabilistic):
    before = probabilistic.counters()["vllm:generation_tokens_total"]
    probabilistic.ask("/v1/completions", sampled(max_tokens=900, ignore_eos=True, stream=True), hang_up_after=3)
    answer = probabilistic.complete(sampled(max_tokens=4, ignore_eos=True))
    assert len(ids(answer)) == 4
    counters = probabilistic.counters()
    assert counters["vllm:generation_tokens_total"] - before < 900
    assert counters["vllm:num_requests_running"] == 0


def test_a_client_that_leaves_two_choices_frees_both_slots(probabilistic):
    before = probabilistic.counters()["vllm:generation_tokens_total"]
    status, _ = probabilistic.ask("/v1/completions", sampled(n=2, max_tokens=900, ignore_eos=True), hang_up_after=0)
    counters = probabilistic.counters()
    assert status == 500
    assert counters["vllm:generation_tokens_total"] - before < 900
    assert counters["vllm:num_requests_running"] == 0


def test_a_long_prompt_is_taken_in_by_chunks(server, distribution):
    prompt = [5 + i % 4000 for i in range(600)]
    answer = server.complete(greedy(prompt, max_tokens=4))
    decoder = model.load(checkpoint.read("target"), 700)
    logits = decoder.logits(decoder.forward(np.array([prompt]), decoder.cache(1), np.zeros(1, np.intp))[-1:])
    assert ids(answer)[0] == logits.argmax()


def test_nothing_waits_for_an_engine_that_broke(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("specdec_reference.scheduler.Batch._prefill", broken)
    with served() as client:
        statuses = [client.ask("/v1/completions", sampled())[0] for _ in range(2)]
        client.engine.failure, failure = None, client.engine.failure
        late = client.ask("/v1/completions", sampled())[0]  # it came in before the break was known
        client.engine.failure = failure
        assert (statuses, late, type(failure)) == ([500, 500], 500, ZeroDivisionError)
        assert client.get("/health")[0] == 503


def test_the_small_routes_answer(baseline):
    assert baseline.get("/health")[0] == 200
    assert json.loads(baseline.get("/version")[1])["version"]
    (card,) = json.loads(baseline.get("/v1/models")[1])["data"]
    assert (card["id"], card["max_model_len"]) == ("target", 1024)
