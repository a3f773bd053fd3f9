"""The speeds of two runs: ratios with their intervals, rulings, and what became slower."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import hadamard

from pytest_specdec.gates.rulings import GateRuling
from pytest_specdec.judge import speed_change
from pytest_specdec.judge.compared_speed import SlowPart, UpgradeFigure, describe
from pytest_specdec.model.baseline import BOOT_SD
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.speed_record import DraftedWorkload, SpeedRecord, TimedWorkload
from pytest_specdec.model.timing import ClientLoad
from pytest_specdec.model.upgrade_gates import UpgradeGates
from pytest_specdec.stats.boot_spread import BootSpread
from tests.judge.captured_values import VARIANT, a_workload, answer, requests, timed, transcript

WOBBLE = (1.00, 1.01, 0.99, 1.02, 0.98)
TIMED = a_workload(requests(1), passes=5, stream=True, timed=True, concurrency=1)
DRAFTED = a_workload(requests(24))
GATES = UpgradeGates()


def boot(arm, per_s, number, windows=(), **fields):
    answers = [timed(per_s=per_s * WOBBLE[i], pass_index=i, windows=windows) for i in range(5)]
    return replace(transcript(arm, answers), boot=number, **fields)


def lengths(windows):
    """A transcript in which a step of every prompt brings so many tokens, a few more or fewer by prompt."""
    answers = [
        answer(request.id, range(40), windows=(1, *(windows + (i % 3 == 0) for _ in range(8)), 1))
        for i, request in enumerate(DRAFTED.requests)
    ]
    return (DraftedWorkload(workload=DRAFTED, transcript=transcript(VARIANT, answers)),)


def record(baseline=(100.0, 101.0), variant=(180.0,), windows=3, *, machine="m", workload=TIMED, **fields):
    boots = {
        BASELINE: tuple(boot(BASELINE, per_s, number, **fields) for number, per_s in enumerate(baseline)),
        VARIANT: tuple(boot(VARIANT, per_s, 10 + number, **fields) for number, per_s in enumerate(variant)),
    }
    timed_workloads = {"chat": TimedWorkload(workload=workload, boots=boots)} if baseline else {}
    return SpeedRecord(machine=machine, timed=timed_workloads, drafted={VARIANT: lengths(windows)} if windows else {})


OLD = record()


def compare(new, gates=GATES, old=OLD, boot_sd=0.01):
    return speed_change.compare(old, new, gates, boot_sd=boot_sd)


def figure(compared, arm, kind):
    return next(one for one in compared.ratios if (one.arm, one.figure) == (arm, kind))


@pytest.mark.parametrize("new, parts", [
    (record(), []),
    (record((50.0, 51.0), (90.0,)), [SlowPart.BASELINE]),
    (record(variant=(90.0,)), [SlowPart.STEP]),
    (record(variant=(90.0,), windows=1), [SlowPart.DRAFTER]),
    (record(windows=1), [SlowPart.DRAFTER]),
    (record((50.0, 51.0), (45.0,), windows=1), [SlowPart.BASELINE, SlowPart.DRAFTER]),
    (record((50.0, 51.0), (30.0,)), [SlowPart.BASELINE, SlowPart.STEP]),
    (record(variant=(60.0,), windows=0), [SlowPart.VARIANT]),
    (record((200.0, 202.0), (400.0,), windows=4), []),
    (record(variant=(171.0,)), []),
])  # fmt: skip
def test_what_became_slower_is_told_apart(new, parts):
    assert [slow.part for slow in compare(new).slower] == parts


def test_a_drafter_worse_at_the_timed_texts_alone_is_not_put_down_to_the_step():
    """The timed answers' own steps count: the loss of .5 is that of half the tokens per step, whatever other workloads show."""
    long, short = (1, *(4 for _ in range(25))), (1, *(2 for _ in range(50)))
    old, new = (
        replace(
            whole,
            timed={"chat": replace(whole.timed["chat"], boots={**whole.timed["chat"].boots, VARIANT: (boot(VARIANT, per_s, 10, w),)})},
        )
        for whole, per_s, w in ((OLD, 180.0, long), (record(), 90.0, short))
    )
    assert [slow.part for slow in compare(new, old=old).slower] == [SlowPart.DRAFTER]


def test_a_slower_step_on_one_workload_is_not_hidden_by_a_slower_baseline_on_another():
    def timed_twice(baselines, variants):
        first, second = (record(baseline, (variant,)).timed["chat"] for baseline, variant in zip(baselines, variants, strict=True))
        other = replace(second, workload=replace(TIMED, name="code"))
        return replace(OLD, timed={"chat": first, "code": other})

    old = timed_twice([(100.0, 101.0)] * 2, (180.0, 180.0))
    new = timed_twice([(50.0, 51.0), (100.0, 101.0)], (90.0, 60.0))
    assert [slow.part for slow in compare(new, old=old).slower] == [SlowPart.BASELINE, SlowPart.STEP]


