"""Preemption: a sequence that leaves for want of blocks goes on later as if it had stayed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytest_specdec.errors import EngineError
from specdec_reference.cli import ServerSettings
from specdec_reference.engine import ReferenceEngine
from tests.reference.asgi_client import GREEDY, NGRAM, PROBABILISTIC, served
from tests.reference.test_eagle import EAGLE

SMALL = {"max_model_len": 160, "blocks": 11}
"""Of 16 tokens: one sequence of the greatest length and its window; four of a hundred tokens need three times as many."""
ASKED = {"temperature": 0, "max_tokens": 70, "return_token_ids": True, "ignore_eos": True}
KINDS = pytest.mark.parametrize("speculation", [None, PROBABILISTIC, NGRAM, EAGLE], ids=["none", "probabilistic", "ngram", "eagle"])


def asked(count=6, **body):
    return [ASKED | {"prompt": list(range(300 + 40 * index, 325 + 40 * index))} | body for index in range(count)]


def ids(answers):
    return [answer["choices"][0]["token_ids"] for answer in answers]


def preemptions(client):
    return client.counters()["vllm:num_preemptions_total"]


@pytest.fixture(scope="module")
def roomy():
    with served() as client:
        yield client
        assert preemptions(client) == 0


@pytest.mark.examples(2)
@pytest.mark.parametrize("prefix_caching", [True, False])
@KINDS
def test_greedy_answers_are_those_of_a_roomy_server(speculation, prefix_caching, roomy):
    with served(speculation, **SMALL, prefix_caching=prefix_caching) as client:
        answers = client.complete(*asked())
        assert preemptions(client) > 0
    assert ids(answers) == ids(roomy.complete(*asked()))


@pytest.mark.examples(2)
@KINDS
def test_penalties_and_grammars_keep_their_state(speculation, roomy):
    bodies = [
        *asked(3, presence_penalty=0.8, frequency_penalty=0.4),
        *asked(3, response_format={"type": "json_object"}, ignore_eos=False),
    ]
    with served(speculation, **SMALL) as client:
        answers = client.complete(*bodies)
        assert preemptions(client) > 0
    assert ids(answers) == ids(roomy.complete(*bodies))


@pytest.mark.examples(2)
@KINDS
def test_streams_lose_and_repeat_nothing(speculation, roomy):
    with served(speculation, **SMALL) as client:
        beside = threading.Thread(target=lambda: client.complete(*asked(5)))
        beside.start()
        chunks = client.stream("/v1/completions", asked(6)[5] | {"stream_options": {"include_usage": True}})
        beside.join(60)
        assert preemptions(client) > 0
    whole = roomy.complete(asked(6)[5])["choices"][0]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == ASKED["max_tokens"]


def test_without_speculation_a_seeded_answer_is_the_same():
    """Every token takes one number of the sequence's own generator, whether it was prefilled or decoded."""
    bodies = [body | {"temperature": 1.0, "seed": index} for index, body in enumerate(asked())]
    with served(**SMALL) as client:
        answers = client.complete(*bodies)
        assert preemptions(client) > 0
    with served() as client:
        assert ids(answers) == ids(client.complete(*bodies))


@pytest.mark.nightly
@pytest.mark.parametrize("speculation", [PROBABILISTIC, pytest.param(NGRAM, marks=pytest.mark.nightly)], ids=["probabilistic", "ngram"])
def test_under_preemption_draws_keep_their_distribution(speculation, roomy):
    """The mean log-probability of drawn tokens under a roomy baseline is that of its own draws, within four standard errors."""
    bodies = [body | {"temperature": 1.0, "seed": index, "max_tokens": 40} for index in range(6) for body in asked(6)]

    def mean(client):
        answers = [answer for at in range(0, len(bodies), 6) for answer in client.complete(*bodies[at : at + 6])]
        scored = []
        for body, answer in zip(bodies, answers, strict=True):
            tokens = [*body["prompt"], *answer["choices"][0]["token_ids"]]
            forced = roomy.complete({"prompt": tokens, "prompt_logprobs": 0, "max_tokens": 1})
            positions = forced["choices"][0]["prompt_logprobs"][len(body["prompt"]) :]
            scored.append(
                np.mean([entry[str(token)]["logprob"] for entry, token in zip(positions, tokens[len(body["prompt"]) :], strict=True)])
            )
        return np.mean(scored), np.var(scored) / len(scored)

    with served(speculation, max_model_len=100, blocks=7) as client:
        under, spread = mean(client)
        assert preemptions(client) > 6
    free, own = mean(roomy)
    assert abs(under - free) < 4 * np.sqrt(spread + own)


def test_windows_count_a_recomputed_token_as_a_step_without_a_draft():
    with served(GREEDY, **SMALL, spec_decode_metrics="detailed") as client:
        answers = client.complete(*asked())
    for answer in answers:
        report = answer["metrics"]["speculative_decoding"]
        assert sum(accepted + 1 for accepted in report["per_step_accepted"]) + 1 >= 70
    assert any(0 in answer["metrics"]["speculative_decoding"]["per_step_drafted"] for answer in answers)


def test_prompt_tokens_are_counted_once():
    with served(**SMALL) as client:
        answers = client.complete(*asked())
        assert client.counters()["vllm:prompt_tokens_total"] == sum(answer["usage"]["prompt_tokens"] for answer in answers)


def test_blocks_that_hold_no_sequence_are_refused():
    with pytest.raises(EngineError, match="num-gpu-blocks-override"):
        ReferenceEngine(ServerSettings(model="target", max_model_len=160, blocks=10))


def test_the_earliest_arrival_is_never_preempted():
    with served(GREEDY, **SMALL, spec_decode_metrics="detailed") as client:
        answers = client.complete(*asked())
    first = answers[0]["metrics"]["speculative_decoding"]["per_step_drafted"]
    assert 0 not in first
