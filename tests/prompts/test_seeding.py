"""Seeding: one seed again, other seeds, none, and several choices."""

from __future__ import annotations

from collections import Counter

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import OPEN_ENDED
from pytest_specdec.prompts.seeding import seeding


def test_depths_send_so_many_requests():
    assert [len(seeding(OPEN_ENDED).at(depth).requests) for depth in (Depth.SMOKE, Depth.STANDARD)] == [10, 81]


def test_one_seed_comes_again_alone_and_in_company():
    turns = seeding(OPEN_ENDED).at(Depth.STANDARD).turns
    alone, beside = Counter(), Counter()
    for turn in turns:
        for request in turn:
            if request.seed is not None:
                (alone if len(turn) == 1 else beside)[request.prompt_key, request.seed] += 1
    assert sum(count - 1 for count in alone.values()) == 24
    assert {key for key, count in alone.items() if count == 2} <= beside.keys()


def test_unseeded_draws_are_sent_one_after_the_other_and_together():
    turns = seeding(OPEN_ENDED).at(Depth.STANDARD).turns
    unseeded = [len(turn) for turn in turns if turn[0].seed is None]
    assert unseeded == [1, 1, 2, 1]
    assert all(len({request.seed is None for request in turn}) == 1 for turn in turns)


def test_deeper_requests_are_of_other_prompts_and_seeds():
    requests = seeding(OPEN_ENDED).requests
    first, second = ({(r.prompt_key, r.seed) for r in requests[at : at + 81]} for at in (0, 81))
    assert not first & second


def test_draws_are_of_the_raw_distribution():
    assert all(request.unprocessed or "n" in request.body for request in seeding(OPEN_ENDED).requests)
