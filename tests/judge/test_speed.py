from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.acceptance.length import acceptance_length
from pytest_specdec.model.baseline import Gate, Slo
from pytest_specdec.model.timing import ClientLoad, Timing
from pytest_specdec.model.transcript import FailureKind, ServerFailure, SpecCounters, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import speed_table
from pytest_specdec.stats.paces import paces
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, requests, timed, transcript

WOBBLE = (1.00, 1.01, 0.99, 1.02, 0.98)
STATED = Gate(figure="speedup", at_least=1.5, source="tiny.yaml:7 gates.speedup")
KNOWN = replace(STATED, boot_sd=0.01)


COUNTED = SpecCounters(drafts=200, draft_tokens=600, accepted_tokens=300)
"""Of five answers of 101 tokens, the first of each from the prefill: 2.5 tokens per step."""


def passes(per_s, *, count=5, ids=("chat-00",), ttft=0.1, **fields):
    return [
        timed(id_, per_s=per_s * WOBBLE[(i + j) % 5], ttft_s=ttft, pass_index=i, **fields)
        for i in range(count)
        for j, id_ in enumerate(ids)
    ]


def seen(mine=180.0, baseline=100.0, control=100.0, *, gates=(KNOWN,), alpha=1.25e-3, concurrency=1, **fields):
    workload = a_workload(requests(1), passes=5, stream=True, timed=True, concurrency=concurrency)
    fields.setdefault("counters", COUNTED)
    arms = [given if isinstance(given, list) else passes(given) for given in (mine, baseline, control)]
    found = captured("speed", *arms, workload=workload, gates=gates, alpha=alpha, **fields)
    return replace(found, control=replace(found.control, boot=2))


@pytest.mark.parametrize(
    "mine, gate, outcome, sentence",
    [
        (260.0, STATED, Outcome.PASS, "faster; gate met"),
        (180.0, STATED, Outcome.NOT_DECIDED, "faster; above the gate here, but not by more than boots are taken to vary"),
        (180.0, KNOWN, Outcome.PASS, "faster; gate met"),
        (120.0, KNOWN, Outcome.FAIL, "faster; gate missed"),
        (150.0, KNOWN, Outcome.NOT_DECIDED, "faster; the interval contains the gate"),
        (50.0, STATED, Outcome.FAIL, "slower; gate missed"),
        (100.0, replace(STATED, at_least=0.7), Outcome.PASS, "no change detected; gate met"),
        (167.0, replace(STATED, at_least=100.0), Outcome.FAIL, "faster; gate missed"),
        (155.0, replace(STATED, at_least=1.9), Outcome.NOT_DECIDED, "faster; the interval is below the gate"),
        (180.0, replace(STATED, boot_sd=0.3), Outcome.NOT_DECIDED, "no change detected; the interval spans a factor of"),
        (
            180.0,
            replace(STATED, boot_log_ratios=(0.6, -0.6, 0.6)),
            Outcome.NOT_DECIDED,
            "no change detected; the interval spans a factor of",
        ),
        (160.0, replace(STATED, boot_log_ratios=(0.001,) * 30), Outcome.PASS, "faster; gate met"),
    ],
)
def test_a_first_run_decides_by_what_boots_are_stated_to_vary_and_what_they_did(mine, gate, outcome, sentence):
    verdict = speed.judge(seen(mine, gates=(gate,)))
    assert verdict.outcome is outcome
    change, ruling = sentence.split("; ")
    assert f", {change}" in verdict.headline
    assert f"; {ruling}" in verdict.headline
    assert verdict.headline.endswith(f": speedup at least {gate.at_least:g} (tiny.yaml:7 gates.speedup)")
    if "spans a factor" in sentence:
        assert verdict.cell == "1.80x, interval too wide"
    else:
        assert verdict.cell == verdict.headline.partition(",")[0] + "," + verdict.headline.split(",")[1]


