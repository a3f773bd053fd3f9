"""The runner of a workload: what is in flight together, and what becomes of a timed pass at the end of the time."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.client import TimedAnswer
from pytest_specdec.capture.deadlines import Deadlines
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.sender import Sender
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.timed import sending
from pytest_specdec.capture.timed.requests import LoadSamples
from pytest_specdec.capture.transport import BusyTime
from pytest_specdec.capture.workload_runner import WorkloadRunner
from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.files import transcripts
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import Answer, Choice, FailureKind, Timing
from pytest_specdec.model.workload import Depth, Family


def drawn(workload, seeds):
    """A workload whose requests draw, with these seeds."""
    requests = []
    for request, seed in zip(workload.requests, seeds, strict=True):
        body = {**request.body, "temperature": 1.0, **({} if seed is None else {"seed": seed})}
        requests.append(replace(request, body=body))
    return replace(workload, requests=tuple(requests))


@pytest.mark.examples(1)
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


class Clock(SimpleNamespace):
    """A reporter whose time ends ``seconds`` after :meth:`begin`."""

    until_s = math.inf

    def begin(self, seconds):
        self.until_s = time.monotonic() + seconds

    @property
    def left_s(self):
        return self.until_s - time.monotonic()

    def update(self, *_):
        pass


def answer_for(seconds, recipe, sent):
    """Return the result of a workload in a capture that has so many seconds left."""
    clock = Clock()
    with ArmServer(recipe, lambda: None) as arm:
        runner = WorkloadRunner(arm, sent, name="v", boot=0, deadlines=Deadlines(10.0, None, paced=False), reporter=clock)
        clock.begin(seconds)
        runner.answer(0)
        runner.end()
    return runner.result()


def test_a_timed_pass_ends_with_the_time_of_the_capture_although_its_server_goes_on(recipe, config, workload):
    """As of a server that was attached: no watchdog ends it."""
    result = answer_for(1.0, recipe(config, slow=0.2), workload(requests=9, concurrency=1, timed=True, scored=False))
    is_up = "the time given to the capture is used up"
    reasons = list(dict.fromkeys(answer.error for answer in result.transcript.answers))
    assert reasons[-1] == f"not sent: {is_up}"
    assert set(reasons) <= {None, "cut off when the time given to the capture was used up", reasons[-1]}
    assert (result.missing, result.transcript.server_failures) == (is_up, ())


def test_a_workload_is_missing_if_the_time_ends_with_all_of_its_requests_in_flight(recipe, config, workload):
    """Nothing is left to be sent then; a resumed capture has to send it again."""
    result = answer_for(0.5, recipe(config, slow=5.0), workload(requests=2, concurrency=2, scored=False))
    reason = "cut off when the time given to the capture was used up"
    assert [answer.error for answer in result.transcript.answers] == [reason, reason]
    assert result.missing == reason


@pytest.mark.parametrize("windows, drafts", [(None, 4), ((1, 3), 20)])
def test_after_a_restart_steps_without_a_draft_are_no_drafts_where_only_answers_count(windows, drafts, recipe, config, workload):
    """As of ``llama-server``, of which an answer counts all steps; where answers have their verify steps, these are the drafts."""
    arm = ArmServer(replace(recipe(config), dialect=LlamaCppDialect(), draft_tokens=3), lambda: None)
    runner = WorkloadRunner(arm, workload(), name="v", boot=0, deadlines=SimpleNamespace(limit_s=60.0), reporter=Clock())
    counted = SpecCounters(drafts=10, draft_tokens=5, accepted_tokens=2)
    for job in runner._sender.jobs(1)[:2]:
        answer = Answer(request_id=job.request.id, status=200, choices=(Choice(index=0, text="a", windows=windows),))
        runner._sender.outcomes[job.key] = TimedAnswer(answer=answer, counters=counted)
    arm.restarts += 1
    assert runner._count_drafts(None) == SpecCounters(drafts=drafts, draft_tokens=10, accepted_tokens=4)


@pytest.mark.parametrize("status", [429, 400])
def test_what_is_rejected_when_the_time_is_up_is_not_sent_again(status, config, recipe, workload, monkeypatch):
    """It is still to be sent, since a request sent again would have no time."""
    sent = workload(requests=2, timed=True, scored=False)
    arm = ArmServer(recipe(config), lambda: None)
    arm._client = SimpleNamespace(url="http://127.0.0.1:1", busy=BusyTime())
    clock = Clock()
    clock.begin(0.0)
    sender = Sender(arm, sent, name="v", deadlines=Deadlines(10.0, None, paced=False), reporter=clock, on_answer=None)
    first, second = (TimedAnswer(answer=Answer(request_id=request.id, status=status)) for request in sent.requests)
    ok = replace(second, answer=replace(second.answer, status=200))
    monkeypatch.setattr(sending, "answers", lambda *_, **__: ((first, ok), LoadSamples()))
    assert [job.request.id for job, _ in sender.send_all(sender.jobs(1))] == ["p1"]


def test_what_is_rejected_before_the_server_dies_is_left_to_the_fresh_one(config, recipe, workload, monkeypatch):
    sent = workload(requests=2, timed=True, scored=False)
    arm = ArmServer(recipe(config), lambda: None)
    arm._client = SimpleNamespace(url="http://127.0.0.1:1", busy=BusyTime())
    sender = Sender(arm, sent, name="v", deadlines=Deadlines(10.0, None, paced=False), reporter=Clock(), on_answer=None)
    rejected, dead = (
        TimedAnswer(answer=Answer(request_id=request.id, status=status)) for request, status in zip(sent.requests, (429, None), strict=True)
    )
    timing = Timing(sent_s=2.0, first_s=None, done_s=3.0)
    dead = replace(dead, ending=FailureKind.DIED, answer=replace(dead.answer, timing=timing))
    monkeypatch.setattr(sending, "answers", lambda *_, **__: ((rejected, dead), LoadSamples()))
    assert [job.request.id for job, _ in sender._send_timed(sender.jobs(1))] == ["p1"]


def test_an_end_between_two_parts_of_a_workload_is_recorded_before_the_restart(config, recipe, workload):
    answer = Answer(request_id="p0", status=200, timing=Timing(sent_s=1.0, first_s=None, done_s=2.0))
    with ArmServer(recipe(config), lambda: None) as arm:
        sender = Sender(arm, workload(), name="v", deadlines=Deadlines(10.0, None, paced=False), reporter=Clock(), on_answer=None)
        sender.outcomes["p0", 0] = TimedAnswer(answer=answer)
        sender.ensure_running()
        assert sender.server_failures == []
        os.kill(arm._server.pid, signal.SIGSEGV)
        assert arm._server.wait(10.0)
        sender.ensure_running()
        assert [(one.request_id, one.answered) for one in sender.server_failures] == [("p0", True)]
        assert arm.running


def test_what_is_to_happen_first_happens_before_the_server_is_asked(config, recipe, workload):
    """An end of the server while the runner waited is recorded then; the warm-up would start another."""
    asked_before = []
    with ArmServer(recipe(config), lambda: None) as arm:
        options = {"name": "v", "boot": 0, "deadlines": Deadlines(10.0, None, paced=False), "reporter": Clock()}
        timed = workload(requests=2, timed=True, scored=False)
        runner = WorkloadRunner(arm, timed, **options, on_begin=lambda: asked_before.append(arm.has_ended_silently))
        os.kill(arm._server.pid, signal.SIGSEGV)
        assert arm._server.wait(10.0)
        runner.begin()
        assert (asked_before, arm.running) == ([True], True)
