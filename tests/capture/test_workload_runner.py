"""What draws without a seed is in flight with no request that has one, whichever way the servers are placed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.files import transcripts
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family


def drawn(workload, seeds):
    """A workload whose requests draw, with these seeds."""
    requests = []
    for request, seed in zip(workload.requests, seeds, strict=True):
        body = {**request.body, "temperature": 1.0, **({} if seed is None else {"seed": seed})}
        requests.append(replace(request, body=body))
    return replace(workload, requests=tuple(requests))


@pytest.mark.parametrize("placement", [Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def test_seeded_and_unseeded_draws_are_never_in_flight_together(placement, config, workload, directory):
    mixed = drawn(workload("mixed", requests=6, scored=False, concurrency=6), [1, None, 2, None, None, 3])
    unseeded = drawn(workload("unseeded", requests=3, scored=False, concurrency=3), [None] * 3)
    plain = workload("plain", requests=3, scored=False)
    wanted = [SelectedWorkload(workload=one, family=Family.STRUCTURED) for one in (mixed, unseeded, plain)]
    plan = make(replace(config, placement=placement), wanted, Depth.SMOKE)
    status = record(replace(config, placement=placement), plan, directory, deadline_s=None, tell=lambda _: None)
    assert status.state is State.COMPLETE
    for arm in ("baseline", "control", *(pair.name for pair in plan.pairs)):
        flights = []
        for one in (mixed, unseeded, plain):
            asked = one.by_id
            answers = transcripts.read(directory, arm, one.name).answers
            assert [answer.request_id for answer in answers] == list(asked), "written in the order of the workload"
            flights += [(asked[answer.request_id], answer.timing) for answer in answers]
        without = [timing for request, timing in flights if request.draws_unseeded]
        seeded = [timing for request, timing in flights if request.seed is not None]
        assert (len(without), len(seeded)) == (6, 3)
        for one in without:
            assert all(one.done_s <= other.sent_s or other.done_s <= one.sent_s for other in seeded)