def test_a_first_run_is_wrong_about_no_machine_with_boots_that_vary_by_a_tenth():
    """What one pair of boots cannot tell is not claimed: with both alike the interval still holds boots that differ by several percent."""
    verdict = speed.judge(seen(180.0, gates=(STATED,)))
    assert verdict.figures["speedup_low"] < 1.8 * 0.9
    known = speed.judge(seen(180.0, gates=(replace(STATED, boot_log_ratios=(0.001,) * 9),)))
    assert known.figures["speedup_low"] > 1.8 * 0.98
    assert "9 earlier runs" in known.short[-1]


def test_runs_without_a_pair_of_boots_count_too_whatever_gate_the_config_states():
    stored = replace(STATED, source="stored", log_ratios=tuple(math.log(r) for r in (1.8, 1.82, 1.78, 1.81)))
    known = speed.judge(seen(180.0, gates=(STATED, stored)))
    assert "4 earlier runs" in known.short[-1]


TYPICAL = replace(
    STATED, boot_log_ratios=(0.02, -0.03, 0.03, -0.02) * 2, log_ratios=tuple(math.log(r) for r in (1.8, 1.82, 1.78, 1.81) * 2)
)


@pytest.mark.parametrize(
    "mine, outcome",
    [(180.0, Outcome.PASS), (172.0, Outcome.PASS), (166.0, Outcome.NOT_DECIDED), (140.0, Outcome.FAIL)],
)
def test_a_run_far_below_the_typical_one_fails_whatever_the_floor_is(mine, outcome):
    verdict = speed.judge(seen(mine, gates=(replace(TYPICAL, at_least=1.62),)))
    assert verdict.outcome is outcome
    if outcome is Outcome.FAIL:
        assert "1.72 expected: 5 % under the typical 1.80x of 8 runs" in verdict.short[0]
        assert speed.judge(seen(mine, gates=(replace(TYPICAL, at_least=1.2),))).outcome is Outcome.FAIL


def test_the_threshold_the_limits_and_what_is_assumed_of_boots_are_printed():
    verdict = speed.judge(seen(alpha=1.25e-3))
    gate, interval, boots = verdict.short
    assert gate.startswith("gate: speedup at least 1.5 (tiny.yaml:7 gates.speedup): met: 1.68 or more at 99.25%")
    assert all(figure in interval for figure in ("95%", "5 passes of 1 requests (spread 0.0%)", "(spread about 0.3%)"))
    assert all(figure in boots for figure in ("about 0.3%", "up to 5.0% equally likely", "control at 1.000x"))
    assert verdict.rules_out.startswith("a speedup below 1.68x would have been caught (99.25%); ")
    assert verdict.figures["confidence"] == 0.95
    assert verdict.figures["boot_log_ratio"] == pytest.approx(0.0)
    open_ = speed.judge(seen(150.0))
    assert open_.short[0].endswith("not decided: 1.40 or more at 99.25% confidence, 1.67 or less at 99.875%")
    assert open_.rules_out == ""
    assert "at most 1.40" in open_.settle


def test_a_fail_needs_the_share_of_alpha_and_says_what_would_make_it_surer():
    late = [seen(128.0, alpha=alpha) for alpha in (0.02, 1e-6)]
    assert [speed.judge(each).outcome for each in late] == [Outcome.FAIL, Outcome.NOT_DECIDED]
    assert any("boots the variant once more" in line for line in speed.judge(late[0]).evidence)


def test_boots_that_lie_apart_widen_the_interval():
    calm, apart = speed.judge(seen(gates=(STATED,))), speed.judge(seen(baseline=90.0, control=111.1, gates=(STATED,)))
    assert apart.figures["speedup"] == pytest.approx(calm.figures["speedup"], rel=1e-3)
    assert apart.figures["speedup_low"] < calm.figures["speedup_low"]
    assert apart.figures["boot_log_ratio"] == pytest.approx(math.log(111.1 / 90.0))


def test_at_smoke_depth_the_control_is_the_same_boot_and_measures_nothing():
    given = seen(gates=(STATED,))
    smoke = replace(given, baseline=replace(given.baseline, boot=2))
    verdict = speed.judge(smoke)
    assert "boot_log_ratio" not in verdict.figures
    assert "measured: none" in verdict.short[-1]
    assert verdict.figures["speedup_low"] < speed.judge(given).figures["speedup_low"]


