"""What becomes of a death, a hang and a 5xx: replayed alone, named by process and request, and known of both arms."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import group_replay, planner
from pytest_specdec.capture.client import TimedAnswer
from pytest_specdec.capture.failure import Job
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.sender import Sender, _first_failures
from pytest_specdec.capture.server import server, watchdog
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.files import captured, transcripts
from pytest_specdec.judge import liveness
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import Answer, FailureKind, Timing
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import CALIBRATION, Depth, Family

FAULTS = {"die_on": FailureKind.DIED, "hang_on": FailureKind.HUNG, "break_on": FailureKind.ERROR}


@pytest.fixture
def run(directory):
    def _run(config, *workloads):
        _run.plan = make(config, [SelectedWorkload(workload=w, family=Family.LIVENESS) for w in workloads], Depth.SMOKE, ["draft-k3"])
        status = record(config, _run.plan, directory, deadline_s=None, tell=lambda _: None)
        assert not list((directory.root / "servers").glob("*.json"))
        return status

    return _run


@pytest.fixture
def judged(run, directory):
    return lambda: liveness.judge(captured.read(directory, run.plan, run.plan.judgements[0], ()))


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault, ending", FAULTS.items())
def test_what_fails_again_alone_is_a_finding_where_the_baseline_survives_it(run, judged, config, workload, with_args, fault, ending):
    run(with_args(config, "draft-k3", **{fault: "p1 of greedy"}), workload(concurrency=1, deadline_s=0.7))
    verdict = judged()
    assert (verdict.outcome, verdict.cell) == (Outcome.FAIL, f"1 {ending.value}")
    assert "p1, alone on a fresh server too; the baseline answers it" in verdict.headline


def test_a_death_under_a_request_alone_that_its_client_would_have_left_is_a_finding(run, judged, config, workload, with_args):
    """Nothing else is in flight to show it."""
    asked = workload(concurrency=1, stream=True, deadline_s=5.0)
    leaving = tuple(replace(request, abort_after=4) if request.id == "p1" else request for request in asked.requests)
    run(with_args(config, "draft-k3", die_on="p1 of greedy"), replace(asked, requests=leaving))
    verdict = judged()
    assert verdict.outcome is Outcome.FAIL
    assert "p1, alone on a fresh server too; the baseline answers it" in verdict.headline


def test_a_workload_before_which_a_dead_server_is_started_again_has_its_counters(run, config, workload, directory, with_args, monkeypatch):
    monkeypatch.setattr(VllmDialect, "steps", lambda *_: None)
    monkeypatch.setattr(VllmDialect, "counted", lambda *_: None)
    first, second = workload("first", requests=3, concurrency=1), workload("second", concurrency=1)
    run(with_args(config, "draft-k3", die_on="p2 of first"), first, second)
    after = transcripts.read(directory, "draft-k3", "second")
    assert after.restarts == 1, "the last request of the first left it dead"
    assert after.counters.drafts == 3 * len(second.requests)


def test_a_failure_met_while_another_is_replayed_has_its_own_number(workload):
    arm = SimpleNamespace(restarts=0, running=True, dead_processes=(), log_tail=tuple, cause=str)
    sender = Sender(arm, workload(), name="v", deadlines=SimpleNamespace(limit_s=1.0), reporter=None, on_answer=None)
    hung = TimedAnswer(answer=Answer(request_id="p1", status=None), ending=FailureKind.HUNG)
    assert [each.failure for _ in range(2) for each in sender.create_failure([hung]).server_failures] == [0, 1]


@pytest.mark.examples(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_baseline_does_not_survive_either_is_invalid(run, judged, config, workload, with_args, fault):
    run(with_args(config, None, **{fault: "p1 of greedy"}), workload(concurrency=1, deadline_s=0.7))
    verdict = judged()
    assert verdict.outcome is Outcome.INVALID
    assert "the baseline does not survive request p1 either" in verdict.headline


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault, ending", FAULTS.items())
def test_what_does_not_recur_is_no_finding_and_no_pass(run, judged, config, workload, directory, with_args, fault, ending):
    config = with_args(config, "draft-k3", **{fault: "p1 of greedy"}, only_once=str(directory.root / "once"))
    assert run(config, workload(concurrency=1, deadline_s=0.7)).restarts == 1
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [(c.request_id, c.ending, c.recurred) for c in transcript.server_failures] == [("p1", ending, False)]
    assert all(answer.ok for answer in transcript.answers)
    assert judged().outcome is Outcome.INVALID


def test_an_engine_core_that_is_killed_is_named_with_its_request(run, config, workload, directory, with_args, monkeypatch):
    monkeypatch.setattr(server, "_EXIT_S", 10.0)  # the API process outlives it by half a second
    """As vLLM does: a 500 first, then the API process goes too, with exit code 0."""
    once = str(directory.root / "once")
    status = run(with_args(config, "draft-k3", engine_core=True, kill_core_on="p2 of greedy", only_once=once), workload(concurrency=1))
    (server_failure,) = transcripts.read(directory, "draft-k3", "greedy").server_failures
    assert (server_failure.request_id, server_failure.ending, status.restarts) == ("p2", FailureKind.DIED, 1)
    assert server_failure.process.startswith("VLLM::EngineCore -c import time")
    assert server_failure.process.endswith("is gone; server, exit code 0")


def test_an_api_process_that_is_killed_leaves_no_engine_core_behind(run, config, workload, directory, with_args, monkeypatch):
    stopped, real = [], watchdog.send
    monkeypatch.setattr(watchdog, "send", lambda number, found: (stopped.append(found), real(number, found)))
    once = str(directory.root / "once")
    run(with_args(config, "draft-k3", engine_core=True, die_on="p2 of greedy", only_once=once), workload(concurrency=1))
    (server_failure,) = transcripts.read(directory, "draft-k3", "greedy").server_failures
    assert (server_failure.request_id, server_failure.process) == ("p2", "server, killed by SIGKILL, exit code -9")
    assert any(stopped)
    seen = [(watchdog.stat(pid), started) for found in stopped for pid, started in found.items()]
    assert not any(state not in {"Z", "X"} and at == started for (state, _, at), started in seen), "a zombie waits for init, not for us"


@pytest.mark.parametrize("after", ["p4 of greedy", pytest.param("", marks=pytest.mark.nightly)])
def test_a_server_that_ends_after_its_last_answer_is_recorded_and_one_that_was_ended_here_is_not(
    run, judged, config, workload, directory, with_args, after
):
    status = run(with_args(config, "draft-k3", exit_after=after), workload(concurrency=1))
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert all(answer.ok for answer in transcript.answers)
    assert (status.state, status.restarts) == (State.COMPLETE, 0)
    ends = [(c.request_id, c.ending, c.recurred, c.process, c.log_tail[-1]) for c in transcript.server_failures]
    if after:
        assert ends == [("p4", FailureKind.DIED, None, "server, exit code 3, noticed after the last answer", "out of memory")]
        assert judged().outcome is Outcome.INVALID
    else:
        assert (ends, judged().outcome) == ([], Outcome.PASS)


def test_a_boot_has_six_restarts_over_all_its_workloads(run, config, workload, with_args):
    config = with_args(config, "draft-k3", die_on=" of ")
    status = run(config, *(workload(name, requests=1) for name in ("a", "b", "c", "d", "e")))
    assert (status.state, status.restarts) == (State.INCOMPLETE, 6)
    assert [(missing.arm, missing.workload) for missing in status.missing] == [("draft-k3", "e")]
    assert "no restart left: 6 used" in status.missing[0].reason


def test_a_death_in_the_warm_up_is_no_secret(run, judged, config, workload, directory, with_args):
    config = with_args(config, "draft-k3", die_on="p1 of greedy", only_once=str(directory.root / "once"))
    assert run(config, workload(concurrency=1, timed=True, scored=False)).restarts == 1
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [(c.request_id, c.ending, c.recurred) for c in transcript.server_failures] == [("p1", FailureKind.DIED, None)]
    assert all(answer.ok for answer in transcript.answers)
    assert judged().outcome is Outcome.INVALID


def test_what_was_in_flight_beside_a_5xx_is_sent_again_with_it(run, config, workload, directory, with_args):
    """Those that were answered beside it are part of the group that is sent again, and named."""
    run(with_args(config, "draft-k3", break_on=" of ", company=2, slow=0.4), workload(requests=2))
    (together,) = [c for c in transcripts.read(directory, "draft-k3", "greedy").server_failures if c.recurred]
    assert (together.group, together.ending, together.failure) == (("p0", "p1"), FailureKind.ERROR, 0)


def test_what_fails_again_only_after_the_request_before_it_names_both(run, judged, config, workload, directory, with_args):
    """The variant is asked p0, p1, then p1 alone on a fresh server, p0, p1, and breaks at the second and the fifth."""
    faults = {"break_on": " of ", "numbers": "2,5", "tally": str(directory.root / "tally")}
    run(with_args(config, "draft-k3", **faults), workload(concurrency=1))
    failures = transcripts.read(directory, "draft-k3", "greedy").server_failures
    assert [(c.request_id, c.recurred, c.after) for c in failures] == [("p1", False, ""), ("p1", True, "p0")]
    verdict = judged()
    assert (verdict.outcome, verdict.cell) == (Outcome.FAIL, "5xx after another")
    assert "5xx to request p1 right after p0, on a fresh server too; it answers it alone" in verdict.headline


@pytest.mark.nightly
def test_a_death_in_a_timed_pass_is_of_the_request_in_flight_and_tried_after_the_one_before(
    run, judged, config, workload, directory, with_args
):
    """The variant dies of p1 in the pass, not of p1 alone, and of p1 after p0: requests 5, 6 and 8, after the three of the warm-up."""
    faults = {"die_on": " of ", "numbers": "5,8", "tally": str(directory.root / "tally")}
    run(with_args(config, "draft-k3", **faults), workload(requests=3, concurrency=1, timed=True, scored=False))
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [(c.request_id, c.recurred, c.after) for c in transcript.server_failures] == [("p1", False, ""), ("p1", True, "p0")]
    assert all(answer.ok for answer in transcript.answers)
    assert (transcript.concurrency, judged().cell) == (None, "died after another")


def timed(job, sent_s, done_s, **fields):
    timing = Timing(sent_s=sent_s, first_s=None, done_s=done_s)
    return TimedAnswer(answer=Answer(request_id=job.request.id, status=None, timing=timing, **fields))


@pytest.mark.parametrize(
    "first, second, third, preceding",
    [
        ((1.0, 1.1, False), (1.2, 1.3, False), (1.4, 1.5, False), [2]),
        ((1.0, 1.1, True), (1.2, 1.3, False), (1.4, 1.5, False), [2, 0]),
        ((1.0, 1.1, True), (1.2, 1.3, False), (1.4, 1.5, True), [2]),
        ((1.0, 1.1, False), (1.2, 1.6, False), (1.4, 1.9, True), [1]),  # the last one was still in flight
        ((1.9, 2.0, False), (1.2, 1.9, False), (1.4, 1.9, True), []),
    ],
)
def test_the_requests_before_are_the_last_to_end_and_the_last_that_was_left(workload, first, second, third, preceding):
    *earlier, failed = jobs = [Job(request=request, pass_index=0) for request in workload(requests=4).requests]
    times = zip(earlier, (first, second, third), strict=True)
    answers = {job.key: timed(job, sent_s, done_s, aborted=aborted) for job, (sent_s, done_s, aborted) in times}
    sender = SimpleNamespace(outcomes=answers, workload=workload(requests=4))
    assert group_replay._preceding_jobs(sender, [timed(failed, 1.7, 1.8)]) == [jobs[index] for index in preceding]


def test_a_request_whose_client_left_is_in_flight_until_the_server_fails(workload):
    """A server notices late that a client left, and the next request may be sent before: it dies with both in its hands."""
    left, answered, failed = jobs = [Job(request=request, pass_index=0) for request in workload(requests=3).requests]
    answers = {left.key: timed(left, 1.0, 1.1, aborted=True), answered.key: timed(answered, 1.0, 1.1)}
    sender = SimpleNamespace(outcomes=answers, workload=workload(), server=SimpleNamespace(concurrency=lambda asked: asked))
    assert group_replay._concurrent_jobs(sender, jobs, [(failed, timed(failed, 1.2, 1.3))]) == [left, failed]


@pytest.mark.parametrize(
    "times, of_the_first",
    [
        ([(3.0, 3.5, False), (1.0, 2.0, False), (1.5, 2.5, False)], [1, 2]),  # the one sent later was not in flight with the first
        ([(2.0, 2.0, True), (1.0, 3.0, False), (2.5, 2.5, True)], [1]),
        ([(2.0, 2.0, True), (1.5, 1.5, True)], [1]),
        ([], []),
    ],
)
def test_the_failures_of_a_timed_pass_are_those_in_flight_with_the_first(workload, times, of_the_first):
    jobs = [Job(request=request, pass_index=0) for request in workload(requests=4).requests]
    failed = [
        replace(timed(job, sent_s, done_s), ending=FailureKind.DIED, unsent=unsent)
        for job, (sent_s, done_s, unsent) in zip(jobs, times, strict=False)
    ]
    assert {sent.answer.request_id for sent in _first_failures([timed(jobs[3], 0.0, 9.0), *failed])} == {f"p{n}" for n in of_the_first}


def test_a_later_failure_with_a_status_is_one_of_a_server_that_went_on(workload):
    jobs = [Job(request=request, pass_index=0) for request in workload(requests=3).requests]
    timings = [Timing(sent_s=float(at), first_s=None, done_s=at + 0.5) for at in range(len(jobs))]
    answers = [Answer(request_id=job.request.id, status=200, timing=timing) for job, timing in zip(jobs, timings, strict=True)]
    broken = [TimedAnswer(answer=answer, ending=FailureKind.ERROR) for answer in answers]
    assert _first_failures(broken) == broken


def test_a_server_with_no_restart_left_goes_on_after_a_5xx(run, config, workload, directory, with_args):
    tally = str(directory.root / "tally")
    status = run(with_args(config, "draft-k3", break_on=" of ", numbers="1,3,7,9", tally=tally), workload(concurrency=1))
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [(c.request_id, c.recurred, c.failure) for c in transcript.server_failures] == [
        ("p0", False, 0),
        ("p1", False, 1),
        ("p2", None, 2),
        ("p4", None, 3),
    ]
    assert (status.restarts, status.missing) == (2, ())


def test_a_death_is_replayed_although_a_5xx_came_before_it(run, judged, config, workload, directory, with_args):
    """One fresh server each: the 5xx, which does not recur, leaves the second restart to the death."""
    faults = {"break_on": "p1 of greedy", "die_on": "p4 of greedy", "every_time": "p4 of greedy", "slow": 0.2}
    run(with_args(config, "draft-k3", **faults, only_once=str(directory.root / "once")), workload())
    failures = transcripts.read(directory, "draft-k3", "greedy").server_failures
    assert [(c.ending, c.recurred) for c in failures if c.request_id == "p1"] == [(FailureKind.ERROR, False)]
    assert [(c.ending, c.recurred) for c in failures if c.request_id == "p4"] == [(FailureKind.DIED, True)]
    answer = transcripts.read(directory, "draft-k3", "greedy").answers[4]
    assert answer.error.startswith("quarantined: ")
    assert "p4, alone on a fresh server too; the baseline answers it" in judged().headline


@pytest.fixture
def calibrated(run, workload, directory, monkeypatch):
    """Run a judged workload after a calibration of eighteen requests, three at a time; return the variant's transcripts of both."""

    def _run(config):
        calibration = workload(f"noise{CALIBRATION}", requests=18, concurrency=3, deadline_s=0.7)
        monkeypatch.setattr(planner, "calibrations", lambda judged, depth: (calibration,))
        status = run(config, workload(concurrency=3, deadline_s=0.7))
        assert status.state is State.COMPLETE
        return [transcripts.read(directory, "draft-k3", name) for name in (calibration.name, "greedy")], status

    return _run


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_calibration_goes_on_behind_a_failure_that_does_not_recur(calibrated, config, directory, with_args, fault):
    config = with_args(config, "draft-k3", **{fault: "p1 of noise"}, only_once=str(directory.root / "once"))
    (calibration, judged), _ = calibrated(config)
    assert all(answer.ok for transcript in (calibration, judged) for answer in transcript.answers)
    assert len(calibration.unexplained) == 1


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("company", [1, 3])
def test_a_calibration_that_a_server_fails_in_is_given_up_and_costs_the_others_nothing(
    calibrated, config, directory, with_args, fault, company
):
    (calibration, judged), status = calibrated(with_args(config, "draft-k3", **{fault: "of noise"}, company=company, slow=0.05))
    assert not all(answer.ok for answer in calibration.answers)
    assert "unanswered, since the server failed in the calibration" in calibration.answers[-1].error
    assert calibration.unexplained, "asked again by a resume"
    assert (judged.server_failures, judged.concurrency) == ((), None)
    assert all(answer.ok for answer in judged.answers)
    assert any("draft-k3: the server failed in the calibration" in line for line in status.warnings)
