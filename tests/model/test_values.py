from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.baseline import Environment, Gate
from pytest_specdec.model.captured import Captured
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Answer, Choice, SpecCounters, Transcript, Usage
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload

PAIR = Pair(config="c", engine="reference", model="target", variant=Variant(name="v", draft=Draft(kind=DraftKind.NGRAM, tokens=3)))


def test_counters_are_taken_as_differences():
    before = SpecCounters(drafts=2, draft_tokens=6, accepted_tokens=1, accepted_per_position=(1,))
    after = SpecCounters(drafts=12, draft_tokens=36, accepted_tokens=16, accepted_per_position=(9, 5, 2))
    assert after - before == SpecCounters(drafts=10, draft_tokens=30, accepted_tokens=15, accepted_per_position=(8, 5, 2))


def test_a_difference_and_its_subtrahend_add_up_again():
    before = SpecCounters(drafts=2, draft_tokens=6, accepted_tokens=1, accepted_per_position=(1,))
    after = SpecCounters(drafts=12, draft_tokens=36, accepted_tokens=16, accepted_per_position=(9, 5, 2))
    assert (after - before) + before == after


def test_acceptance_is_told_in_the_fields_own_figures():
    counters = SpecCounters(drafts=10, draft_tokens=30, accepted_tokens=15)
    assert (counters.mean_acceptance_length, counters.rejected_tokens) == (2.5, 15)


def test_a_server_that_never_drafts_has_acceptance_length_one():
    assert SpecCounters().mean_acceptance_length == 1.0


def test_timing_is_told_in_seconds_from_sending():
    timing = Timing(sent_s=10.0, first_s=10.5, done_s=12.0)
    assert (timing.ttft_s, timing.content_ttft_s, timing.latency_s) == (0.5, None, 2.0)
    assert Timing(sent_s=1.0, first_s=None, done_s=2.0).ttft_s is None
    assert Timing(sent_s=10.0, first_s=10.5, content_s=11.5, done_s=12.0).content_ttft_s == 1.5


def test_an_answer_without_a_choice_has_an_empty_one():
    answer = Answer(request_id="r", status=500, error="boom")
    assert (answer.ok, answer.choice, answer.key) == (False, Choice(), ("r", 0))


def test_ids_and_the_servers_count_stand_in_for_each_other():
    usage, with_ids, bare = Usage(prompt_tokens=1, completion_tokens=3), (Choice(token_ids=(7, 8)),), (Choice(),)
    cases = [(with_ids, usage), (with_ids, None), (bare, usage), (bare, None)]
    answers = [Answer(request_id="r", status=200, choices=choices, usage=count) for choices, count in cases]
    assert [answer.tokens for answer in answers] == [2, 2, 3, None]
    assert [answer.reported_tokens for answer in answers] == [3, 2, 3, 0]


def test_the_steps_of_a_choice_are_its_windows_without_the_prefills_and_the_last():
    windows = (None, (), (1,), (1, 4), (1, 4, 2), (1, 4, 3, 2))
    assert [Choice(windows=each).steps for each in windows] == [(), (), (), (), (4,), (4, 3)]


def test_a_transcript_counts_the_tokens_of_all_choices():
    answers = (Answer(request_id="r", status=200, choices=(Choice(token_ids=(1, 2)), Choice(index=1, token_ids=(3,)))),)
    transcript = Transcript(arm="v", boot=1, workload="w", digest="d", answers=answers)
    assert repr(transcript) == "<Transcript v/w: 1 answers, 3 tokens>"


def test_judging_the_control_puts_it_in_the_variants_place():
    arm = {name: Transcript(arm=name, boot=0, workload="w", digest="d", answers=()) for name in ("baseline", "control", "v")}
    workload = Workload(name="w", version=1, requests=())
    captured = Captured(
        pair=PAIR, workload=workload, family=Family.GREEDY, baseline=arm["baseline"], control=arm["control"], speculative=arm["v"]
    )
    judged = captured.as_control()
    assert (captured.arm, judged.arm, judged.is_control) == ("v", "control", True)