def test_two_gated_figures_share_alpha():
    length = Gate(figure="acceptance_length", at_least=1.2, source="tiny.yaml")
    mine = windowed(20, lambda i: (2,) * 20 + (3,) * (i % 3))
    base = [timed(f"chat-{i:02}", per_s=100.0, pass_index=p) for i in range(20) for p in range(5)]
    shares = [speed.judge(seen(mine, base, base, gates=gates, alpha=1e-3)).short for gates in ((STATED,), (STATED, length))]
    assert [len(lines) for lines in shares] == [3, 4]
    low = speed.judge(seen(150.0, gates=(KNOWN, length), alpha=1e-3)).short[0]
    assert low.endswith("at 99.9%")


def test_without_a_threshold_one_client_must_not_be_slower_and_many_may_be():
    assert speed.judge(seen(gates=())).outcome is Outcome.PASS
    assert speed.judge(seen(60.0, gates=())).outcome is Outcome.FAIL
    many = speed.judge(seen(60.0, gates=(), concurrency=8))
    assert many.outcome is Outcome.NOT_DECIDED
    assert "8 clients" in many.headline


def test_one_pass_has_a_ratio_and_no_interval():
    verdict = speed.judge(seen(*[passes(each, count=1) for each in (180.0, 100.0, 100.0)]))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert verdict.cell == "1.80x"
    assert verdict.settle == "at least two passes"
    assert "speedup_low" not in verdict.figures


def test_an_interval_around_its_threshold_is_settled_by_what_it_is_wide_of():
    assert speed.judge(seen(150.0)).settle.startswith("more runs into the baseline file")
    noisy = [timed(per_s=150.0 * factor, pass_index=i) for i, factor in enumerate((0.7, 1.3, 0.8, 1.2, 1.0))]
    assert speed.judge(seen(noisy)).settle.startswith("more passes")


def test_the_table_has_the_rows_that_people_publish():
    mine = passes(41.88, ttft=0.5)
    verdict = speed.judge(seen(mine, passes(22.96, ttft=1.0), passes(22.96, ttft=1.0)))
    assert verdict.evidence[:5] == (
        "| Metric                  | Normal | Speculative | Speedup |",
        "| :---------------------- | -----: | ----------: | ------: |",
        "| Response tok/s          |  22.96 |       41.88 |   1.82x |",
        "| Time to first token (s) |  1.000 |       0.500 |   2.00x |",
        "| Prompt tok/s            |  20.00 |       40.00 |   2.00x |",
    )
    assert verdict.figures["baseline_response_tokens_per_s"] == pytest.approx(22.96, rel=1e-3)
    assert verdict.figures["ttft_speedup"] == pytest.approx(2.0)
    assert verdict.figures["prompt_speedup"] == pytest.approx(2.0)


def reasoned(per_s, ttft_s, content_s):
    """Answers that reason first, with the time of their first text and of their last token, which lies before the last byte."""
    streams = passes(per_s, ttft=ttft_s)
    stamps = [replace(a.timing, content_s=5.0 + content_s, last_s=a.timing.done_s, done_s=a.timing.done_s + 9.0) for a in streams]
    return [replace(a, timing=timing) for a, timing in zip(streams, stamps, strict=True)]


def test_behind_reasoning_the_first_text_has_a_row_of_its_own():
    """The stream of the slower arm ends late: what comes after the last token is no time of decoding."""
    base = reasoned(20.0, 0.2, 4.0)
    verdict = speed.judge(seen(reasoned(40.0, 0.1, 2.0), base, base))
    assert verdict.figures["speedup"] == pytest.approx(2.0)
    assert [line[:60] for line in verdict.evidence[3:5]] == [
        "| Time to first token (s) |  0.200 |       0.100 |   2.00x |",
        "| Time to first text (s)  |  4.000 |       2.000 |   2.00x |",
    ]
    assert (verdict.figures["speculative_content_ttft_s"], verdict.figures["content_ttft_speedup"]) == pytest.approx((2.0, 2.0))
    assert "speculative_content_ttft_s" not in speed.judge(seen(180.0)).figures
    assert speed_table.rows(verdict.promise)[2] == ("Time To First Text (s)", "4.000", "2.000", "2.00x")


