"""Speed over several boots: the boots of baseline and variant on one scale, and what a verdict says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.speed import boot_blocks
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.captured import BootBlock
from pytest_specdec.model.timing import ClientLoad
from pytest_specdec.model.transcript import FailureKind, ServerFailure
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.paces import paces
from tests.judge.captured_values import SPECULATING, VARIANT, a_workload, answer, captured, requests, timed, transcript

GATE = Gate(figure="speedup", at_least=1.5, source="tiny.yaml:7 gates.speedup")


def passes(per_s, count=4, **fields):
    return [timed(per_s=per_s * (1.0, 1.01, 0.99, 1.02)[i % 4], pass_index=i, **fields) for i in range(count)]


def answers_of(per_s):
    return per_s if isinstance(per_s, list) else passes(per_s)


def arm(name, per_s, boot):
    return replace(transcript(name, answers_of(per_s)), boot=boot)


def run(speculative, baseline, *, gate=GATE, **fields):
    """A run in turn: B S B, S B …, with one baseline boot more than of the variant."""
    workload = a_workload(requests(1), passes=4, stream=True, timed=True, concurrency=1)
    arms = (answers_of(per_s) for per_s in (speculative[0], *baseline[:2]))
    first = captured("speed", *arms, workload=workload, gates=(gate,), counters=SPECULATING)
    bases = [arm("control", baseline[1], 2), *(arm(f"baseline.boot{n}", per_s, 2 * n) for n, per_s in enumerate(baseline[2:], 2))]
    blocks = tuple(
        BootBlock(speculative=arm(f"{VARIANT}.boot{n}", per_s, 2 * n - 1), baselines=tuple(bases[n - 2 : n]))
        for n, per_s in enumerate(speculative[1:], 2)
    )
    return replace(first, speculative=replace(first.speculative, boot=1), control=bases[0], further=blocks, alpha=1.25e-3, **fields)


def test_boots_stand_on_one_scale_whichever_boots_of_the_baseline_are_beside_them():
    found = boot_blocks.compare_boots(run((180.0, 170.0, 190.0), (100.0, 104.0, 96.0, 102.0)), paces)
    assert found.baseline == pytest.approx([math.log(b / 100) for b in (100, 104, 96, 102)])
    assert found.speculative == pytest.approx([math.log(s / 100) for s in (180, 170, 190)])
    assert [math.exp(each.response.log_ratios[0]) for each in found.paces] == pytest.approx(
        [180 / math.sqrt(100 * 104), 170 / math.sqrt(104 * 96), 190 / math.sqrt(96 * 102)]
    )


def test_the_speedup_is_over_all_boots_and_their_spread_is_what_they_differ_by():
    mine, base = (180.0, 170.0, 190.0), (100.0, 104.0, 96.0, 102.0)
    verdict = speed.judge(run(mine, base))
    ratio = math.exp(sum(map(math.log, mine)) / 3 - sum(map(math.log, base)) / 4)
    assert verdict.figures["speedup"] == pytest.approx(ratio)
    assert (verdict.figures["speculative_boots"], verdict.figures["baseline_boots"], verdict.figures["passes"]) == (3, 4, 12)
    assert verdict.figures["boot_log_ratio"] == pytest.approx(math.log(1.04)), "the control's alone, which baseline files hold"
    sides = [verdict.figures[f"{arm}_response_tokens_per_s"] for arm in ("speculative", "baseline")]
    assert sides[0] / sides[1] == pytest.approx(ratio), "the table has the ratio that it shows"
    assert sides[1] == pytest.approx(math.prod(base) ** 0.25, rel=0.02)
    calm = speed.judge(run((180.0, 180.0, 180.0), (100.0,) * 4))
    assert calm.figures["boot_sd"] < 0.03 < speed.judge(run((180.0, 140.0, 230.0), (100.0, 120.0, 80.0, 110.0))).figures["boot_sd"]


def first_text(per_s, ttft_s, content_s):
    answers = passes(per_s, ttft_s=ttft_s)
    return [replace(each, timing=replace(each.timing, content_s=each.timing.sent_s + content_s)) for each in answers]


def test_the_time_to_the_first_text_is_over_all_boots_and_has_a_row_only_after_reasoning():
    plain = speed.judge(run([first_text(180.0, t, t) for t in (0.1, 0.2)], [first_text(100.0, t, t) for t in (0.2, 0.3, 0.4)]))
    assert not [line for line in plain.evidence if "first text" in line]
    mine, base = ([first_text(per_s, 0.1, t) for t in times] for per_s, times in ((180.0, (0.2, 0.45)), (100.0, (0.6, 0.6, 0.6))))
    reasoned = speed.judge(run(mine, base))
    assert reasoned.figures["speculative_content_ttft_s"] == pytest.approx(0.3), "the geometric mean of .2 and .45 s"
    assert reasoned.figures["content_ttft_speedup"] == pytest.approx(2.0)


def test_a_verdict_says_how_many_boots_it_rests_on_and_what_each_showed():
    verdict = speed.judge(run((180.0, 170.0, 190.0), (100.0, 104.0, 96.0, 102.0)))
    _, interval, spread = verdict.short
    assert "12 passes of 1 requests" in interval
    assert "in 3 boots of the variant and 4 of the baseline (spread about 5.3%)" in interval
    assert spread.endswith("measured: 3 boots of the variant and 4 of the baseline")
    line = "by boot of the variant: 1.765x, 1.701x, 1.920x; boots of the baseline against its first: 1.000x, 1.040x, 0.960x, 1.020x"
    assert line in verdict.evidence


def test_earlier_runs_count_beside_the_boots_of_this_one():
    gate = replace(GATE, boot_log_ratios=(0.01, -0.02))
    assert speed.judge(run((180.0, 180.0), (100.0,) * 3, gate=gate)).short[-1].endswith("3 of the baseline and 2 earlier runs")


def test_more_boots_decide_what_one_leaves_open():
    one = run((160.0,), (100.0, 100.0))
    assert speed.judge(one).outcome is Outcome.NOT_DECIDED
    assert "more boots in one run (--specdec-boots 4)" in speed.judge(one).settle
    assert speed.judge(run((160.0,) * 4, (100.0,) * 5)).outcome is Outcome.PASS
    assert speed.judge(run((135.0,) * 4, (100.0,) * 5)).outcome is Outcome.FAIL
    assert "(--specdec-boots 8)" in speed.judge(run((150.0, 155.0) * 2, (100.0,) * 5)).settle


def test_a_boot_that_is_slow_alone_is_no_proof_and_no_fail():
    """One block far from the others leaves the gate open: how fast the next boot is, is not known."""
    assert speed.judge(run((180.0, 180.0, 90.0), (100.0,) * 4)).outcome is Outcome.NOT_DECIDED


def test_at_smoke_depth_baseline_and_control_are_one_boot():
    given = run((180.0, 180.0), (100.0, 104.0, 100.0))
    smoke = replace(given, baseline=replace(given.baseline, boot=2))
    found = boot_blocks.compare_boots(smoke, paces)
    assert found.baseline == pytest.approx([math.log(1.04) / 2, 0.0])
    assert speed.judge(smoke).figures["baseline_boots"] == 2
    assert "boot_log_ratio" not in speed.judge(smoke).figures


def test_side_by_side_a_boot_is_held_against_the_one_that_its_passes_alternated_with():
    given = run((180.0, 180.0), (100.0, 100.0, 90.0))
    block = BootBlock(speculative=given.further[0].speculative, baselines=given.further[0].baselines[-1:])
    beside = replace(given, further=(block,))
    found = boot_blocks.compare_boots(beside, paces)
    assert math.exp(found.paces[1].response.log_ratios[0]) == pytest.approx(2.0)
    assert [(len(group.speculative), len(group.baseline)) for group in found.groups] == [(1, 2), (1, 1)]
    assert [group.log_ratio for group in found.groups] == pytest.approx([math.log(1.8), math.log(2.0)])
    assert 1.8 < speed.judge(beside).figures["speedup"] < 2.0


def test_a_wave_in_which_all_servers_are_faster_shows_no_other_speedup():
    """Once blocks of 1.74x and 1.66x were called 1.83x, because a second wave had the machine to itself."""
    given = run((180.0, 270.0), (100.0, 100.0, 150.0))
    block = BootBlock(speculative=given.further[0].speculative, baselines=given.further[0].baselines[-1:])
    verdict = speed.judge(replace(given, further=(block,)))
    assert verdict.figures["speedup"] == pytest.approx(1.8)
    assert verdict.figures["boot_sd"] < 0.03
    sides = [verdict.figures[f"{arm}_response_tokens_per_s"] for arm in ("speculative", "baseline")]
    assert sides[0] / sides[1] == pytest.approx(1.8)


def test_the_control_is_judged_as_in_a_run_of_one_boot():
    several, one = run((180.0, 180.0), (100.0, 104.0, 60.0)), run((180.0,), (100.0, 104.0))
    assert speed.judge(several.as_control()) == speed.judge(one.as_control())


def test_one_burst_in_one_boot_has_whole_requests_compared_in_all_of_them():
    burst = [timed(per_s=100.0, pass_index=i, burst=80) for i in range(4)]
    verdict = speed.judge(run((180.0, 180.0), (100.0, 100.0, burst)))
    assert any("4 of 20 answers came in one burst" in line for line in verdict.evidence)
    assert "baseline_ttft_s" not in verdict.figures


def test_one_pass_a_boot_has_a_ratio_and_no_interval():
    single = [[timed(per_s=per_s)] for per_s in (180.0, 100.0, 100.0)]
    given = run((180.0, single[0]), (100.0, 100.0, single[2]))
    verdict = speed.judge(replace(given, baseline=arm("baseline", single[1], 0), control=arm("control", single[2], 2)))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert verdict.settle == "at least two passes"


def test_a_boot_that_shows_no_times_leaves_nothing_to_judge():
    silent = [answer("chat-00", range(101), pass_index=i) for i in range(4)]
    assert speed.judge(run((180.0, silent), (100.0,) * 3)).outcome is Outcome.INVALID
    assert speed.judge(run((180.0, 180.0), (100.0, 100.0, silent))).outcome is Outcome.INVALID


@pytest.mark.parametrize("which", ["speculative", "baseline"])
def test_a_server_failure_in_a_further_boot_is_told(which):
    given = run((180.0, 180.0), (100.0,) * 3)
    dead = ServerFailure(request_id="chat-00", ending=FailureKind.DIED, recurred=False)
    block = given.further[0]
    struck = (
        replace(block, speculative=replace(block.speculative, server_failures=(dead,)))
        if which == "speculative"
        else replace(block, baselines=(block.baselines[0], replace(block.baselines[1], server_failures=(dead,))))
    )
    verdict = speed.judge(replace(given, further=(struck,)))
    assert verdict.outcome is Outcome.INVALID


def test_a_client_that_fell_behind_in_a_further_boot_is_said():
    given = run((180.0, 180.0), (100.0,) * 3)
    busy = ClientLoad(cpu_share=0.71, drain_p99_s=0.0001, step_gap_s=0.01, coalesced=0.0)
    block = replace(given.further[0], speculative=replace(given.further[0].speculative, client=busy))
    verdict = speed.judge(replace(given, further=(block,)))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert f"the client could not keep up with {VARIANT}.boot2" in verdict.headline
