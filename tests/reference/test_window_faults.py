"""Faults at the edges of verify windows: wrong after a prompt of one window alone, and from where drafts stop on."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pytest_specdec.prompts.windows import WINDOWS
from tests.reference.asgi_client import NGRAM, served

LISTS = [request for request in WINDOWS.requests if isinstance(request.body["prompt"], str)]


def answered(client, request):
    return client.complete({**request.body, "return_token_ids": True})


def ids(answer):
    return answer["choices"][0]["token_ids"]


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_prompt_of_one_window_is_not_seen(length, ngram):
    requests = [request for request in WINDOWS.requests if request.id.startswith(f"prompt-{length}-")]
    with served(NGRAM, fault="prompt-taken-for-window") as client:
        differ = [ids(answered(client, request)) != ids(answered(ngram, request)) for request in requests]
    assert any(differ) is (length == NGRAM.tokens + 1)


def test_answers_go_wrong_where_drafts_stop_and_not_before(ngram):
    with served(NGRAM, fault="stale-where-drafts-stop") as client:
        wrong = [ids(answered(client, request)) for request in LISTS]
    right = [answered(ngram, request) for request in LISTS]
    assert any(tokens != ids(answer) for tokens, answer in zip(wrong, right, strict=True))
    for tokens, answer in zip(wrong, right, strict=True):
        until = first_stop(answer["metrics"]["speculative_decoding"])
        assert tokens[:until] == ids(answer)[:until]


def first_stop(report):
    """The tokens before the first step without a draft that follows one with accepted tokens."""
    accepted, drafted = report["per_step_accepted"], report["per_step_drafted"]
    stop = next(step for step, (before, _) in enumerate(pairwise(accepted), 1) if before and not drafted[step])
    return 1 + sum(accepted[:stop]) + stop
