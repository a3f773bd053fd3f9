"""The sampler: distributions by temperature, top-k and top-p; penalties and biases, at every draft position too, computed the slow way."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Encoder

from specdec_reference import checkpoint, model
from specdec_reference.openai_request import EngineRequest
from specdec_reference.sampler import PenaltyState, Sampling, distributions, pick
from tests.reference.asgi_client import PROBABILISTIC, served

PROMPTS = (
    "import os\nimport sys\n",
    "def main():\n",
    "a b c d a b c d a b",
    "for i in range(10):\n    print(i)\n",
    "<|im_start|>user\nWrite JSON.<|im_end|>\n<|im_start|>assistant\n",
)
ASKED = {
    "both": {"presence_penalty": 0.8, "frequency_penalty": 0.4},
    "presence": {"presence_penalty": 2.0},
    "rewards": {"presence_penalty": -0.5, "frequency_penalty": -0.2},
    "bias": {"logit_bias": {str(token): 3.5 for token in range(300, 340)}},
    "all": {"presence_penalty": 0.5, "frequency_penalty": 1.5, "logit_bias": {"13": -100, "30": 2}},
    "repetition": {"repetition_penalty": 1.6},
    "repetition rewarded": {"repetition_penalty": 0.7},
    "bad words": {"bad_words": ["import", "os", "self.", "json", "return None", '"""']},
    "allowed": {"allowed_token_ids": [198, 203, *range(260, 700, 3)]},
    "every one": {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {"260": 4, "263": -100},
        "bad_words": ["import", "def main"],
        "allowed_token_ids": list(range(3, 4000, 2)),
    },
}


ENCODER = Encoder.from_file(str(checkpoint.read("target").folder / "tokenizer.json"))


def asked(prompt=PROMPTS[0], **body):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 48, "return_token_ids": True, "ignore_eos": True, **body}


