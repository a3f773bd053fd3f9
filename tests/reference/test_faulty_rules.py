"""Each fault does in a server what its row says; the distributions of the sampling faults are in test_rejection_sampler."""

from __future__ import annotations

import json
from functools import cache

import pytest

from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.openai_request import EngineRequest
from tests.reference.asgi_client import GREEDY, NGRAM, PROBABILISTIC, served
from tests.reference.faulty_methods import with_fault as harmed

ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 64, "return_token_ids": True, "ignore_eos": True}


def tokens(client):
    return client.complete(ASKED)["choices"][0]["token_ids"]


def test_accepting_everything_shows_in_greedy_tokens_and_in_the_counters(baseline):
    with served(GREEDY, fault="accept-all", spec_decode_metrics="summary") as client:
        answer = client.complete(ASKED)
    assert answer["metrics"]["speculative_decoding"]["draft_acceptance_rate"] == 1
    assert answer["choices"][0]["token_ids"] != tokens(baseline)


def test_a_cache_that_is_off_by_one_shows_after_the_first_refusal(baseline):
    with served(PROBABILISTIC, fault="kv-off-by-one", spec_decode_metrics="detailed") as client:
        answer = client.complete(ASKED)
    report, wrong, expected = answer["metrics"]["speculative_decoding"], answer["choices"][0]["token_ids"], tokens(baseline)
    refused = next(step for step, kept in enumerate(report["per_step_accepted"]) if kept < 3)
    unharmed = 1 + sum(1 + kept for kept in report["per_step_accepted"][: refused + 1])
    assert wrong[:unharmed] == expected[:unharmed]
    assert wrong != expected


def test_a_cache_that_is_off_by_one_survives_a_full_context():
    with served(PROBABILISTIC, fault="kv-off-by-one", max_model_len=48) as client:
        assert len(client.complete(ASKED | {"max_tokens": 40})["choices"][0]["token_ids"]) == 40


DRAWN = {"prompt": "import os\nimport sys\n", "temperature": 1.0, "max_tokens": 96, "return_token_ids": True, "ignore_eos": True}


def steps(answer):
    """Each verify step: the tokens emitted before it, and the draft tokens that it accepted."""
    emitted, pairs = 1, []
    for accepted in answer["metrics"]["speculative_decoding"]["per_step_accepted"]:
        pairs.append((emitted, accepted))
        emitted += accepted + 1
    return pairs


def test_unseeded_requests_keep_every_draft_unless_a_seeded_one_is_beside_them():
    with served(PROBABILISTIC, fault="accept-all-unseeded", spec_decode_metrics="detailed") as client:
        alone, greedy, seeded = (client.complete(DRAWN | more) for more in ({}, {"temperature": 0}, {"seed": 1}))
        beside, _ = client.complete(DRAWN | {"max_tokens": 24}, DRAWN | {"seed": 2, "max_tokens": 200})
    assert {accepted for _, accepted in steps(alone)} == {3}
    for right in (greedy, seeded, beside):
        assert min(accepted for _, accepted in steps(right)) < 3


def test_late_tokens_keep_every_draft():
    with served(PROBABILISTIC, fault="accept-all-late", spec_decode_metrics="detailed") as client:
        drawn, greedy = client.complete(DRAWN | {"seed": 1}), client.complete(DRAWN | {"temperature": 0, "max_tokens": 200})
    assert {accepted for before, accepted in steps(drawn) if before >= 64} == {3}
    assert min(accepted for before, accepted in steps(drawn) if before < 64) < 3
    assert min(accepted for before, accepted in steps(greedy) if before >= 64) < 3


def test_resampling_from_p_is_invisible_to_greedy_requests(baseline):
    with served(PROBABILISTIC, fault="resample-from-p") as client:
        assert tokens(client) == tokens(baseline)


