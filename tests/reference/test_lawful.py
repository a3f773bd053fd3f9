"""Lawful variations: what they emit is the target's distribution, and what they leave out or split is nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pytest_specdec.errors import EngineError
from specdec_reference import lawful, rules
from specdec_reference.lawful import VARIATIONS
from specdec_reference.rejection_sampler import DraftProposal
from specdec_reference.rules import EngineRules
from specdec_reference.sampler import pick
from tests.reference.asgi_client import PROBABILISTIC, served

ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 48, "return_token_ids": True, "ignore_eos": True}
V, DRAWS = 3, 20_000
FIRST = np.array([0.5, 0.3, 0.2])
NEXT = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.1, 0.8]])
Q_FIRST = np.array([0.2, 0.2, 0.6])
Q_NEXT = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.4, 0.5, 0.1]])


def drawn(verify):
    """The first two tokens of many answers, of which a draft proposes both; a token that no window holds is drawn from the target."""
    random = np.random.default_rng(3)
    one = pick(np.tile(Q_FIRST, (DRAWS, 1)), random.random(DRAWS))
    two = pick(Q_NEXT[one], random.random(DRAWS))
    proposal = DraftProposal(
        tokens=np.stack([one, two], axis=1),
        counts=np.full(DRAWS, 2),
        q=np.stack([np.tile(Q_FIRST, (DRAWS, 1)), Q_NEXT[one]], axis=1).astype(np.float32),
    )
    p = np.stack([np.tile(FIRST, (DRAWS, 1)), NEXT[one], NEXT[two]], axis=1).reshape(-1, V).astype(np.float32)
    windows = verify((), p, proposal, random.random((DRAWS, 3)), EngineRules())
    first = np.where(windows.accepted >= 1, one, windows.last)
    second = np.select([windows.accepted >= 2, windows.accepted == 1], [two, windows.last], pick(NEXT[first], random.random(DRAWS)))
    return first * V + second, windows.accepted.mean()


JOINT = (FIRST[:, None] * NEXT).ravel() * DRAWS


@pytest.mark.parametrize("name", ["block-verification", "match-the-sample"])
def test_two_tokens_in_a_row_follow_the_target(name):
    pairs, _ = drawn(VARIATIONS[name].wrappers["verify"].wrap(rules.verify))
    assert stats.chisquare(np.bincount(pairs, minlength=V * V), JOINT).pvalue > 1e-3


def test_a_rule_that_is_not_lawful_would_be_seen():
    def accept_all(rows, p, proposal, uniforms, given):
        return rules.verify(rows, p, proposal, uniforms, EngineRules(accept=lambda p, q, u: np.ones(p.shape, np.bool_)))

    pairs, _ = drawn(accept_all)
    assert stats.chisquare(np.bincount(pairs, minlength=V * V), JOINT).pvalue < 1e-9


def test_a_block_accepts_more_than_token_by_token():
    """Theorem 2 of Sun et al. (2024): never less, and more where ratios before make up for those after."""
    assert drawn(VARIATIONS["block-verification"].wrappers["verify"].wrap(rules.verify))[1] > drawn(rules.verify)[1]


@pytest.fixture(scope="module")
def right():
    with served(PROBABILISTIC) as client:
        yield client.complete(ASKED), client.complete(ASKED | {"logprobs": 2})


@pytest.mark.examples(2)
@pytest.mark.parametrize("name", [name for name, one in VARIATIONS.items() if one.wrappers])
def test_a_variation_of_the_rules_leaves_temperature_0_alone(name, right):
    with served(PROBABILISTIC, variation=name) as client:
        assert client.complete(ASKED)["choices"][0]["token_ids"] == right[0]["choices"][0]["token_ids"]


def test_best_drafts_keep_to_a_grammar():
    """Drafts drawn along one prefix and replaced along another are none that the grammar allows."""
    regex = {"regex": "(red|green|blue)(, (red|green|blue)){8,12}"}
    with served(PROBABILISTIC, variation="best-drafts") as client:
        answers = [
            client.chat("Name three colours.", temperature=1, max_tokens=40, structured_outputs=regex, seed=seed) for seed in range(1, 13)
        ]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert all(set(text.rstrip(", ").split(", ")[:-1]) <= {"red", "green", "blue"} for text in texts)


def test_best_drafts_end_with_the_first_that_was_not_drawn():
    q = np.array([[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]] * 3, np.float32)
    drawn = DraftProposal(tokens=np.array([[0, 1, 0], [0, 0, 0], [1, 1, 0]]), counts=np.array([3, 3, 2]), q=q)
    best = lawful.best_drafts(drawn)
    assert best.counts.tolist() == [3, 2, 1]
    assert best.tokens.tolist() == [[0, 1, 0]] * 3
    assert best.q is None


@pytest.mark.examples(2)
@pytest.mark.parametrize("name", sorted(set(VARIATIONS) - {"refused-bias"}))
def test_under_a_variation_a_seed_repeats_its_answer(name):
    asked = {**ASKED, "temperature": 1, "seed": 7}
    with served(PROBABILISTIC, variation=name) as client:
        first, _, again = (client.complete(each)["choices"][0]["text"] for each in (asked, {**asked, "seed": 8}, asked))
    assert first == again


def test_a_refused_bias_is_a_clean_400():
    with served(PROBABILISTIC, variation="refused-bias") as client:
        status, error = client.refused(ASKED | {"logit_bias": {"5": 1}})
        assert (status, error["param"]) == (400, "logit_bias")
        client.complete(ASKED)


def test_an_unknown_variation_is_refused():
    with pytest.raises(EngineError, match="no such variation"):
        lawful.wrappers("blok-verification")


def streamed(client, **more):
    events = client.stream("/v1/completions", ASKED | {"stream_options": {"include_usage": True}} | more)
    parts = [event["choices"][0] for event in events if event["choices"]]
    return [part["token_ids"] for part in parts], "".join(part["text"] for part in parts), parts[-1]["finish_reason"]


@pytest.mark.parametrize("steps, most", [(0, 1), (3, 12)])
def test_chunks_may_be_split_or_joined_and_hold_the_same(steps, most, right):
    with served(PROBABILISTIC, chunk_steps=steps) as client:
        chunks, text, finish = streamed(client)
    choice = right[0]["choices"][0]
    assert [token for chunk in chunks for token in chunk] == choice["token_ids"]
    assert (text, finish) == (choice["text"], choice["finish_reason"])
    assert max(map(len, chunks)) <= most
    assert steps == 0 or max(map(len, chunks)) > 4


def test_usage_ids_and_decimals_are_left_out_on_request(right):
    with served(PROBABILISTIC, usage=False, token_ids=False, logprob_decimals=4) as client:
        answer = client.complete(ASKED | {"logprobs": 2})
    assert "usage" not in answer
    assert "token_ids" not in answer["choices"][0]
    reported, exact = (each["choices"][0]["logprobs"]["token_logprobs"] for each in (answer, right[1]))
    assert reported == [round(value, 4) for value in exact]