def ids(answer):
    return answer["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def raw():
    """Raw logits after every token, from the model alone."""
    decoder = model.load(checkpoint.read("target"), 320)

    def of(tokens):
        return decoder.logits(decoder.forward(np.array([tokens]), decoder.cache(1), np.zeros(1, np.intp))).astype(np.float64)

    return of


@functools.cache
def words_of(text):
    """The ids of a banned word alone, and after a space where that makes another first token and as many."""
    plain, spaced = (ENCODER.encode(prefix + text).ids for prefix in ("", " "))
    return (plain, spaced) if spaced[0] != plain[0] and len(spaced) == len(plain) else (plain,)


def penalised(logits, output, body, prompt=()):
    """vLLM's order, each step by its definition in transformers and in OpenAI's reference, token by token."""
    logits = logits.copy()
    for token in set(range(len(logits))) - set(body.get("allowed_token_ids", range(len(logits)))):
        logits[token] = -np.inf
    for word in (ids for text in body.get("bad_words", ()) for ids in words_of(text)):
        if list(output[len(output) - len(word) + 1 :] if len(word) > 1 else []) == word[:-1]:
            logits[word[-1]] = -np.inf
    for token, bias in body.get("logit_bias", {}).items():
        logits[int(token)] += bias
    for token in {*prompt, *output}:
        penalty = body.get("repetition_penalty", 1.0)
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    for token, count in Counter(output).items():
        logits[token] -= count * body.get("frequency_penalty", 0) + (count > 0) * body.get("presence_penalty", 0)
    return logits


def distribution(logits, body):
    """Temperature, then min-p, then top-k, then top-p."""
    p = np.exp((logits - logits.max()) / body["temperature"])
    p[p < body.get("min_p", 0) * p.max()] = 0
    order = np.argsort(-p)
    p[order[body.get("top_k", len(p)) :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= body.get("top_p", 1.0)]] = 0
    return p / p.sum()


@pytest.mark.examples(2)
@pytest.mark.parametrize("body", ASKED.values(), ids=ASKED)
def test_a_greedy_token_is_the_largest_penalised_logit(server, raw, body):
    answer = server.complete(asked(**body))
    prompt, emitted = answer["choices"][0]["prompt_token_ids"], ids(answer)
    logits = raw(prompt + emitted)[len(prompt) - 1 : -1]
    assert emitted == [int(penalised(row, emitted[:at], body, prompt).argmax()) for at, row in enumerate(logits)]
    assert emitted != ids(server.complete(asked()))


@pytest.mark.examples(2)
@pytest.mark.parametrize("body", ASKED.values(), ids=ASKED)
def test_every_speculative_greedy_token_is_the_baselines_under_penalties(baseline, probabilistic, greedy_draft, ngram, body):
    bodies = [asked(prompt, **body) for prompt in PROMPTS]
    expected = [ids(answer) for answer in baseline.complete(*bodies)]
    for variant in (probabilistic, greedy_draft, ngram):
        assert [ids(answer) for answer in variant.complete(*bodies)] == expected


@pytest.mark.examples(2)
def test_penalised_and_plain_requests_share_a_batch(server):
    bodies = [
        asked(),
        asked(**ASKED["both"]),
        asked(temperature=1, seed=3),
        asked(**ASKED["all"]),
        asked(temperature=1, seed=3, presence_penalty=2),
    ]
    alone = [ids(server.complete(body)) for body in bodies]
    assert [ids(answer) for answer in server.complete(*bodies)] == alone
    assert alone[2] != alone[4]


def test_a_grammar_binds_under_penalties(baseline, probabilistic, greedy_draft, ngram):
    free = {"temperature": 0, "max_tokens": 40, "return_token_ids": True, "response_format": {"type": "json_object"}}
    banned = ids(baseline.chat("Write JSON.", **free))[:2]
    body = free | ASKED["both"] | {"logit_bias": {str(token): -100 for token in banned}}
    expected = baseline.chat("Write JSON.", **body)
    assert expected["choices"][0]["message"]["content"].startswith("{")
    assert not set(ids(expected)) & set(banned)
    for variant in (probabilistic, greedy_draft, ngram):
        assert ids(variant.chat("Write JSON.", **body)) == ids(expected)


def test_reported_logprobs_stay_raw_under_penalties(server, raw):
    answer = server.complete(asked(logprobs=1, **ASKED["all"]))
    prompt, emitted = answer["choices"][0]["prompt_token_ids"], ids(answer)
    logits = raw(prompt + emitted)[len(prompt) - 1 : -1]
    expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    reported = answer["choices"][0]["logprobs"]["token_logprobs"]
    np.testing.assert_allclose(reported, expected[range(len(emitted)), emitted], atol=1e-4)


def verified(client, body, monkeypatch):
    """Return the distributions that each verify step of a request went by, beside the output before each of them."""
    steps = []
    verify = client.engine.rules.verify

    def watched(rows, p, draft, *rest):
        windows = verify(rows, p, draft, *rest)
        steps.append((p.copy(), draft.tokens[0, : draft.counts[0]].tolist(), int(windows.accepted[0])))
        return windows

    monkeypatch.setattr(client.engine.batch, "_rules", replace(client.engine.rules, verify=watched))
    answer = client.complete(body)
    prompt, emitted = answer["choices"][0]["prompt_token_ids"], ids(answer)
    at, found = 1, []
    for p, drafted, accepted in steps:
        assert len(p) == len(drafted) + 1
        found.append([(p[j], prompt, emitted[:at] + drafted[:j]) for j in range(len(p))])
        at += 1 + accepted
    return found


SAMPLED = {
    "whole": {"temperature": 0.6, **ASKED["both"], "presence_penalty": -0.3},
    "truncated": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, **ASKED["all"]},
    "shared out": {"temperature": 1.3, "min_p": 0.05, "top_k": 30, "top_p": 0.95, **ASKED["repetition rewarded"]},
    "every one": {"temperature": 0.9, "min_p": 0.02, **ASKED["every one"]},
}


@pytest.mark.examples(2)
@pytest.mark.parametrize("body", SAMPLED.values(), ids=SAMPLED)
def test_drafted_tokens_count_as_output_in_the_distribution_that_verifies_them(server, raw, body, monkeypatch):
    """With the distribution right at every position, what is emitted follows it: test_verify has the draws."""
    steps = verified(server, asked(PROMPTS[2], seed=5, max_tokens=32, **body), monkeypatch)
    for step in steps:
        for p, prompt, output in step:
            np.testing.assert_allclose(p, distribution(penalised(raw(prompt + output)[-1], output, body, prompt), body), atol=1e-4)
    assert max(map(len, steps)) == (1 if server.engine.settings.speculation is None else 4)


def test_ignored_at_draft_positions_means_the_raw_distribution_there_and_the_penalised_one_behind(raw, monkeypatch):
    body = SAMPLED["whole"]
    with served(PROBABILISTIC, fault="penalties-ignored") as client:
        steps = verified(client, asked(seed=5, max_tokens=16, **body), monkeypatch)
    for *drafts, (bonus, prompt, output) in steps:
        np.testing.assert_allclose(bonus, distribution(penalised(raw(prompt + output)[-1], output, body, prompt), body), atol=1e-4)
        for p, same, before in drafts:
            np.testing.assert_allclose(p, distribution(raw(same + before)[-1], body), atol=1e-4)


