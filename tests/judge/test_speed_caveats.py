"""An interval that says nothing says why, and a machine that was too busy to measure speed is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.speed.timing import measure_speed
from pytest_specdec.judge.speed.verdict import WIDE
from pytest_specdec.model.timing import MOST_PER_CORE
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import timed
from tests.judge.test_boot_blocks import run
from tests.judge.test_speed import KNOWN, STATED, passes, seen


def wobbly(*per_s):
    return [timed(per_s=each, pass_index=i) for i, each in enumerate(per_s)]


def wide(mine, *, gate=STATED, **fields):
    count = len(mine)
    return speed.judge(seen(mine, passes(100.0, count=count), passes(100.0, count=count), gates=(gate,), **fields))


def test_an_interval_of_few_unsteady_passes_is_not_shown_without_the_reason():
    """Once [0.01, 1011] stood alone in a report."""
    verdict = wide(wobbly(60.0, 400.0))
    assert verdict.outcome is Outcome.NOT_DECIDED
    low, high = verdict.figures["speedup_low"], verdict.figures["speedup_high"]
    assert (low < 0.01, high > 100.0) == (True, True)
    assert f"the interval spans a factor of {high / low:,.3g}, which says next to nothing: passes vary by 1" in verdict.headline
    assert "and 2 passes are few; the interval contains the gate" in verdict.headline
    assert verdict.cell == "1.54x, interval too wide"
    assert "a gate of at most" not in verdict.settle


def test_where_many_passes_disagree_they_are_not_called_few():
    headline = wide(wobbly(60.0, 400.0, 90.0, 300.0, 150.0, 500.0)).headline
    assert "passes vary by" in headline
    assert "few" not in headline


@pytest.mark.parametrize(
    "gate, reason",
    [
        (replace(STATED, boot_sd=0.5), "boots vary by"),
        (replace(STATED, boot_log_ratios=(0.9, -0.9, 0.9)), "boots vary by"),
    ],
)
def test_where_boots_make_it_wide_they_are_named(gate, reason):
    assert f"which says next to nothing: {reason}" in speed.judge(seen(gates=(gate,))).headline


def test_boots_that_were_only_stated_to_vary_are_called_so():
    given = seen(gates=(replace(STATED, boot_sd=0.5),))
    smoke = replace(given, baseline=replace(given.baseline, boot=2))
    assert "boots are taken to vary by" in speed.judge(smoke).headline


def test_an_interval_that_says_something_needs_no_reason():
    found = measure_speed(seen())
    assert found.interval.high < WIDE * found.interval.low
    assert "factor" not in speed.judge(seen()).headline


def test_a_wide_interval_within_one_boot_is_put_down_to_its_passes():
    verdict = speed.judge(replace(seen(wobbly(60.0, 400.0), passes(100.0, count=2), passes(100.0, count=2)), within_one_boot=True))
    assert "passes vary by" in verdict.headline


def crowded(given, arm, load):
    return replace(given, **{arm: replace(getattr(given, arm), machine_load=load)})


@pytest.mark.parametrize("arm", ["baseline", "control", "speculative"])
def test_a_busy_machine_is_said_beside_a_gate_that_is_met_and_in_the_reason_of_one_that_is_not_decided(arm):
    met, open_ = (speed.judge(crowded(seen(mine), arm, 3.05)) for mine in (180.0, 150.0))
    sentence = f"processes to a core of the client's machine while {getattr(seen(), arm).arm} was timed (limit 1.5)"
    assert (met.outcome, open_.outcome) == (Outcome.PASS, Outcome.NOT_DECIDED)
    assert any(line.startswith("busy machine: 3.") and line.endswith(sentence) for line in met.evidence)
    assert "busy" not in met.headline
    assert "the machine was busy: 3." in open_.headline
    assert sentence in open_.headline


def test_the_busiest_boot_is_named_and_further_boots_are_looked_at():
    given = run((150.0, 150.0), (100.0,) * 3)
    block = replace(given.further[0], speculative=replace(given.further[0].speculative, machine_load=4.0))
    verdict = speed.judge(replace(crowded(given, "baseline", 2.0), further=(block,)))
    assert "the machine was busy: 4.0 processes to a core" in verdict.headline
    assert verdict.headline.count("busy") == 1
    assert sum(line.startswith("busy machine: ") for line in verdict.evidence) == 2


def test_a_busy_machine_is_a_reason_of_a_wide_interval_and_said_once():
    given = seen(wobbly(60.0, 400.0), passes(100.0, count=2), passes(100.0, count=2), gates=(KNOWN,))
    verdict = speed.judge(crowded(given, "speculative", 3.0))
    assert "few and the machine was busy (3.0 processes to a core" in verdict.headline
    assert verdict.headline.count("busy") == 1


@pytest.mark.parametrize("load", [None, 0.0, 0.4, MOST_PER_CORE])
def test_a_machine_with_a_core_to_spare_is_not_mentioned(load):
    verdict = speed.judge(crowded(seen(150.0), "speculative", load))
    assert not any("busy" in line for line in (verdict.headline, *verdict.evidence))


@pytest.mark.parametrize("load, figures", [(3.0, {"busy_machine"}), (0.5, set())])
def test_a_busy_machine_is_marked_so_that_its_speed_becomes_no_floor(load, figures):
    verdict = speed.judge(crowded(seen(), "speculative", load))
    assert figures == {"busy_machine", "disturbed"} & set(verdict.figures)
    assert bool(verdict.promise.unfit) == bool(figures)
