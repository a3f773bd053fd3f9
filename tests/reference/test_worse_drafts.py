"""Worse drafts cost accepted tokens and change none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served

ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 200, "return_token_ids": True, "ignore_eos": True}


def answered(speculation=PROBABILISTIC, body=ASKED, **settings):
    """The tokens, and the accepted ones of each step."""
    with served(speculation, spec_decode_metrics="detailed", **settings) as client:
        answer = client.complete(body)
    return answer["choices"][0]["token_ids"], answer["metrics"]["speculative_decoding"]["per_step_accepted"]


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "fault, speculation", [("draft-cache-stale", PROBABILISTIC), ("drafts-worse", PROBABILISTIC), ("drafts-worse", NGRAM)]
)
def test_fewer_drafts_are_accepted_for_the_same_tokens(fault, speculation):
    right, healthy = answered(speculation)
    tokens, accepted = answered(speculation, fault=fault)
    assert tokens == right
    assert np.mean(accepted) < np.mean(healthy)


def test_drafts_die_behind_200_tokens_of_an_answer_and_not_before():
    long = ASKED | {"max_tokens": 232}
    right, healthy = answered(body=long)
    tokens, accepted = answered(body=long, fault="dead-drafts-late")
    died = next(step for step, (one, other) in enumerate(zip(healthy, accepted, strict=False)) if one != other)
    assert tokens == right
    assert 200 < 1 + sum(accepted[:died]) + died <= 204
    assert not any(accepted[died:])


def test_a_grammar_costs_every_draft_and_nothing_else_any():
    document = ASKED | {"response_format": {"type": "json_object"}, "max_tokens": 24}
    right, healthy = answered(body=document)
    tokens, accepted = answered(body=document, fault="dead-drafts-grammar")
    assert (tokens, max(accepted)) == (right, 0)
    assert max(healthy) > 0
    assert answered(fault="dead-drafts-grammar") == answered()


@pytest.mark.parametrize("variation", ["best-drafts", "uneven-steps"])
def test_a_lawful_way_of_drafting_keeps_the_tokens(variation):
    assert answered(variation=variation)[0] == answered()[0]
