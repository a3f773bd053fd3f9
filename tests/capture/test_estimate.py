"""An estimate that a capture corrects."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import estimate
from pytest_specdec.capture.completeness import Completeness
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, make
from pytest_specdec.config.config import Overlay
from pytest_specdec.model.event import Event, EventStep
from pytest_specdec.model.plan import Placement, Rates
from pytest_specdec.model.status import BootTime, State, Status
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.report.plan import lines


@pytest.fixture
def plan(config, workload):
    rates = Rates(boot_s=10.0, tokens_per_s=2.0, scored_tokens_per_s=4.0, scaling=0.5)

    def _plan(config=config):
        return make(
            config,
            [SelectedWorkload(workload=workload(passes=100), family=Family.GREEDY)],
            Depth.STANDARD,
            options=PlanOptions(rates=rates),
        )

    return _plan


def took(plan, answering, scoring=1.0, part=1.0):
    """Return what the first ``part`` of the plan's steps took, in multiples of what was expected."""
    steps = estimate.steps(plan.boots, plan.workloads, plan.rates)
    done = steps[: round(len(steps) * part)]
    factor = {"answering": answering, "scoring": scoring}
    return {step: step.seconds * factor[step.kind] for step in done if step.kind in factor}


def seconds(plan, rates):
    return estimate.total(estimate.steps(plan.boots, plan.workloads, rates), plan.servers)


def test_every_boot_is_estimated_step_by_step(plan):
    """A baseline is probed before it answers and a variant after it; the last baseline boot scores; each server is stopped."""
    one = plan()
    shown = [(step.boot, step.kind, step.arm, step.seconds) for step in estimate.steps(one.boots, one.workloads, one.rates)]
    answered = [(boot, arm) for boot, arm in enumerate(("baseline", "draft-k3", "ngram-k3", "control"))]
    steps = {boot: [(boot, "booting", arm, 10.0), (boot, "answering", arm, 1500.0)] for boot, arm in answered}
    steps[0].insert(1, (0, "probing", "baseline", 50.0))
    steps[1].append((1, "probing", "draft-k3", 50.0))
    steps[2].append((2, "probing", "ngram-k3", 50.0))
    steps[3] += [(3, "scoring", arm, 750.0) for arm in ("draft-k3", "ngram-k3", "control", "baseline")]
    for boot, arm in answered:
        steps[boot].append((boot, "stopping", arm, 0.4))
    assert shown == [step for boot in range(4) for step in steps[boot]]


def test_a_token_scored_by_a_request_of_its_own_costs_eight_times_as_much(plan):
    one = plan()
    for route, scoring_s in ((ScoringRoute.PROMPT_LOGPROBS, 750.0), (ScoringRoute.CONTINUATIONS, 6000.0)):
        steps = estimate.steps(one.boots, one.workloads, one.rates, route=route)
        assert {step.seconds for step in steps if step.kind == "scoring"} == {scoring_s}
        assert {step.seconds for step in steps if step.kind == "answering"} == {1500.0}


@pytest.mark.parametrize(
    "fields, answering_s",
    [
        ({"concurrency": 1}, 60.0),
        ({"concurrency": 4}, 30.0),
        ({"concurrency": 99}, 24.0),
        ({"concurrency": 4, "timed": True}, 37.5),
        ({"concurrency": 4, "timed": True, "passes": 1}, 15.0),
    ],
)
def test_requests_side_by_side_save_time_and_a_timed_pass_is_warmed_up(plan, workload, fields, answering_s):
    """Five requests of six tokens, four passes, at two tokens per second and half of it for each further stream."""
    one = replace(plan(), workloads=(workload(**{"passes": 4, **fields}),))
    assert {step.seconds for step in estimate.steps(one.boots, one.workloads, one.rates) if step.kind == "answering"} == {answering_s}


@pytest.mark.parametrize(
    "limit, fields, answering_s",
    [
        (6, {}, 6.0),
        (24, {}, 12.0),
        (600, {}, 300.0),
        (600, {"passes": 3}, 900.0),
        (600, {"passes": 3, "timed": True}, 1200.0),
    ],
)
def test_no_pass_ends_before_its_longest_answer(plan, workload, limit, fields, answering_s):
    """Four requests of six tokens and one of ``limit``, all at once: 2.5 streams' worth of two tokens per second."""
    short = workload(**{"concurrency": 5, "passes": 1, **fields})
    longest = replace(short.requests[-1], body={**short.requests[-1].body, "max_tokens": limit})
    one = replace(plan(), workloads=(replace(short, requests=(*short.requests[:-1], longest)),))
    steps = estimate.steps(one.boots, one.workloads, one.rates)
    assert {step.seconds for step in steps if step.kind == "answering"} == {answering_s}


