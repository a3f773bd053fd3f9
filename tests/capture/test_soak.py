"""A soak keeps sums by round, replaces a server that fails once, and takes a second failure in the same traffic for one that recurs."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import soak
from pytest_specdec.capture.sender import Unavailable
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.model.spec_counters import RankCounters, SpecCounters
from pytest_specdec.model.transcript import Answer, Choice, FailureKind, ServerFailure
from pytest_specdec.prompts.endurance import mixed_traffic


class StubArm:
    """A server that counts 2 accepted tokens and 1 MiB by request."""

    def __init__(self):
        self.served, self.restarts, self.running, self.ranks, self.aside = 0, 0, True, {}, 0
        self.recipe = SimpleNamespace(setup=SimpleNamespace(attached=""))
        self.event_gate = SimpleNamespace(begin_events=lambda: None)

    def counters(self):
        self.ranks = {"0": RankCounters(name="0", counters=SpecCounters(accepted_tokens=2 * self.served))}
        return SpecCounters(drafts=self.served, accepted_tokens=2 * self.served)

    def resident_mib(self):
        return 100.0 + self.served

    def add_aside(self, answer):
        self.aside += answer.ok

    def terminate(self):
        self.running = False


class StubSender:
    """Answers every request with three tokens, and fails those of the soak that ``fails`` numbers from 1."""

    def __init__(self, workload, fails=(), ending=FailureKind.DIED, refuses_from=10**6):
        self.server, self.workload, self.fails, self.refuses_from, self.number = StubArm(), workload, fails, refuses_from, 0
        self.outcomes, self.server_failures, self.denials, self.ending = {}, [], {}, ending
        for request in workload.requests:
            self.outcomes[request.id, 0] = SimpleNamespace(answer=self._answer(request, (1, 2, 3)))

    def _answer(self, request, tokens):
        return Answer(request_id=request.id, status=200, choices=(Choice(token_ids=tokens),))

    @property
    def restarts(self):
        return self.server.restarts

    def ensure_running(self):
        if not self.server.running:
            self.server.running, self.server.served = True, 0
            self.server.restarts += 1

    def restart(self):
        self.server.terminate()
        self.ensure_running()
        return True

    def create_pool(self, jobs):
        for job in jobs:
            self.number += 1
            assert self.number < 10_000, "the soak has no end"
            self.server.served += 1
            ending = self.ending if self.number in self.fails else None
            if self.number >= self.refuses_from:
                yield job, SimpleNamespace(answer=Answer(request_id=job.request.id, status=400), ending=None, denial="", tokens=0)
                continue
            tokens = (1, 2, 3) if self.number <= len(self.workload.requests) else (1, 2, 4)
            yield job, SimpleNamespace(answer=self._answer(job.request, tokens), ending=ending, denial="", tokens=3)
            if ending:
                return

    def has_failed(self, _job, sent):
        return sent.ending is not None

    def create_failure(self, failed):
        failures = tuple(
            ServerFailure(request_id=one.answer.request_id, ending=one.ending, recurred=None, process="server") for one in failed
        )
        return SimpleNamespace(server_failures=failures)


@pytest.fixture
def run(monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def tick():
        clock.now += 0.25
        return clock.now

    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=tick, sleep=lambda _: None))

    def run_one(fails=(), *, attached="", **server):
        sender = StubSender(replace(mixed_traffic(), soak_s=12.0), fails, **server)
        sender.server.recipe.setup.attached = attached
        one = soak.Soak(sender, SimpleNamespace(say=lambda _: None))
        one.run()
        return one, sender

    return run_one


def test_rounds_hold_sums_and_their_counters_are_the_growth(run):
    one, sender = run()
    assert len(one.rounds) > 5
    assert one.rounds[-1].at_s >= 12.0
    assert all(each.tokens == 3 * each.requests and each.drafted_share == pytest.approx(2 / 3) for each in one.rounds)
    assert one.growth.accepted_tokens == 2 * sender.server.served
    assert one.rank_growth[0].counters.accepted_tokens == 2 * sender.server.served
    assert [each.resident_mib for each in one.rounds] == sorted(each.resident_mib for each in one.rounds)
    assert sender.server.aside == sender.number


def test_greedy_answers_unlike_the_first_are_named(run):
    one, sender = run()
    greedy = {request.id for request in sender.workload.requests if request.greedy}
    assert not one.rounds[0].changed
    assert set(one.rounds[1].changed) == greedy


def test_one_failure_is_recorded_and_the_soak_goes_on(run):
    one, sender = run(fails=(15,))
    assert [each.failed for each in one.rounds if each.failed] == [1]
    assert [failure.recurred for failure in sender.server_failures] == [None]
    assert one.rounds[-1].at_s >= 12.0
    assert next(each for each in one.rounds if each.failed).counters is None, "counters began anew in it"


def test_a_second_failure_in_the_same_traffic_has_recurred_and_ends_the_soak(run):
    one, sender = run(fails=(15, 40))
    assert [failure.recurred for failure in sender.server_failures] == [None, True]
    assert one.rounds[-1].failed == 1
    assert one.rounds[-1].at_s < 12.0


def test_the_round_in_which_the_last_server_was_lost_is_kept(run, monkeypatch):
    def be_gone(_self):
        raise Unavailable

    monkeypatch.setattr(StubSender, "restart", be_gone)
    rounds = []
    monkeypatch.setattr(soak.Soak, "_report", lambda self: rounds.append(self.rounds))
    with pytest.raises(Unavailable):
        run(fails=(30,), ending=FailureKind.ERROR)
    assert rounds[-1][-1].failed == 1


def test_a_second_error_has_recurred_only_on_a_server_started_since(run):
    _, sender = run(fails=(15, 40), ending=FailureKind.ERROR)
    assert sender.restarts == 1, "the first error too is answered by a fresh server"
    assert [(failure.recurred, failure.in_soak) for failure in sender.server_failures] == [(None, True), (True, True)]
    for ending in (FailureKind.ERROR, FailureKind.HUNG):
        one, sender = run(fails=(15, 40, 90, 120), ending=ending, attached="http://127.0.0.1:1")
        assert [failure.recurred for failure in sender.server_failures] == [None] * 3, "it is the server of somebody else"
        assert one.rounds[-1].at_s < 12.0, "three decide"


def test_a_soak_ends_in_time_where_every_request_is_refused(run):
    one, _ = run(refuses_from=1)
    assert one.rounds[-1].at_s >= 12.0
    assert not any(each.requests for each in one.rounds)
    assert all(each.refused for each in one.rounds)


@pytest.mark.parametrize("container", ["", "specdec-1"])
def test_memory_of_a_container_is_not_that_of_its_client(container):
    recipe = SimpleNamespace(command=SimpleNamespace(container=container), processes=())
    arm = SimpleNamespace(recipe=recipe, _server=SimpleNamespace(members={os.getpid(): 0}))
    assert (ArmServer.resident_mib(arm) is None) == bool(container)


def test_readings_of_ranks_are_raised_by_what_they_counted():
    counted = RankCounters(name="0", counters=SpecCounters(drafts=5))
    raised = soak.add_ranks({"0": counted, "1": counted}, [counted])
    assert (raised["0"].counters.drafts, raised["1"].counters.drafts) == (10, 5)