def first_tokens_after(ttft_s, machine="m", **fields):
    """A record with this time to first token in every answer of both arms."""
    boots = {
        arm: tuple(
            replace(transcript(arm, [timed(per_s=100.0 * WOBBLE[i], pass_index=i, ttft_s=ttft_s) for i in range(5)]), boot=number, **fields)
            for number in numbers
        )
        for arm, numbers in ((BASELINE, (0, 1)), (VARIANT, (10,)))
    }
    return SpeedRecord(machine=machine, timed={"chat": TimedWorkload(workload=TIMED, boots=boots)}, drafted={})


@pytest.mark.parametrize("new, late", [
    (first_tokens_after(2.0), [BASELINE, VARIANT]),
    (first_tokens_after(0.14), []),
    (first_tokens_after(0.01), []),
    (first_tokens_after(2.0, machine="other"), []),
    (first_tokens_after(2.0, machine_load=9.0), []),
])  # fmt: skip
def test_a_first_token_that_surely_comes_much_later_is_told(new, late):
    """At the same decode speed, by the servers' own times on one machine."""
    compared = speed_change.compare(first_tokens_after(0.1), new, GATES, boot_sd=0.01)
    assert [one.arm for one in compared.late] == late
    assert (compared.slower, [one.arm for one in compared.without([VARIANT]).late]) == ((), late[:1])


def test_a_ratio_has_an_interval_of_boots_and_an_even_share_of_the_budget():
    compared = compare(record((50.0, 51.0), (90.0,)))
    decode = figure(compared, BASELINE, UpgradeFigure.DECODE)
    assert (round(decode.ratio, 2), decode.ruling, decode.at_least) == (0.5, GateRuling.MISSED, 0.95)
    assert decode.low < 0.5 < decode.high < 0.95
    first = figure(compared, BASELINE, UpgradeFigure.TTFT)
    assert (first.at_least, first.ruling) == (None, GateRuling.OPEN)
    assert "decode speed of baseline (chat): 100.5 tokens/s -> 50.49 tokens/s, 0.50x [" in describe(decode)


def test_the_boots_of_a_run_count_as_one():
    """All boots of a run share what the machine did meanwhile: ten of them are no ten measurements of the other run's machine."""

    def width(baseline):
        one = figure(compare(record(baseline), old=record(baseline)), BASELINE, UpgradeFigure.DECODE)
        return math.log(one.high / one.low)

    few, alike, unlike = width((100.0, 101.0)), width([100.0 + 0.1 * n for n in range(10)]), width([100.0 + 8.0 * n for n in range(10)])
    assert alike == pytest.approx(few), "boots alike within a run say nothing of two runs"
    assert unlike > 2.0 * few, "boots that vary by more than stated do"


@pytest.mark.parametrize("boots", [2, 5])
def test_two_runs_of_one_build_are_no_slowdown_however_alike_the_boots_of_each_are(boots):
    """Runs differ by a standard deviation of 5 % here, boots by .5 %: with gates of .95 the error has to stay below the budget."""
    rng, missed, covered = np.random.default_rng(5), 0, 0
    for _ in range(60):
        old, new = (record(list(100.0 * np.exp(rng.normal(0.0, 0.05) + rng.normal(0.0, 0.005, boots)))) for _ in range(2))
        decode = figure(compare(new, old=old, boot_sd=BOOT_SD), BASELINE, UpgradeFigure.DECODE)
        missed += decode.ruling is GateRuling.MISSED
        covered += decode.low <= 1.0 <= decode.high
    assert (missed, covered >= 54) == (0, True)


def test_boots_that_came_in_turn_share_the_machine_and_each_counts():
    """Two boots of each engine in turn have half the variance of two runs: 1/2 + 1/2 of one boot's, for 2."""
    alternated = replace(OLD, timed={name: replace(timed, alternated=True) for name, timed in OLD.timed.items()})
    apart, in_turn = (figure(compare(record(), old=old), BASELINE, UpgradeFigure.DECODE) for old in (OLD, alternated))
    assert math.log(in_turn.high / in_turn.low) < 0.8 * math.log(apart.high / apart.low)


@pytest.mark.parametrize("old, new", [(1, 1), (2, 2), (1, 4), (3, 2)])
def test_the_passes_of_every_boot_widen_the_interval_by_their_share(old, new):
    """Passes of independent boots, each of variance s^2: that of the ratio of their centres is s^2 (1/n + 1/m) / passes."""
    patterns = hadamard(8)[1:] * 0.02
    boots = [
        replace(transcript(BASELINE, [timed(per_s=100.0 * math.exp(off), pass_index=i) for i, off in enumerate(pattern)]), boot=number)
        for number, pattern in enumerate(patterns[: old + new])
    ]
    select = speed_change._SELECTED[UpgradeFigure.DECODE]
    estimate = speed_change._compare_boots(boots[:old], boots[old:], select, whole=False).estimate(BootSpread(stated_sd=0.01), 2.0)
    variance = 0.02**2 * 8.0 / 7.0
    assert estimate.within_variance == pytest.approx(variance * (1.0 / old + 1.0 / new) / 8.0, rel=1e-3)