def test_latencies_and_what_keeps_the_objective_stand_in_the_evidence_and_gate_nothing():
    verdict = speed.judge(replace(seen(180.0), slo=Slo(tpot_s=0.001)))
    assert verdict.outcome is Outcome.PASS
    assert "goodput of baseline: 0 of 5 answers keep time per token 1 ms: 0.00 requests/s" in verdict.evidence
    assert any(line.startswith("inter-token latency p50 / p90 / p99: baseline 10.0 /") for line in verdict.evidence)
    assert verdict.figures["speculative_inter_token_p50_s"] == pytest.approx(1 / 180, rel=0.01)
    told = {(of.what, of.arm): of for of in verdict.promise.latencies}
    assert told["inter-token latency", "speculative"].p50_s == pytest.approx(1 / 180, rel=0.01)
    assert told["inter-token latency", "baseline"].p50_s == pytest.approx(1 / 100, rel=0.01)


def test_both_boots_of_the_baseline_count_and_are_compared():
    verdict = speed.judge(seen(180.0, 100.0, 121.0))
    assert verdict.figures["speedup"] == pytest.approx(180 / math.sqrt(100 * 121), rel=1e-6)
    assert "control against baseline: 1.210x" in verdict.evidence


def test_prompts_are_compared_with_themselves():
    """A fast and a slow prompt: the ratio is theirs, not that of a mixture."""
    baseline = [*passes(100.0), *passes(10.0, ids=("chat-01",))]
    mine = [*passes(200.0), *passes(20.0, ids=("chat-01",))]
    found = paces((transcript("baseline", baseline),), transcript(VARIANT, mine))
    assert found.response.log_ratios == pytest.approx([math.log(2)] * 5)
    assert found.requests == 2


def test_requests_that_one_arm_did_not_answer_are_left_out_everywhere():
    baseline = [*passes(100.0)[:4], answer("chat-00", status=500, pass_index=4)]
    assert len(paces((transcript("baseline", baseline),), transcript(VARIANT, passes(200.0))).response.log_ratios) == 4


def test_a_run_without_streamed_timing_is_invalid():
    silent = [answer("chat-00", range(101), pass_index=i) for i in range(5)]
    verdict = speed.judge(seen(silent, silent, silent))
    assert verdict.outcome is Outcome.INVALID
    assert "nothing to time" in verdict.headline


def test_speed_without_speculation_is_not_speculating():
    assert speed.judge(seen(counters=SpecCounters())).outcome is Outcome.NOT_SPECULATING


def test_server_failures_and_refusals_come_first():
    dead = ServerFailure(request_id="chat-00", ending=FailureKind.HUNG, recurred=True)
    assert speed.judge(seen(server_failures=[dead])).outcome is Outcome.FAIL
    assert speed.judge(seen([answer("chat-00", status=400)])).outcome is Outcome.REFUSED


@pytest.mark.parametrize("control, outcome", [(101.0, Outcome.PASS), (110.0, Outcome.PASS), (230.0, Outcome.FAIL), (40.0, Outcome.FAIL)])
def test_the_control_must_be_as_fast_as_the_baseline_by_more_than_boots_differ(control, outcome):
    verdict = speed.judge(seen(control=control, gates=(STATED,)).as_control())
    assert verdict.outcome is outcome


def windowed(count, lengths):
    return [timed(f"chat-{i:02}", per_s=180.0, windows=(1, *lengths(i), 1), pass_index=p) for i in range(count) for p in range(5)]


