"""Requests at the edges of speculation: prompts of every length up to a window and one token, and lists that drafts stop and start in."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.windows import WINDOWS
from tests.reference.asgi_client import NGRAM, served

SHORT = [request for request in WINDOWS.requests if isinstance(request.body["prompt"], list)]
LISTS = [request for request in WINDOWS.requests if request not in SHORT]


@pytest.mark.parametrize("draft_tokens", range(1, 9))
def test_prompts_are_one_token_shorter_than_a_window_as_long_and_one_longer(draft_tokens):
    assert {draft_tokens, draft_tokens + 1, draft_tokens + 2} <= {len(request.body["prompt"]) for request in SHORT}


def test_no_short_prompt_begins_as_the_one_before_it():
    assert all(one.body["prompt"][0] != other.body["prompt"][0] for one, other in pairwise(SHORT))


def test_they_are_sent_one_at_a_time_and_not_at_smoke_depth():
    assert (WINDOWS.concurrency, len(WINDOWS.at(Depth.SMOKE).requests)) == (1, 0)


@pytest.fixture(scope="module")
def steps():
    """Accepted and drafted tokens of each step, list by list, where the prompt is looked up."""
    with served(NGRAM, spec_decode_metrics="detailed") as client:
        answers = [client.complete(dict(request.body)) for request in LISTS]
    reports = [answer["metrics"]["speculative_decoding"] for answer in answers]
    return [list(zip(report["per_step_accepted"], report["per_step_drafted"], strict=True)) for report in reports]


def test_drafts_stop_after_accepted_ones_and_start_again_in_every_list(steps):
    for one in steps:
        stops = [number for number, ((accepted, _), (_, drafted)) in enumerate(pairwise(one)) if accepted and not drafted]
        assert len(stops) >= 2
        assert any(accepted for accepted, _ in one[stops[0] + 1 :])
