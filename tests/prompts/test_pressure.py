"""Pressure's requests: many at once, streamed, plain, penalised and bound to a schema."""

from __future__ import annotations

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import pressure

WORKLOAD = pressure.together(take={Depth.SMOKE: 0, Depth.STANDARD: 16, Depth.DEEP: 48})


def test_standard_sends_sixteen_at_once_of_every_kind():
    sent = WORKLOAD.at(Depth.STANDARD)
    kinds = [(request.grammar is not None, "presence_penalty" in request.body) for request in sent.requests]
    assert (len(kinds), kinds.count((True, False)), kinds.count((False, True))) == (16, 2, 6)
    assert (sent.concurrency, sent.stream, sent.small_cache) == (16, True, True)


def test_deep_sends_more_and_smoke_none():
    assert (len(WORKLOAD.at(Depth.DEEP).requests), len(WORKLOAD.at(Depth.SMOKE).requests)) == (48, 0)
    assert len({request.id for request in WORKLOAD.requests}) == len(WORKLOAD.requests)


def test_all_are_at_temperature_0():
    assert {request.body["temperature"] for request in WORKLOAD.requests} == {0.0}