def test_how_much_the_baselines_boots_vary_counts_for_the_variants_too():
    loss = 110.0
    assert compare(record(variant=(loss,))).slower
    unsteady = (70.0, 140.0)
    assert not compare(record(unsteady, (loss,)), old=record(unsteady)).slower


def test_a_small_loss_is_not_decided_and_names_nothing():
    compared = compare(record(variant=(165.0,)))
    assert figure(compared, VARIANT, UpgradeFigure.DECODE) in compared.undecided
    assert not compared.slower


def test_where_accepted_tokens_are_unknown_neither_the_drafter_nor_the_step_is_named():
    """Baseline and variant lost, neither by more than its gate alone: of the loss to .31 the baseline's to .6 leaves one to .52."""
    gates = UpgradeGates(baseline=0.3, variant=0.5)
    assert [slow.part for slow in compare(record((60.0, 60.6), (56.0,), windows=0), gates).slower] == [SlowPart.VARIANT]
    assert [slow.part for slow in compare(record((60.0, 60.6), (56.0,)), gates).slower] == [SlowPart.STEP]


def test_a_gate_of_the_config_decides():
    new = record(windows=2)
    assert [slow.part for slow in compare(new).slower] == [SlowPart.DRAFTER]
    assert not compare(new, UpgradeGates(acceptance=0.5)).slower


@pytest.mark.parametrize("new, why", [
    (record((50.0,), (90.0,), machine="other"), "of two machines, not comparable"),
    (record((50.0,), (90.0,), machine=""), "of an unknown machine"),
    (record((50.0,), (90.0,), 0, machine_load=9.0), "9.0 processes to a core of the client's machine"),
    (record((50.0,), (90.0,), 0, client=ClientLoad(cpu_share=0.9, drain_p99_s=0.0, step_gap_s=0.0, coalesced=0.0)), "the client could not"),
    (record((50.0,), (90.0,), 0, limited=3), "others used the server of baseline meanwhile, or it refused requests as too many"),
])  # fmt: skip
def test_what_is_not_comparable_is_shown_and_not_gated(new, why):
    compared = compare(new)
    assert compared.not_gated.startswith(why)
    assert round(figure(compared, BASELINE, UpgradeFigure.DECODE).ratio, 1) == 0.5
    assert {one.at_least for one in compared.ratios} == {None}
    assert not compared.slower
    looks_slower = BASELINE in {one.arm for one in compared.doubtful}
    assert all(one.unfit == compared.not_gated.replace(BASELINE, one.arm) for one in compared.doubtful), "the figure's own reason"
    assert looks_slower is (compared.not_gated not in {"of two machines, not comparable", "of an unknown machine"})


def test_a_disturbed_time_leaves_no_doubt_where_it_looks_no_slower_or_is_of_another_machine():
    assert not compare(record(windows=0, machine_load=9.0)).doubtful
    assert not compare(record((50.0,), (90.0,), 0, machine="other", machine_load=9.0)).doubtful
    assert not compare(record((50.0,), (90.0,), 0, machine_load=9.0)).without([VARIANT]).doubtful[1:]


def test_other_traffic_and_other_words_are_not_compared():
    for workload in (replace(TIMED, concurrency=4), replace(TIMED, requests=requests(1, max_tokens=9))):
        assert not [one for one in compare(record(workload=workload)).ratios if one.figure is not UpgradeFigure.LENGTH]
    asked = replace(DRAFTED, requests=requests(24, max_tokens=9))
    other = replace(record(baseline=()), drafted={VARIANT: tuple(replace(one, workload=asked) for one in lengths(1))})
    assert not compare(other).ratios


def test_one_pass_gives_no_interval():
    boots = {arm: tuple(replace(one, answers=one.answers[:1]) for one in OLD.timed["chat"].boots[arm]) for arm in (BASELINE, VARIANT)}
    once = SpeedRecord(machine="m", timed={"chat": TimedWorkload(workload=TIMED, boots=boots)})
    compared = compare(once)
    assert not any(one.has_limits for one in compared.ratios)
    assert {one.at_least for one in compared.ratios} == {None}
    assert "[" not in describe(compared.ratios[0])


def test_variants_with_wrong_tokens_count_for_nothing():
    compared = compare(record(variant=(60.0,), windows=1)).without([VARIANT])
    assert {one.arm for one in compared.ratios} == {BASELINE}
    assert not compared.slower