@pytest.mark.parametrize("servers, booting_s", [(2, 24.0), (3, 24.0), (4, 16.0)])
def test_servers_that_boot_at_once_delay_each_other_and_scoring_rides_behind_the_answers(plan, servers, booting_s):
    one = plan()
    steps = estimate.steps(one.boots, one.workloads, one.rates)
    assert estimate.total(steps, 1) == pytest.approx(4 * 10.4 + 3 * 50.0 + 4 * 1500.0 + 4 * 750.0)
    assert estimate.total(steps, servers) == pytest.approx(booting_s + 3 * 50.0 + 4 * 1500.0)


def test_fresh_servers_after_events_cost_boots_where_something_follows(config, workload):
    """Two variants are probed after theirs, and the control's answers are scored; the baseline has answered all that it is asked."""
    events = (Event(name="sleep", steps=(EventStep(path="/sleep"),), before="p1"),)
    last, first = workload(name="z", events=events), workload(name="a")
    selected = [SelectedWorkload(workload=one, family=Family.GREEDY) for one in (first, last)]
    made = make(config, selected, Depth.STANDARD, options=PlanOptions(rates=Rates(boot_s=10.0, tokens_per_s=2.0, scored_tokens_per_s=4.0)))
    quiet = [replace(workload, events=()) for workload in made.workloads]
    steps, without = (estimate.steps(made.boots, workloads, made.rates) for workloads in (made.workloads, quiet))
    dearer = {step.arm: step.seconds - other.seconds for step, other in zip(steps, without, strict=True) if step != other}
    assert dearer == pytest.approx(dict.fromkeys(("draft-k3", "ngram-k3", "control"), 10.4))
    assert {step.workload for step, other in zip(steps, without, strict=True) if step != other} == {"z"}
    assert "4 boots (baseline, draft-k3, ngram-k3, control) and 3 fresh starts after events" in "\n".join(
        lines(made, origin="RUN", replayed=False)
    )


def test_a_soak_costs_its_seconds_and_a_fresh_server_but_for_the_control(config, workload):
    selected = [SelectedWorkload(workload=workload(name=name), family=Family.GREEDY) for name in ("a", "z")]
    made = make(config, selected, Depth.STANDARD, options=PlanOptions(rates=Rates(boot_s=10.0, tokens_per_s=2.0, scored_tokens_per_s=4.0)))
    soaked = [replace(one, soak_s=600.0 if one.name == "a" else 0.0) for one in made.workloads]
    steps, without = (estimate.steps(made.boots, workloads, made.rates) for workloads in (soaked, made.workloads))
    dearer = {step.arm: step.seconds - other.seconds for step, other in zip(steps, without, strict=True) if step != other}
    assert dearer == pytest.approx(dict.fromkeys(("baseline", "draft-k3", "ngram-k3"), 610.4))


def test_the_plan_counts_the_judging_after_its_steps(plan):
    one = plan()
    assert one.estimate_s == pytest.approx(seconds(one, one.rates) + 0.15 * len(one.judgements))


def test_rates_of_an_unknown_server_are_known_once_they_are_measured(plan, config):
    one, beside = plan(), plan(replace(config, placement=Placement.SIDE_BY_SIDE))
    for measured in (one, beside):
        unknown = replace(measured, rates=replace(measured.rates, known=False))
        assert estimate.measured_rates(unknown, took(unknown, 2.0), dict.fromkeys(range(4), 10.0), 9000.0).known


def test_rates_that_were_measured_would_have_estimated_what_it_took(plan):
    one = plan()
    found = estimate.measured_rates(one, took(one, 2.0, 0.5), {0: 30.0, 1: 20.0, 2: 21.0, 3: 1.0}, 0.0)
    assert (found.boot_s, found.tokens_per_s, found.scored_tokens_per_s, found.scaling) == (20.5, 1.0, 8.0, 0.5)
    assert seconds(one, found) == pytest.approx(4 * 20.5 + sum(took(one, 2.0, 0.5).values()), rel=0.1)