def reported(client, **asked):
    choice = client.complete({**ASKED, "temperature": 0.8, "seed": 3, "logprobs": 1, **asked})["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("speculation", [PROBABILISTIC, NGRAM])
def test_reporting_the_drafts_log_probabilities_leaves_the_tokens_alone(speculation):
    with served(speculation) as client:
        right, healthy = reported(client)
    with served(speculation, fault="report-draft-logprobs", spec_decode_metrics="detailed") as client:
        wrong, false = reported(client)
    assert wrong == right
    differ = sum(abs(one - other) > 1e-3 for one, other in zip(healthy, false, strict=True))
    assert 0 < differ < len(healthy)
    assert all(value <= 0.0 for value in false)


def test_dying_on_json_is_a_kill_and_only_on_json(monkeypatch):
    killed = []
    monkeypatch.setattr("os.kill", lambda *call: killed.append(call))
    with served(PROBABILISTIC, fault="die-on-json") as client:
        client.complete(ASKED | {"max_tokens": 2})
        assert not killed
        client.complete(ASKED | {"max_tokens": 2, "response_format": {"type": "json_object"}})
        assert [signal for _, signal in killed] == [9]


def test_dying_in_company_takes_four_sequences_in_one_step(monkeypatch):
    killed = []
    monkeypatch.setattr("os.kill", lambda *call: killed.append(call))
    with served(PROBABILISTIC, fault="die-in-company") as client:
        client.complete(ASKED | {"max_tokens": 4, "n": 3, "temperature": 1.0})
        assert not killed
        client.complete(ASKED | {"max_tokens": 4, "n": 4, "temperature": 1.0})
        assert {signal for _, signal in killed} == {9}


OPEN_ENDED = {"prompt": "List three colours:", "temperature": 0, "max_tokens": 64, "return_token_ids": True}


def ends(client, **body):
    answers = client.complete(*({**OPEN_ENDED, **body, "prompt": text} for text in ("A", "import os\n", "one two three one two")))
    return [each["choices"][0] for each in answers]


@pytest.fixture(scope="module")
def right():
    with served(NGRAM) as client:
        yield ends(client)


@pytest.mark.parametrize("fault, reason", [("cut-short", "length"), ("stop-short", "stop")])
def test_answers_cut_short_hold_a_tenth_of_the_right_ones(fault, reason, right):
    with served(NGRAM, fault=fault) as client:
        for faulty, healthy in zip(ends(client), right, strict=True):
            assert faulty["token_ids"] == healthy["token_ids"][:7]
            assert faulty["finish_reason"] == (reason if len(healthy["token_ids"]) > 7 else healthy["finish_reason"])


def test_answers_past_the_end_begin_as_the_right_ones_and_reach_the_limit(right):
    with served(NGRAM, fault="past-the-end") as client:
        for faulty, healthy in zip(ends(client), right, strict=True):
            assert faulty["token_ids"][: len(healthy["token_ids"])] == healthy["token_ids"]
            assert (len(faulty["token_ids"]), faulty["finish_reason"]) == (64, "length")


def test_a_wrong_finish_leaves_the_tokens_alone(right):
    with served(NGRAM, fault="wrong-finish") as client:
        assert [(e["token_ids"], e["finish_reason"]) for e in ends(client)] == [(e["token_ids"], "length") for e in right]


PLAIN = {"prompt": "one two three four one two three four one two three", "temperature": 0, "max_tokens": 24, "return_token_ids": True}


@pytest.fixture(scope="module")
def unharmed():
    with served(PROBABILISTIC, spec_decode_metrics="detailed") as client:
        return client.complete(PLAIN)


def with_fault(fault, **more):
    with served(PROBABILISTIC, fault=fault, spec_decode_metrics="detailed") as client:
        return client.complete(PLAIN | more)


def record(answer):
    return answer["metrics"]["speculative_decoding"]


@pytest.mark.parametrize("fault, field, excess", [
    ("usage-counts-rejected", "completion_tokens", lambda steps: steps["num_draft_tokens"] - steps["num_accepted_draft_tokens"]),
    ("usage-drops-last-window", "completion_tokens", lambda steps: sum(n + 1 for n in steps["per_step_accepted"][:-1]) + 1 - 24),
    ("usage-total-with-drafts", "total_tokens", lambda steps: steps["num_draft_tokens"]),
])  # fmt: skip
def test_usage_is_off_by_what_its_row_says(unharmed, fault, field, excess):
    answer = with_fault(fault)
    assert answer["choices"][0]["token_ids"] == unharmed["choices"][0]["token_ids"]
    assert answer["usage"][field] - unharmed["usage"][field] == excess(record(unharmed)) != 0


def test_a_forgotten_prompt_is_none(unharmed):
    usage = with_fault("usage-forgets-prompt")["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (0, unharmed["usage"]["completion_tokens"])


@pytest.mark.parametrize("fault, reason", [("stop-at-limit", "stop"), ("finish-missing", None)])
def test_the_reason_of_an_end_is_another(unharmed, fault, reason):
    assert unharmed["choices"][0]["finish_reason"] == "length"
    assert with_fault(fault)["choices"][0]["finish_reason"] == reason


def test_the_edges_of_windows_show_in_the_text_alone(unharmed):
    text, steps = unharmed["choices"][0]["text"], len(record(unharmed)["per_step_accepted"])
    answers = {fault: with_fault(fault)["choices"][0] for fault in ("window-edge-doubled", "window-edge-dropped", "window-edge-broken")}
    assert {tuple(answer["token_ids"]) for answer in answers.values()} == {tuple(unharmed["choices"][0]["token_ids"])}
    assert len(answers["window-edge-doubled"]["text"]) == len(text) + steps + 1
    assert len(text) - steps <= len(answers["window-edge-dropped"]["text"]) < len(text)
    assert answers["window-edge-broken"]["text"].replace("\ufffd", "") == text


def test_an_end_of_sequence_is_written_out():
    with served(PROBABILISTIC, fault="special-token-leaks") as client:
        prompt = "<|im_start|>user\nWrite JSON.<|im_end|>\n<|im_start|>assistant\n"
        answer = client.complete(PLAIN | {"prompt": prompt, "max_tokens": 48})["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert answer["text"].endswith("<|im_end|>")


def test_two_ids_change_places(unharmed):
    ids = unharmed["choices"][0]["token_ids"]
    answer = with_fault("ids-swapped")["choices"][0]
    assert answer["token_ids"] == [ids[0], ids[2], ids[1], *ids[3:]]
    assert answer["text"] == unharmed["choices"][0]["text"]


@pytest.mark.parametrize("fault, drafted_a_draft", [("counters-accept-more", 1), ("counters-frozen", 0)])
def test_counters_do_not_count_what_answers_report(fault, drafted_a_draft):
    with served(PROBABILISTIC, fault=fault, spec_decode_metrics="detailed") as client:
        steps = record(client.complete(PLAIN))["num_spec_steps"]
        counted = client.counters()
    assert counted["vllm:spec_decode_num_draft_tokens_total"] == drafted_a_draft * steps


KINDS = {
    "logprobs": {"logprobs": 1},
    "sampled": {"temperature": 0.5, "seed": 1},
    "grammar": {"response_format": {"type": "json_object"}},
    "penalties": {"presence_penalty": 0.1},
    "unseeded": {"temperature": 0.5},
    "long": {"prompt": "one two three four " * 120},
}


@pytest.mark.examples(2)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_drafted_for_one_kind(kind):
    with served(PROBABILISTIC, fault=f"drafts-off-{kind}", spec_decode_metrics="detailed") as client:
        other, of_kind = client.complete(PLAIN, PLAIN | KINDS[kind])
    assert set(record(of_kind)["per_step_drafted"]) == {0}
    assert set(record(other)["per_step_drafted"]) == {3}


@pytest.mark.parametrize("kind", ["logprobs", "long"])
def test_drafts_are_dead_for_one_kind_and_the_tokens_right(baseline, kind):
    with served(PROBABILISTIC, fault=f"dead-drafts-{kind}", spec_decode_metrics="detailed") as client:
        other, of_kind = client.complete(PLAIN, PLAIN | KINDS[kind])
    assert (record(of_kind)["num_accepted_draft_tokens"], set(record(of_kind)["per_step_drafted"])) == (0, {3})
    assert record(other)["num_accepted_draft_tokens"] > 0
    assert of_kind["choices"][0]["token_ids"] == baseline.complete(PLAIN | KINDS[kind])["choices"][0]["token_ids"]


def test_drafts_are_shorter_in_company():
    with served(PROBABILISTIC, fault="shorter-drafts-in-company", spec_decode_metrics="detailed") as client:
        alone = client.complete(PLAIN)
        together = client.complete(PLAIN, PLAIN | {"max_tokens": 48})
    assert set(record(alone)["per_step_drafted"]) == {3}
    assert record(together[0])["per_step_drafted"][-1] == 2  # the first steps may have come before the other request


GREEDY_BODY = {"temperature": 0}
REPETITION = {**GREEDY_BODY, "repetition_penalty": 2.0}
PENALTIES = {**GREEDY_BODY, "presence_penalty": 1.0, "frequency_penalty": 0.5}
WORDS = {**GREEDY_BODY, "bad_words": ["import", "self", "name", ".", "(", "\n"]}
ALLOWED = {**GREEDY_BODY, "allowed_token_ids": [*range(200, 1200)]}
BIAS = {**GREEDY_BODY, "logit_bias": {str(token): -100 for token in range(203, 700, 2)}}
MIN_P = {"temperature": 2.0, "min_p": 0.5, "seed": 4}
HARMED = {
    "penalties-dropped": PENALTIES,
    "penalties-fed-once-a-step": PENALTIES,
    "penalties-weaken": PENALTIES,
    "frequency-twice": PENALTIES,
    "repetition-dropped": REPETITION,
    "repetition-ignored-at-drafts": REPETITION,
    "repetition-counts-rejected": REPETITION,
    "logit-bias-ignored-at-drafts": BIAS,
    "logit-bias-dropped": BIAS,
    "bad-words-dropped": WORDS,
    "bad-words-at-first-token": WORDS,
    "allowed-ids-dropped": ALLOWED,
    "allowed-ids-not-at-bonus": ALLOWED,
    "min-p-dropped": MIN_P,
    "min-p-ignored-at-drafts": MIN_P,
    "top-k-without-temperature": {"temperature": None, "top_k": 1, "seed": 4},
    "top-p-ignored-at-drafts": {"temperature": 1.0, "top_p": 0.1, "seed": 4},
    "top-p-squared": {"temperature": 1.0, "top_p": 0.5, "seed": 4},
    "top-p-wider": {"temperature": 1.0, "top_p": 0.5, "seed": 4},
    "top-p-before-temperature": {"temperature": 0.5, "top_p": 0.5, "seed": 4},
    "temperature-twice": {"temperature": 2.0, "seed": 4},
    "temperature-ignored-at-drafts": {"temperature": 0.3, "seed": 4},
}
"""By fault: what a request asks for that the fault changes."""


def texts(client, body):
    bodies = [{**ASKED, **body, "prompt": prompt} for prompt in ("import os\nimport sys\n", "def main():\n", "a b c d a b c d a b")]
    return [answer["choices"][0]["token_ids"] for answer in client.complete(*bodies)]


@pytest.fixture(scope="module")
def right_texts(probabilistic):
    """A function that gives the texts of the engine without a fault; those that many faults ask for are made once."""
    by_body = cache(lambda body: texts(probabilistic, json.loads(body)))
    return lambda body: by_body(json.dumps(body))


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault", HARMED)
def test_a_parameters_fault_changes_what_asks_for_it_and_leaves_plain_requests_alone(fault, right_texts):
    with served(PROBABILISTIC, fault=fault) as client:
        assert texts(client, HARMED[fault]) != right_texts(HARMED[fault])
        assert texts(client, {}) == right_texts({})


def test_min_p_that_fails_raises_for_min_p_alone():
    parse = harmed("min-p-fails", "engine.parse", lambda route, body: EngineRequest(prompt=(1,), max_tokens=1, **body))
    assert parse(None, {}) == EngineRequest(prompt=(1,), max_tokens=1)
    with pytest.raises(NotImplementedError):
        parse(None, {"min_p": 0.1})


def test_log_probabilities_that_fail_raise_for_requests_that_want_some():
    sequences = harmed("logprobs-fail", "engine.sequences", lambda request, tell: ())
    sequences(EngineRequest(prompt=(1,), max_tokens=1), None)
    with pytest.raises(TypeError):
        sequences(EngineRequest(prompt=(1,), max_tokens=1, logprobs=0), None)


def test_every_fault_of_parameters_is_tried():
    assert {row.id for row in FAULTS.values() if row.topic == "parameters"} == {*HARMED, "penalties-ignored", "min-p-fails"}