@given(
    st.lists(st.integers(0, 5), max_size=8),
    st.lists(st.integers(0, 5), max_size=4),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.floats(0.5, 2),
    st.dictionaries(st.integers(0, 5), st.floats(-100, 100), max_size=3),
    st.none() | st.sets(st.integers(0, 5), min_size=1),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3),
)
def test_the_shape_is_the_definition_at_each_position_and_counts_nothing(
    emitted, drafted, presence, frequency, times, bias, allowed, words
):
    request = EngineRequest(
        prompt=(1, 1, 2),
        max_tokens=9,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=times,
        logit_bias=tuple(bias.items()),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        bad_words=tuple(map(tuple, words)),
    )
    penalties = PenaltyState(request, 6)
    for token in emitted:
        penalties.advance(token)
    body = {"presence_penalty": presence, "frequency_penalty": frequency, "repetition_penalty": times, "logit_bias": bias}
    raw = np.linspace(-3, 3, 6).astype(np.float32)
    masked = {token for token in range(6) if allowed is not None and token not in allowed}
    for _ in range(2):
        for at, row in enumerate(penalties.shape_logits(np.tile(raw, (len(drafted) + 1, 1)), drafted)):
            output = emitted + drafted[:at]
            banned = masked | {word[-1] for word in words if [*output, 0][-len(word) : -1] == word[:-1] and len(output) >= len(word) - 1}
            expected = penalised(raw.astype(float), output, body, request.prompt)
            expected[list(banned)] = -np.inf
            np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-4)


SHAPING = (
    {"presence_penalty": 1},
    {"repetition_penalty": 0.9},
    {"logit_bias": ((1, 1.0),)},
    {"bad_words": ((1,),)},
    {"allowed_token_ids": (1,)},
)


def test_plain_requests_have_nothing_to_add():
    assert not EngineRequest(prompt=(1,), max_tokens=1).penalised
    assert all(EngineRequest(prompt=(1,), max_tokens=1, **one).penalised for one in SHAPING)


P = np.array([[0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02]], np.float32)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(any), st.floats(0, 1, exclude_max=True))
def test_only_tokens_with_mass_are_picked(distribution, uniform):
    (token,) = pick(np.array([distribution]), np.array([uniform]))
    assert distribution[token] > 0


def sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    return Sampling(
        temperature=np.array([temperature], np.float32), top_k=np.array([top_k]), top_p=np.array([top_p]), min_p=np.array([min_p])
    )


@pytest.mark.parametrize(
    "asked,kept",
    [
        (sampling(), 8),
        (sampling(top_k=3), 3),
        (sampling(top_k=99), 8),
        (sampling(top_p=0.5), 2),
        (sampling(top_p=0.56), 3),
        (sampling(top_p=1e-9), 1),
        (sampling(top_k=3, top_p=0.7), 2),
        (sampling(min_p=1.0), 1),
        (sampling(min_p=0.4), 3),
        (sampling(min_p=0.4, top_p=0.5), 2),
        (sampling(min_p=0.4, top_k=2), 2),
        (sampling(temperature=0.0), 1),
        (sampling(temperature=0.0, top_p=0.5), 1),
    ],
)
def test_a_distribution_keeps_the_most_probable_tokens_and_sums_to_one(asked, kept):
    distribution = distributions(np.log(P), asked)[0]
    assert np.flatnonzero(distribution).tolist() == list(range(kept))
    np.testing.assert_allclose(distribution[:kept], P[0, :kept] / P[0, :kept].sum(), rtol=1e-5)


def test_temperature_divides_the_logits():
    distribution = distributions(np.log(P), sampling(temperature=0.5))[0]
    np.testing.assert_allclose(distribution, P[0] ** 2 / (P[0] ** 2).sum(), rtol=1e-5)


def test_rows_of_a_batch_have_their_own_parameters():
    mixed = Sampling(temperature=np.array([0, 1, 2], np.float32), top_k=np.array([0, 2, 0]), top_p=np.array([1, 1, 0.5]), min_p=np.zeros(3))
    together = distributions(np.log(P[[0, 0, 0]]), mixed)
    alone = [distributions(np.log(P), sampling(t, k, p))[0] for t, k, p in ((0, 0, 1), (1, 2, 1), (2, 0, 0.5))]
    np.testing.assert_array_equal(together, alone)