@pytest.mark.parametrize("placement", [Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def test_timed_answers_have_a_rate_of_their_own_under_the_settings_for_speed(plan, config, workload, placement):
    """Thirty tokens are sent in two passes and a warm-up, all streams together at three tokens per second, and half as fast in the end."""
    one = plan(replace(config, placement=placement))
    rates = replace(one.rates, timed_tokens_per_s=3.0)
    one = replace(one, workloads=(workload(passes=2, timed=True),), rates=rates)
    steps = [step for step in estimate.steps(one.boots, one.workloads, rates) if step.kind == "answering"]
    assert {(step.seconds, step.timed) for step in steps} == {(30.0, True)}
    wall_s = 2.0 * sum(step.seconds for step in steps) + 16.0
    found = estimate.measured_rates(one, took(one, 2.0), {boot.index: 16.0 for boot in one.boots}, wall_s)
    in_turn = placement is Placement.IN_TURN
    assert (found.timed_tokens_per_s, found.tokens_per_s) == (1.5, 2.0 if in_turn else 1.0)


def test_less_than_half_of_a_plan_measures_nothing(plan):
    one = plan()
    assert estimate.measured_rates(one, {}, {0: 1.0, 1: 1.0}, 0.0) is None
    assert estimate.measured_rates(one, took(one, 1.0), {}, 0.0) is None
    assert estimate.measured_rates(one, took(one, 1.0, part=0.2), {0: 1.0}, 0.0) is None


def test_visits_of_attached_servers_take_no_boots_time_and_measure_none(plan, config):
    booted, mixed = plan(), plan(replace(config, baseline=Overlay(url="http://a:1")))
    visits = sum(boot.attached for boot in mixed.boots)
    assert 0 < visits < len(mixed.boots)
    assert booted.estimate_s - mixed.estimate_s == pytest.approx(visits * 9.9)
    readiness = {boot.index: 0.1 if boot.attached else 20.0 for boot in mixed.boots}
    assert estimate.measured_rates(mixed, took(mixed, 2.0), readiness, 0.0).boot_s == 20.0
    visited = plan(replace(config, engine=replace(config.engine, url="http://a:1")))
    found = estimate.measured_rates(visited, took(visited, 2.0), {boot.index: 0.1 for boot in visited.boots}, 0.0)
    assert (found.boot_s, found.tokens_per_s) == (10.0, 1.0)


def test_where_nothing_was_scored_the_rate_of_scoring_stays(plan):
    one = plan()
    answered = {step: taken for step, taken in took(one, 2.0).items() if step.kind == "answering"}
    found = estimate.measured_rates(one, answered, dict.fromkeys(range(4), 10.0), 0.0)
    assert (found.tokens_per_s, found.scored_tokens_per_s) == (1.0, 4.0)


def test_side_by_side_the_whole_time_counts(plan, config):
    beside = plan(replace(config, placement=Placement.SIDE_BY_SIDE))
    assert beside.servers == 4
    found = estimate.measured_rates(beside, took(beside, 3.0), dict.fromkeys(range(4), 16.0), 9000.0)
    assert found.boot_s == 10.0
    assert seconds(beside, found) == pytest.approx(9000.0, rel=0.1)
    assert found.tokens_per_s == pytest.approx(2.0 * 6000.0 / (9000.0 - 16.0), abs=0.1)
    assert estimate.measured_rates(beside, took(beside, 3.0), dict.fromkeys(range(4), 16.0), 10.0).tokens_per_s == 12_000.0


def test_a_resumed_capture_measures_by_the_boots_of_its_own_time(plan, config):
    """Boots of an earlier capture took no part of the seconds that this one took: without theirs its answers would seem too fast."""
    beside = plan(replace(config, placement=Placement.SIDE_BY_SIDE, limits=replace(config.limits, servers=2)))
    times = {boot.index: BootTime(boot=boot.index, arm=boot.arm, readiness_s=400.0, wall_s=1.0, busy=1.0) for boot in beside.boots}
    earlier = Status(state=State.INCOMPLETE, served=(times[0],))
    record = Completeness(beside, earlier=earlier)
    for boot in beside.boots[1:]:
        record.record_end(boot, SimpleNamespace(restarts=0, readiness_s=400.0, wall_s=1.0, busy_s=1.0))
    done = {step: taken for step, taken in took(beside, 1.0).items() if step.boot > 0}
    status = record.status(wall_s=2000.0, done_s=done)
    assert len(status.served) == 4
    assert status.rates == estimate.measured_rates(beside, done, dict.fromkeys((1, 2, 3), 400.0), 2000.0)
    assert status.rates != estimate.measured_rates(beside, done, dict.fromkeys(range(4), 400.0), 2000.0)