def test_the_baselines_boots_are_those_that_are_not_under_judgement():
    baseline, control, speculative = (
        Transcript(arm=arm, boot=0, workload="w", digest="d", answers=()) for arm in ("baseline", "control", "v")
    )
    workload = Workload(name="w", version=1, requests=())
    captured = Captured(pair=PAIR, workload=workload, family=Family.GREEDY, baseline=baseline, control=control, speculative=speculative)
    assert captured.baseline_boots == (baseline, control)
    assert captured.as_control().baseline_boots == replace(captured, control=None).baseline_boots == (baseline,)


def test_a_workload_without_a_control_cannot_be_judged_as_one():
    only = Transcript(arm="v", boot=0, workload="w", digest="d", answers=())
    workload = Workload(name="w", version=1, requests=())
    captured = Captured(pair=PAIR, workload=workload, family=Family.GREEDY, baseline=only, control=None, speculative=only)
    with pytest.raises(ValueError, match="w of v has no control"):
        captured.as_control()


def test_two_machines_are_told_apart_by_name():
    facts = {"engine": "e", "engine_version": "1", "model": "m", "cores": 2, "memory_gib": 24.0}
    here = Environment(processor="AMD EPYC (Rome)", **facts)
    there = Environment(processor="AMD EPYC (Rome)", devices=("NVIDIA H200",), **facts)
    assert here.machine.startswith("amd-epyc-rome-")
    assert there.machine.startswith("1x-nvidia-h200-")
    assert replace(there, devices=there.devices * 2).machine.startswith("2x-nvidia-h200-")
    assert replace(there, cores=64, memory_gib=512.0).machine == there.machine
    assert replace(here, cores=64).machine != here.machine
    assert Environment(processor="", **facts).machine.startswith("machine-")


def test_figures_of_another_draft_are_not_compared_and_those_of_another_release_are():
    gate = Gate(figure="acceptance_length", key={"engine": "vllm 0.30", "model": "m@1", "draft": "model d@1, 3 tokens", "dtype": ""})
    upgraded = replace(gate, changes=gate.changed({**gate.key, "engine": "vllm 0.32", "dtype": "bfloat16"}))
    assert (upgraded.changes, upgraded.comparable) == (("engine vllm 0.30 -> vllm 0.32",), True)
    swapped = replace(gate, changes=gate.changed({**gate.key, "draft": "model d@2, 3 tokens"}))
    assert (swapped.changes, swapped.comparable) == (("draft model d@1, 3 tokens -> model d@2, 3 tokens",), False)
    assert gate.changed({}) == ()


def test_a_plan_finds_its_parts_by_name_and_counts_the_tokens_it_may_ask():
    requests = tuple(
        Request(id=str(i), route=Route.CHAT, body=body) for i, body in enumerate([{"max_tokens": 8}, {}, {"max_completion_tokens": 5}])
    )
    workload = Workload(name="w", version=1, requests=requests, passes=3)
    plan = Plan(
        config="c",
        engine="e",
        model="m",
        depth=Depth.SMOKE,
        pairs=(PAIR,),
        workloads=(workload,),
        judgements=(),
        boots=(),
        estimate_s=1.0,
    )
    assert (plan.workload("w"), plan.pair("v"), plan.tokens) == (workload, PAIR, 39)


@pytest.mark.parametrize(
    "outcome, red", [(Outcome.FAIL, True), (Outcome.NOT_SPECULATING, True), (Outcome.PASS, False), (Outcome.INVALID, False)]
)
def test_red_means_that_something_is_wrong_with_the_engine(outcome, red):
    assert Verdict(outcome=outcome, family=Family.GREEDY, pair="v", workload="w", headline="h").red is red
