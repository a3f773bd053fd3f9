"""Servers that fail under concurrency only, now and then, or slowly: what is found, what is counted, and what a hang may cost."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pytest_specdec.capture import deadlines
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.config.config import Limits
from pytest_specdec.files import captured, transcripts
from pytest_specdec.judge import liveness
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family
from tests.capture.conftest import config, directory, fake_engine, with_args, workload  # noqa: F401 - fixtures

VARIANT = "draft-k3"


@pytest.fixture
def run(directory):  # noqa: F811
    """Record, and give the status; ``run.said`` is the progress."""

    def _run(config, *workloads, depth=Depth.SMOKE, deadline_s=None):  # noqa: F811
        _run.plan = make(config, [SelectedWorkload(workload=w, family=Family.LIVENESS) for w in workloads], depth, [VARIANT])
        _run.status = record(config, _run.plan, directory, deadline_s=deadline_s, tell=_run.said.append)
        return _run.status

    _run.said, _run.plan, _run.status = [], None, None
    return _run


@pytest.fixture
def judged(run, directory):  # noqa: F811
    """The verdict on one of the workloads recorded."""

    def _judged(name="greedy"):
        judgement = next(judgement for judgement in run.plan.judgements if judgement.workload == name)
        return liveness.judge(captured.read(directory, run.plan, judgement, ()))

    return _judged


def in_company(of, **args):
    """Misbehave with that many requests of the workload ``greedy`` in flight, each of which takes a while."""
    return {"company": of, "slow": 0.4, **args}


@pytest.mark.chaos("dies with 4 requests in flight", expected="fail: died, 4 in flight; the next workload 2 at a time, pass", quick=True)
def test_a_death_in_company_names_the_smallest_group(run, judged, seen, config, workload, directory, with_args):  # noqa: F811
    config = with_args(config, VARIANT, die_on=" of ", **in_company(4))
    run(config, workload(requests=8, concurrency=8), workload("next", requests=6, concurrency=6))
    verdict, after = judged(), judged("next")
    most = transcripts.read(directory, VARIANT, "next").concurrency
    seen(f"{verdict.outcome}: {verdict.cell}; the next workload {most} at a time, {after.outcome}")
    (together,) = [c for c in transcripts.read(directory, VARIANT, "greedy").server_failures if c.recurred]
    assert len(together.group) == 4
    assert f"{VARIANT} was asked 2 at a time instead of 6: its server fails with more in flight" in after.evidence
    assert any("2 requests at a time from here on" in told.doing for told in run.said)
    assert run.status.state is State.COMPLETE


@pytest.mark.chaos("hangs with 3 requests in flight", expected="fail: hung, 4 in flight; the rest answered")
def test_a_hang_in_company_names_the_smallest_group(run, judged, seen, config, workload, directory, with_args):  # noqa: F811
    config = with_args(config, VARIANT, hang_on=" of ", **in_company(3))
    run(config, workload(requests=6, concurrency=4, deadline_s=1.0))
    verdict = judged()
    rest = all(answer.ok for answer in transcripts.read(directory, VARIANT, "greedy").answers)
    seen(f"{verdict.outcome}: {verdict.cell}; {'the rest answered' if rest else 'answers missing'}")


@pytest.mark.chaos("answers 500 with 2 requests in flight", expected="fail: 5xx, 2 in flight")
def test_an_internal_error_in_company_is_a_finding(run, judged, seen, config, workload, with_args):  # noqa: F811
    run(with_args(config, VARIANT, break_on=" of ", **in_company(2)), workload(requests=4, concurrency=2))
    seen(f"{judged().outcome}: {judged().cell}")


@pytest.mark.chaos("baseline and variant die with 4 in flight", expected="invalid: the baseline does not survive it either")
def test_company_that_the_baseline_does_not_survive_is_invalid(run, judged, seen, config, workload, with_args):  # noqa: F811
    run(with_args(config, None, die_on=" of ", **in_company(4)), workload(requests=4, concurrency=4))
    verdict = judged()
    assert "the baseline does not survive 4 requests in flight together" in verdict.headline
    seen(f"{verdict.outcome}: the baseline does not survive it either")


@pytest.mark.chaos("dies once, with 4 in flight", expected="invalid: infrastructure, one failure; others pass", quick=True)
def test_one_death_is_infrastructure(run, judged, seen, config, workload, directory, with_args):  # noqa: F811
    config = with_args(config, VARIANT, die_on="p2 of greedy", slow=0.4, only_once=str(directory.root / "once"))
    run(config, workload(concurrency=4), workload("next"))
    verdict, transcript = judged(), transcripts.read(directory, VARIANT, "greedy")
    assert verdict.headline.startswith("infrastructure: the server dies on request p0 (and 3 more in flight) once, and not again")
    seen(f"{verdict.outcome}: infrastructure, {['no', 'one'][len(transcript.unexplained)]} failure; others {judged('next').outcome}")


@pytest.mark.chaos("500 at three of 20 requests, never at the baseline", expected="fail in all 4 workloads: 3 scattered, p = 0.018")
def test_scattered_failures_are_counted_over_the_whole_run(run, judged, seen, config, workload, directory, with_args):  # noqa: F811
    config = with_args(config, VARIANT, break_on=" of ", numbers="3,9,15", tally=str(directory.root / "tally"))
    names = ("a", "b", "c", "z-untouched")
    run(config, *(workload(name, concurrency=1) for name in names))
    verdicts = [judged(name) for name in names]
    outcomes = {verdict.outcome for verdict in verdicts}
    first = verdicts[0]
    assert first.figures["scattered_failures"] == 3
    assert "outside the 1e-3 budget" in first.short[-1]
    seen(f"{'/'.join(outcomes)} in all {len(names)} workloads: {first.cell}, p = {first.figures['p_value']:.2g}")


@pytest.mark.chaos("dies under concurrency in every workload", expected="1 found, 3 asked 1 at a time, 0 missing, 3 restarts")
def test_one_finding_about_company_leaves_the_others_captured(run, judged, seen, config, workload, directory, with_args):  # noqa: F811
    config = with_args(config, VARIANT, die_on=" of ", **in_company(2))
    names = ("a", "b", "c", "d")
    status = run(config, *(workload(name, requests=4, concurrency=4) for name in names))
    found = sum(judged(name).outcome is Outcome.FAIL for name in names)
    alone = sum(transcripts.read(directory, VARIANT, name).concurrency == 1 for name in names[1:])
    seen(f"{found} found, {alone} asked 1 at a time, {len(status.missing)} missing, {status.restarts} restarts")


@pytest.mark.chaos("hangs where the baseline needs a moment; limit 120 s", expected="fail: 1 hung, no answer within 1.5 s", quick=True)
def test_a_hang_is_given_what_the_baseline_needed(run, judged, seen, config, workload, directory, with_args, monkeypatch):  # noqa: F811
    monkeypatch.setattr(deadlines, "FLOOR_S", 1.5)
    config = replace(with_args(config, VARIANT, hang_on="p3 of greedy"), limits=replace(config.limits, request_s=120.0))
    run(config, workload(concurrency=1), depth=Depth.STANDARD)
    verdict = judged()
    error = transcripts.read(directory, VARIANT, "greedy").answers[3].error
    assert "(the baseline needed 0.0" in error
    seen(f"{verdict.outcome}: {verdict.cell}, no answer within {error.partition('no answer within ')[2].partition(' (')[0]}")


ENDS = [
    ("completions hang behind a healthy /health", {"hang_healthy": True}, Placement.IN_TURN, 2.0),
    ("a request hangs", {"hang_on": "p0 of greedy"}, Placement.IN_TURN, 4.0),
    ("a request hangs, servers side by side", {"hang_on": "p0 of greedy"}, Placement.SIDE_BY_SIDE, 6.0),
    ("/health hangs", {"hang_get": "/health"}, Placement.IN_TURN, 2.0),
    ("/metrics hangs", {"hang_get": "/metrics"}, Placement.IN_TURN, 5.0),
    ("scoring hangs", {"hang_on_scoring": True}, Placement.IN_TURN, 5.0),
]


@pytest.mark.parametrize(
    "args, placement, deadline_s",
    [
        pytest.param(
            *case, marks=pytest.mark.chaos(f"{fault}; capture deadline {case[-1]:g} s", expected="over, nothing left", quick=case[-1] < 5.0)
        )
        for fault, *case in ENDS
    ],
)
def test_no_wait_outlasts_the_capture(run, seen, config, workload, with_args, directory, args, placement, deadline_s):  # noqa: F811
    """Attacked before: 8 s of 2, and 12.5 s of 3."""
    config = replace(with_args(config, None, **args), placement=placement, limits=Limits(boot_s=60.0, request_s=120.0, stop_s=0.5))
    began_s = time.monotonic()
    status = run(config, workload(), deadline_s=deadline_s)
    took_s = time.monotonic() - began_s
    left = list((directory.root / "servers").glob("*.json"))
    assert "the time given to the capture is used up" in status.error
    assert took_s < deadline_s + config.limits.stop_s + 2.0
    seen("over, nothing left" if not left else f"left: {left}")
