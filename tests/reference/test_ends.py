"""How the reference engine ends its answers, rightly and by the faults of ends."""

from __future__ import annotations

import pytest

from tests.reference.asgi_client import NGRAM, served

ASKED = {"prompt": "List three colours:", "temperature": 0, "max_tokens": 64, "return_token_ids": True}
EOS = 2


def ends(client, **body):
    answers = client.complete(*({**ASKED, **body, "prompt": text} for text in ("A", "import os\n", "one two three one two")))
    return [each["choices"][0] for each in answers]


@pytest.fixture(scope="module")
def right():
    with served(NGRAM) as client:
        yield ends(client)


@pytest.mark.parametrize("fault, reason", [("cut-short", "length"), ("stop-short", "stop")])
def test_answers_cut_short_hold_a_tenth_of_the_right_ones(fault, reason, right):
    with served(NGRAM, fault=fault) as client:
        for mine, own in zip(ends(client), right, strict=True):
            assert mine["token_ids"] == own["token_ids"][:7]
            assert mine["finish_reason"] == (reason if len(own["token_ids"]) > 7 else own["finish_reason"])


def test_answers_past_the_end_begin_as_the_right_ones_and_reach_the_limit(right):
    with served(NGRAM, fault="past-the-end") as client:
        for mine, own in zip(ends(client), right, strict=True):
            assert mine["token_ids"][: len(own["token_ids"])] == own["token_ids"]
            assert (len(mine["token_ids"]), mine["finish_reason"]) == (64, "length")


def test_a_wrong_finish_leaves_the_tokens_alone(right):
    with served(NGRAM, fault="wrong-finish") as client:
        assert [(e["token_ids"], e["finish_reason"]) for e in ends(client)] == [(e["token_ids"], "length") for e in right]
