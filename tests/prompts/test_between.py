"""Prompts around events: the same requests before the first event and after each."""

from __future__ import annotations

from pytest_specdec.judge.greedy import LEAST_TOKENS
from pytest_specdec.model.event import BEFORE, EventStep
from pytest_specdec.prompts import between
from pytest_specdec.prompts.own import with_own_prompts

STEPS = {"sleep-1": (EventStep(path="/sleep?level=1"), EventStep(path="/wake_up")), "refit": (EventStep(command=("refit",)),)}


def test_the_same_requests_are_sent_before_the_first_event_and_after_each():
    base, workload = between.around_events(), between.with_events(between.around_events(), STEPS)
    phases = [[r for r in workload.requests if r.id.startswith(f"{name}/")] for name in (BEFORE, *STEPS)]
    assert [[r.body for r in phase] for phase in phases] == [[r.body for r in base.requests]] * 3
    assert [(event.name, event.before) for event in workload.events] == [("sleep-1", phases[1][0].id), ("refit", phases[2][0].id)]
    assert [len(turn) for turn in workload.turns] == [1, 1, 1, 3] * 3, "one at a time, then together"
    assert {request.id for event in workload.events for request in workload.turns[4 * (1 + workload.events.index(event))]} == {
        event.before for event in workload.events
    }


def test_a_single_event_has_the_tokens_that_a_pass_needs():
    workload = between.with_events(between.around_events(), {"refit": STEPS["refit"]})
    assert sum(request.token_limit for request in workload.requests) >= LEAST_TOKENS
    assert all(request.body["ignore_eos"] for request in workload.requests), "an early end would leave fewer"


def test_events_enter_the_digest_and_not_that_of_the_traffic():
    base, workload = between.around_events(), between.with_events(between.around_events(), STEPS)
    other = between.with_events(base, {**STEPS, "refit": (EventStep(command=("refit", "--again")),)})
    assert len({base.digest, workload.digest, other.digest}) == 3
    assert workload.traffic_digest == other.traffic_digest


def test_a_workload_without_need_of_events_stays_as_it_is():
    base = between.around_events()
    assert between.with_events(base, {}) is base
    assert with_own_prompts(base, ()) is base
