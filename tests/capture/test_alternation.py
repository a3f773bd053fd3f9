"""Alternation: when a timed workload takes more passes than planned, and what it looks at."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.capture.alternation import Alternation, TimedArm, more_passes
from pytest_specdec.capture.workload_runner import WorkloadResult
from pytest_specdec.errors import BootError
from pytest_specdec.model.plan import MOST_PASSES
from pytest_specdec.prompts import CATEGORIES, load
from tests.judge.captured_values import a_workload, requests, timed, transcript

STEADY = (0.0, 0.001, -0.001, 0.0)
UNSTEADY = (0.0, 0.2, -0.2, 0.1, -0.1, 0.15, -0.15, 0.05)


class Runner:
    """A runner whose answers come at 100 tokens a second, times e^shift of the pass."""

    def __init__(self, name, shifts=(0.0,), *, workload=None, per_s=100.0, unavailable_from=math.inf):
        self.name, self.shifts, self.per_s = name, shifts, per_s
        self.workload = workload or a_workload(requests(2), timed=True, passes=4, concurrency=1)
        self.passes = self.workload.passes
        self.parts = self.workload.turns
        self.unavailable_from = unavailable_from
        self.sent, self.log, self.extensions = [], [], []

    @property
    def is_available(self):
        return len(self.sent) < self.unavailable_from

    def begin(self):
        self.log.append("begin")

    def answer(self, pass_index, part):
        shift = self.shifts[pass_index % len(self.shifts)]
        for request in self.parts[part]:
            self.sent.append(timed(request.id, per_s=self.per_s * math.exp(shift), pass_index=pass_index))

    def extend(self, passes):
        self.passes = passes
        self.extensions.append(passes)

    def end(self):
        self.log.append("end")

    def result(self):
        return WorkloadResult(transcript=transcript(self.name, self.sent))


def run(*variants, baseline=None, boot_sd=0.03, may_extend=True):
    arms = [*([baseline] if baseline else []), *variants]
    Alternation(arms=[TimedArm(runner=arm, speculative=arm is not baseline) for arm in arms], boot_sd=boot_sd, may_extend=may_extend).run()
    assert [arm.log for arm in arms] == [["begin", "end"]] * len(arms)
    assert all(len(arm.sent) == arm.passes * len(arm.workload.requests) for arm in arms)
    return arms[-1].extensions


def test_steady_passes_are_as_many_as_planned():
    assert run(Runner("v", STEADY), baseline=Runner("baseline")) == []


def test_unsteady_passes_go_on_two_by_two_to_twice_as_many_in_every_arm():
    baseline, steady = Runner("baseline"), Runner("a", STEADY)
    assert run(steady, Runner("b", UNSTEADY), baseline=baseline) == [6, 8]
    assert baseline.extensions == steady.extensions == [6, 8]
    assert more_passes(2, 2) == 4
    assert MOST_PASSES * 4 == 8


@pytest.mark.parametrize("step", ["begin", "answer", "end"])
def test_an_arm_whose_engine_fails_is_sent_nothing_more_and_the_others_all(step):
    baseline, sound, failing = Runner("baseline"), Runner("a", STEADY), Runner("b", UNSTEADY)
    attempts = []

    def fail(*_):
        attempts.append(step)
        msg = "port 8000 is answered by another process than the server"
        raise BootError(msg)

    setattr(failing, step, fail)
    arms = [TimedArm(runner=arm, speculative=arm is not baseline) for arm in (baseline, failing, sound)]
    alternation = Alternation(arms=arms, boot_sd=0.03, may_extend=step != "end")
    assert alternation.run() == 4
    assert [str(alternation.errors[arm]) for arm in alternation.errors] == ["port 8000 is answered by another process than the server"]
    assert list(alternation.errors) == [arms[1]]
    assert attempts == [step]
    assert [arm.log for arm in (baseline, sound)] == [["begin", "end"]] * 2
    assert [len(arm.sent) for arm in (baseline, sound)] == [8, 8]


def test_passes_end_once_enough_of_them_were_taken():
    """Noise of 3.5 % is too much for four passes and little enough for six."""
    noise = tuple(0.035 * sign for sign in (1, -1, 1, -1, 1, -1))
    assert run(Runner("v", noise), baseline=Runner("baseline")) == [6]


@pytest.mark.parametrize("per_s", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("shifts, passes", [(STEADY, []), (UNSTEADY, [6, 8])])
def test_the_number_of_passes_does_not_depend_on_the_speedup(per_s, shifts, passes):
    assert run(Runner("v", shifts, per_s=per_s), baseline=Runner("baseline")) == passes


def test_boots_that_are_stated_to_vary_more_need_fewer_passes():
    assert run(Runner("v", UNSTEADY), baseline=Runner("baseline"), boot_sd=0.3) == []


def test_what_drifts_in_both_arms_alike_is_no_noise():
    assert run(Runner("v", UNSTEADY), baseline=Runner("baseline", UNSTEADY)) == []


def test_arms_that_come_later_take_as_many_passes_as_those_before():
    later = Runner("control", STEADY)
    assert Alternation(arms=[TimedArm(runner=later, speculative=False)], boot_sd=0.03, may_extend=True, earlier_passes=6).run() == 6
    assert (later.passes, len(later.sent)) == (6, 12)


def test_where_more_passes_would_not_tell_none_are_taken():
    one = a_workload(requests(2), timed=True, passes=1, concurrency=1)
    assert run(Runner("v", UNSTEADY)) == []
    assert run(Runner("v", UNSTEADY), baseline=Runner("baseline"), may_extend=False) == []
    assert run(Runner("v", UNSTEADY, workload=one), baseline=Runner("baseline", workload=one)) == []
    assert run(Runner("v", UNSTEADY, unavailable_from=3), baseline=Runner("baseline")) == []


def test_several_numbers_of_clients_get_the_planned_passes():
    levels = load.cut(load.levels(CATEGORIES), 32)
    assert run(Runner("v", UNSTEADY, workload=levels), baseline=Runner("baseline", workload=levels)) == []
