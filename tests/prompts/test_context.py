"""The requests at the ends of contexts: their lengths once the limit is known, and what is left without one."""

from __future__ import annotations

import pytest

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.context import EDGES, LONG, fitted, is_open


def total(request):
    return len(request.body["prompt"]) + request.body["max_tokens"]


@pytest.mark.parametrize("limit", [600, 1024, 4096, 8192])
def test_requests_reach_the_limit_and_one_token_beyond(limit):
    assert {request.id: total(request) - limit for request in fitted(EDGES, limit).requests if request.id != "short"} == {
        "limit-exact": 0,
        "limit-plus-1": 1,
        "limit-one-token": 0,
        "limit-two-tokens": 0,
        "limit-four-tokens": 0,
        "limit-no-room": 1,
    }
    totals = {request.id: total(request) for request in fitted(LONG, limit).requests}
    full = {id_ for id_, tokens in totals.items() if tokens == limit}
    assert full == {id_ for id_ in totals if id_.startswith("limit-full-")}
    assert len(full) == 3
    assert max(tokens for id_, tokens in totals.items() if id_ not in full) == limit - 1


def test_no_two_scored_answers_that_end_at_the_limit_are_the_same_sequence():
    full = [request for request in fitted(LONG, 1024).requests if request.id.startswith("limit-full-")]
    assert len({tuple(request.body["prompt"][:8]) for request in full}) == len(full)


@pytest.mark.parametrize("limit", [None, 8193, 131072])
def test_without_a_limit_that_can_be_filled_prompts_of_block_sizes_are_left(limit):
    assert [request.id for request in fitted(EDGES, limit).requests] == ["short"]
    assert sorted(len(request.body["prompt"]) for request in fitted(LONG, limit).requests) == [8, 31, 64, 128, 129, 512]


def test_prompts_that_do_not_fit_are_left_out():
    assert max(map(total, fitted(LONG, 100).requests)) == 100


@pytest.mark.parametrize("workload", [EDGES, LONG])
def test_a_fitted_workload_is_closed(workload):
    assert is_open(workload)
    assert not is_open(fitted(workload, 1024))
    assert fitted(fitted(workload, 1024), 2048) == fitted(workload, 1024)


def test_both_together_stay_within_their_budget():
    assert len(EDGES.requests) + len(LONG.requests) == 19
    assert len(EDGES.at(Depth.SMOKE).requests) + len(LONG.at(Depth.SMOKE).requests) == 4