@pytest.mark.parametrize("at_least, outcome", [(1.5, Outcome.PASS), (2.6, Outcome.FAIL), (2.055, Outcome.NOT_DECIDED)])
def test_a_timed_workload_of_enough_prompts_gates_acceptance_too(at_least, outcome):
    mine = windowed(20, lambda i: (2,) * 20 + (3,) * (i % 3))
    base = [timed(f"chat-{i:02}", per_s=100.0, pass_index=p) for i in range(20) for p in range(5)]
    gates = (KNOWN, Gate(figure="acceptance_length", at_least=at_least, source="tiny.yaml"))
    verdict = speed.judge(seen(mine, base, base, gates=gates))
    assert verdict.outcome is outcome
    assert f"acceptance length at least {at_least:g} (tiny.yaml)" in " ".join(verdict.short)


def test_an_acceptance_length_of_one_prompt_is_left_to_a_workload_of_many():
    gates = (KNOWN, Gate(figure="acceptance_length", at_least=1.0))
    verdict = speed.judge(seen(gates=gates))
    assert verdict.outcome is Outcome.PASS
    assert not any("acceptance" in line for line in verdict.short)
    assert verdict.figures["acceptance_length"] == 2.5


def test_the_acceptance_length_comes_from_windows_else_from_counters():
    mine = windowed(2, lambda i: (2, 4))
    counted = seen(mine, mine, mine)
    assert acceptance_length(counted.speculative, counted.workload).tokens == pytest.approx(3.0)
    assert acceptance_length(seen().speculative, counted.workload).tokens == 2.5
    assert acceptance_length(seen(counters=None).speculative, counted.workload) is None


@pytest.mark.parametrize("mine, said", [(180.0, ": plausible"), (400.0, "implausible")])
def test_more_speed_than_saved_steps_is_doubted(mine, said):
    verdict = speed.judge(seen(mine))
    assert any("plain steps" in line and said in line for line in verdict.evidence)
    assert verdict.figures["step_cost"] == pytest.approx(2.5 / (mine / 100), rel=1e-6)


def measured_burst():
    """Stamps of a real baseline on a machine with few cores: one token a chunk, all of them read when the last one came."""
    timing = Timing(sent_s=0.0, first_s=0.3094, done_s=0.3101, first_tokens=80)
    usage = Usage(prompt_tokens=149, completion_tokens=80)
    return [answer("chat-00", range(80), timing=timing, usage=usage, pass_index=i, windows=(1,) * 80) for i in range(4)]


def calm(per_s, count=4, ttft_s=0.0101, **fields):
    return passes(per_s, count=count, ttft=ttft_s, tokens=80, burst=1, **fields)


def test_an_answer_that_came_in_one_burst_has_every_arms_whole_requests_compared():
    """Once 2,382 tokens/s were told of a server that makes 260."""
    verdict = speed.judge(seen(calm(520.0), calm(260.0), measured_burst(), gates=()))
    assert verdict.figures["baseline_response_tokens_per_s"] == pytest.approx(80 / 0.31, rel=0.05)
    assert verdict.figures["speculative_response_tokens_per_s"] == pytest.approx(80 / (0.0101 + 79 / 520), rel=0.05)
    assert verdict.figures["speedup"] == pytest.approx(0.31 / (0.0101 + 79 / 520), rel=0.05)
    assert verdict.figures["answers_in_one_burst"] == 4
    assert "baseline_ttft_s" not in verdict.figures
    assert verdict.promise.ttft is None
    assert verdict.promise.unfit.startswith("answers came in one burst")
    assert any("4 of 12 answers" in line for line in verdict.short)
    assert any("4 of 12 answers" in line for line in verdict.evidence)
    assert "control against baseline: 1.0" in " ".join(verdict.evidence)
    assert not any("plausible" in line for line in verdict.evidence)


def test_the_baselines_boots_are_compared_by_whole_requests_too_where_only_a_variant_came_in_a_burst():
    control = calm(260.0, ttft_s=0.0101 + 80 / 260)
    verdict = speed.judge(seen(measured_burst(), calm(260.0), control, gates=()))
    assert verdict.figures["answers_in_one_burst"] == 4
    assert any(line.startswith("control against baseline: 0.5") for line in verdict.evidence)


