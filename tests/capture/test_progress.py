"""Progress: steps, the time that is left, and the deadline."""

from __future__ import annotations

import pytest

from pytest_specdec.capture.estimate import EstimatedStep
from pytest_specdec.capture.progress import Reporter
from pytest_specdec.errors import DeadlineError
from pytest_specdec.model.plan import Boot, Role
from pytest_specdec.model.status import StepKind


def test_what_is_left_is_the_estimate_at_the_pace_so_far():
    clock = [0.0]
    steps = [
        EstimatedStep(boot=0, kind=StepKind.BOOTING, arm="v", seconds=5.0),
        EstimatedStep(boot=0, kind=StepKind.ANSWERING, arm="v", workload="w", seconds=10.0),
    ]
    said = []
    reporter = Reporter(steps, 1, None, said.append, now_s=lambda: clock[0])
    boot = Boot(index=0, role=Role.VARIANT, arm="v")
    reporter.step(boot, "booting", "v")
    for clock[0] in (4.0, 5.0, 5.1, 10.0):
        reporter.update(0, 0)
    reporter.step(boot, "answering", "v", "w", of=10)
    reporter.update(1, 5)
    reporter.update(10, 50)
    reporter.step(boot, "stopping", "v")
    booting = [(0, 0, 15.0), (0, 0, 10.2), (0, 0, 10.2)]
    assert [(p.done, p.tokens, p.remaining_s) for p in said] == [*booting, (0, 0, 20.0), (10, 50, 0.0), (0, 0, 0.0)]
    reporter.check()


def test_without_steps_nothing_is_expected():
    said = []
    reporter = Reporter([], 1, -1.0, said.append)
    reporter.update(1, 1)
    reporter.step(Boot(index=0, role=Role.VARIANT, arm="v"), "booting", "v")
    assert [p.remaining_s for p in said] == [None]
    with pytest.raises(DeadlineError, match="used up"):
        reporter.check()


def test_a_step_that_is_extended_counts_to_its_new_end():
    said = []
    reporter = Reporter([], 1, None, said.append)
    reporter.extend(3)
    reporter.step(Boot(index=0, role=Role.VARIANT, arm="v"), "answering", "v", "w", of=2)
    reporter.update(2, 10)
    reporter.extend(4)
    reporter.update(4, 20)
    assert [(p.done, p.of) for p in said] == [(0, 2), (2, 2), (4, 4)]


def test_side_by_side_the_answers_of_all_boots_are_left():
    """Boots at once share the machine: where 10 s of 30 took 20 s, the other 20 take 40."""
    clock, said = [0.0], []
    answers = [EstimatedStep(boot=index, kind=StepKind.ANSWERING, arm=f"v{index}", workload="w", seconds=10.0) for index in range(3)]
    boots = [EstimatedStep(boot=index, kind=StepKind.BOOTING, arm=f"v{index}", seconds=5.0) for index in range(3)]
    whole = Reporter([step for pair in zip(boots, answers, strict=True) for step in pair], 3, None, said.append, now_s=lambda: clock[0])
    first, second = (whole.boot_reporter(Boot(index=index, role=Role.VARIANT, arm=f"v{index}")) for index in (0, 1))
    first.step(Boot(index=0, role=Role.VARIANT, arm="v0"), "booting", "v0")
    assert [p.remaining_s for p in said] == [35.0]
    clock[0] = 5.0
    first.step(Boot(index=0, role=Role.VARIANT, arm="v0"), "answering", "v0", "w", of=10)
    second.step(Boot(index=1, role=Role.VARIANT, arm="v1"), "answering", "v1", "w", of=10)
    clock[0] = 25.0
    first.update(5, 1)
    second.update(5, 1)
    assert [p.remaining_s for p in said[1:]] == [30.0, 30.0, 100.0, 40.0]
