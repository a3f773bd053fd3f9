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


BESIDE = [Boot(index=index, role=Role.VARIANT, arm=f"v{index}") for index in range(3)]


def beside(*workloads, scored=0.0, stops=False, timed=()):
    """Return a clock, the reports, and a reporter of three boots: 5 s to boot each, 10 s for each workload, ``scored`` for scores.

    A boot ``stops`` in 1 s, or at once. Answers to the workloads ``timed`` are timed.
    """
    clock, said = [0.0], []
    steps = [
        step
        for boot in BESIDE
        for step in (
            EstimatedStep(boot=boot.index, kind=StepKind.BOOTING, arm=boot.arm, seconds=5.0),
            *(
                EstimatedStep(boot=boot.index, kind=StepKind.ANSWERING, arm=boot.arm, workload=w, seconds=10.0, timed=w in timed)
                for w in workloads
            ),
            EstimatedStep(boot=boot.index, kind=StepKind.SCORING, arm=boot.arm, workload=workloads[0], seconds=scored),
            *([EstimatedStep(boot=boot.index, kind=StepKind.STOPPING, arm=boot.arm, seconds=1.0)] * stops),
        )
    ]
    return clock, said, Reporter(steps, 3, None, said.append, now_s=lambda: clock[0])


def test_side_by_side_the_answers_of_all_boots_are_left():
    """Boots at once share the machine: where 10 s of 30 took 20 s, the other 20 take nearly 40."""
    clock, said, whole = beside("w")
    first, second = whole.boot_reporter(BESIDE[0]), whole.boot_reporter(BESIDE[1])
    first.step(BESIDE[0], "booting", "v0")
    clock[0] = 5.0
    first.step(BESIDE[0], "answering", "v0", "w", of=10)
    second.step(BESIDE[1], "answering", "v1", "w", of=10)
    clock[0] = 25.0
    first.update(5, 1)
    second.update(5, 1)
    assert [p.remaining_s for p in said] == [30.0, 30.0, 30.0, pytest.approx(82.7, abs=0.1), pytest.approx(37.4, abs=0.1)]


def test_side_by_side_the_order_of_the_steps_is_free():
    """The baseline begins with what others wait for: what it left out is not done."""
    clock, said, whole = beside("a", "b", "c")
    first = whole.boot_reporter(BESIDE[0])
    first.step(BESIDE[0], "answering", "v0", "c", of=1)
    clock[0] = 10.0
    first.update(1, 1)
    first.step(BESIDE[0], "answering", "v0", "a", of=1)
    assert [p.remaining_s for p in said] == [90.0, 80.0, 80.0]


def test_side_by_side_a_boot_that_answers_nothing_more_has_nothing_left():
    _, said, whole = beside("w")
    first = whole.boot_reporter(BESIDE[0])
    whole.drop(BESIDE[2])
    whole.drop(BESIDE[2])
    first.step(BESIDE[0], "answering", "v0", "w", of=1)
    assert [p.remaining_s for p in said] == [20.0]


def test_side_by_side_a_dropped_boot_that_stops_stays_dropped():
    _, said, whole = beside("w", stops=True)
    first, failed = whole.boot_reporter(BESIDE[0]), whole.boot_reporter(BESIDE[2])
    whole.drop(BESIDE[2])
    failed.step(BESIDE[2], "stopping", "v2")
    first.step(BESIDE[0], "answering", "v0", "w", of=1)
    assert [p.remaining_s for p in said] == [20.0, 20.0]


def test_side_by_side_a_boot_that_stops_has_no_answers_left():
    _, said, whole = beside("a", "b", stops=True)
    first = whole.boot_reporter(BESIDE[0])
    first.step(BESIDE[0], "answering", "v0", "a", of=1)
    first.step(BESIDE[0], "stopping", "v0")
    assert [p.remaining_s for p in said] == [60.0, pytest.approx(40.0 * 3.0 / 23.0, abs=0.1)]


def test_side_by_side_the_scores_that_a_boot_has_left_are_the_least():
    clock, said, whole = beside("w", scored=50.0)
    for boot in BESIDE:
        reporter = whole.boot_reporter(boot)
        reporter.step(boot, "answering", boot.arm, "w", of=1)
        clock[0] += 10.0
        reporter.update(1, 1)
    assert [p.remaining_s for p in said][-1] == 55.0


def test_side_by_side_timed_answers_have_a_pace_of_their_own():
    """Timed answers that take ten times their estimate do not lengthen that of the other answers."""
    clock, said, whole = beside("a", "t", timed=["t"])
    reporters = [whole.boot_reporter(boot) for boot in BESIDE]
    for boot, reporter in zip(BESIDE, reporters, strict=True):
        reporter.step(boot, "answering", boot.arm, "t", of=1)
        clock[0] += 100.0
        reporter.update(1, 1)
    first, second = 30.0 + 20.0 * 101.5 / 11.5, 30.0 + 10.0 * 201.5 / 21.5
    assert [p.remaining_s for p in said] == pytest.approx([60.0, first, first, second, second, 30.0], abs=0.1)