def test_where_every_answer_was_read_as_it_came_decoding_alone_is_compared():
    verdict = speed.judge(seen(calm(520.0), calm(260.0), calm(260.0), gates=()))
    assert verdict.figures["speedup"] == pytest.approx(2.0, rel=1e-3)
    assert "answers_in_one_burst" not in verdict.figures
    assert not any("burst" in line for line in (*verdict.short, *verdict.evidence))


def one_boot(mine, gate=STATED, **fields):
    return speed.judge(replace(seen(mine, gates=(gate,)), within_one_boot=True, **fields))


def test_attached_servers_show_an_interval_over_the_passes_and_gate_by_what_is_stated():
    """The same passes that decide between boots of our own: the interval is narrower, the gates are held against boots none the less."""
    apart, within = speed.judge(seen(180.0, gates=(STATED,))), one_boot(180.0)
    width = [verdict.figures["speedup_high"] - verdict.figures["speedup_low"] for verdict in (apart, within)]
    assert width[1] < width[0]
    assert "within one boot" in within.headline
    assert any("whose spread here is unknown" in line for line in within.evidence)
    assert "boot_log_ratio" not in within.figures, "what two visits differ by is no spread between boots"
    assert within.outcome is Outcome.NOT_DECIDED
    clear = one_boot(320.0)
    assert clear.outcome is Outcome.PASS
    assert "within one boot" in clear.headline
    assert one_boot(30.0).outcome is Outcome.FAIL


def test_a_gate_nearer_than_boots_are_taken_to_vary_stays_open_within_one_boot():
    verdict = one_boot(158.0)
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "not by more than boots are taken to vary" in verdict.headline
    assert "boot_sd" in verdict.settle


@pytest.mark.parametrize("mine", [180.0, 50.0])
def test_a_server_that_others_used_meanwhile_is_not_gated(mine):
    before = seen(mine, gates=(STATED,))
    verdict = speed.judge(replace(before, speculative=replace(before.speculative, foreign="900 prompt tokens")))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "others used the server" in verdict.headline
    assert any("900 prompt tokens" in line for line in verdict.evidence)


@pytest.mark.parametrize("arm", ["baseline", "speculative"])
def test_a_server_behind_a_gateway_that_limits_requests_is_not_gated(arm):
    before = seen(50.0, gates=(STATED,))
    verdict = speed.judge(replace(before, **{arm: replace(getattr(before, arm), limited=7)}))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "too many requests" in verdict.headline
    assert any("7 times refused with 429" in line for line in verdict.evidence)


@pytest.mark.parametrize("mine", [180.0, 50.0])
@pytest.mark.parametrize("arm", ["baseline", "control", "speculative"])
def test_seconds_of_a_client_that_fell_behind_are_not_gated(arm, mine):
    before = seen(mine, gates=(STATED,))
    busy = ClientLoad(cpu_share=0.71, drain_p99_s=0.0001, step_gap_s=0.01, coalesced=0.0)
    with_load = {name: replace(getattr(before, name), client=replace(busy, cpu_share=0.04)) for name in ("baseline", "speculative")}
    verdict = speed.judge(replace(before, **{**with_load, arm: replace(getattr(before, arm), client=busy)}))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert f"not gated: the client could not keep up with {getattr(before, arm).arm}: the client used 71% of a core" in verdict.headline
    assert verdict.settle == "a client with a core to itself, or fewer requests at once"


def test_how_busy_the_client_was_stands_beside_the_figures():
    before = seen(180.0)
    free = ClientLoad(cpu_share=0.04, drain_p99_s=0.0001, step_gap_s=0.01, coalesced=0.002)
    verdict = speed.judge(replace(before, speculative=replace(before.speculative, client=free)))
    assert verdict.outcome is Outcome.PASS
    line = "client of v: 4.0% of a core, 0.10 ms to read what came, 10.00 ms between steps, 0.2% of reads found several events"
    assert line.replace(" v:", f" {before.speculative.arm}:") in verdict.evidence
