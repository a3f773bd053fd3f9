"""Invariants: each rule fails by its own name, chance fails none, and what the baseline does itself is no fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import invariants
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import Choice, SpecCounters, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import SPECULATING, a_pair, answer, requests

COUNT = 24
WORKLOAD = Workload(name="chat", version=1, requests=requests(COUNT, max_tokens=6))
EOS = 2


def right(index, **fields):
    tokens = (10 + index, 11, 12, 13, 14, EOS)
    usage = Usage(prompt_tokens=3, completion_tokens=6, total_tokens=9)
    return answer(f"chat-{index:02}", tokens, **{"text": f"w{index} good text", "usage": usage, "windows": (1, 3, 2), **fields})


RIGHT = tuple(right(index) for index in range(COUNT))


def judged(speculative=RIGHT, baseline=RIGHT, control=RIGHT, counters=SPECULATING, workload=WORKLOAD):
    part = a_part(workload, speculative, baseline, control, counters=counters, capabilities={"baseline": Capabilities(vocabulary=1000)})
    return invariants.judge(a_run(part))


def changed(**fields):
    return tuple(right(index, **fields) for index in range(COUNT))


def choices(change, answers=RIGHT):
    return tuple(replace(each, choices=(replace(each.choice, **change(each.choice)),)) for each in answers)


def test_answers_that_keep_every_rule_pass():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline == "24 answers of 1 workloads keep 8 of 8 rules, and those of how an answer ends"
    assert verdict.figures == {"answers": 24.0, "workloads": 1.0, "rules_left_out": 0.0}


def test_a_pass_says_that_ends_are_untested_where_no_ids_show_them():
    ends = tuple(
        replace(each, choices=(replace(each.choice, token_ids=(*each.choice.token_ids[:5], 30 + i)),)) for i, each in enumerate(RIGHT)
    )
    clause = "; ends of sequence, which no ids show here, only if 17 of 24 prompts end otherwise"
    assert judged(ends, ends, ends).rules_out.endswith(clause)
    assert "ends of sequence" not in judged().rules_out


BROKEN = {
    "usage counts another prompt": (changed(usage=Usage(prompt_tokens=0, completion_tokens=6)), "usage counts 0 prompt tokens"),
    "usage does not add up": (changed(usage=Usage(prompt_tokens=3, completion_tokens=6, total_tokens=15)), "15 in total"),
    "choices are missing": (tuple(replace(a, choices=(*a.choices, Choice(index=1))) for a in RIGHT), "2 choices where n is 1"),
    "a token id is outside the vocabulary": (choices(lambda c: {"token_ids": (*c.token_ids[:4], 1000, EOS)}), "token id 1000"),
    "a verify step emits more tokens than it can": (changed(windows=(1, 5)), "a verify step of 5 tokens, where 3 are drafted"),
    "token ids and text disagree": (
        choices(lambda c: {"token_ids": (c.token_ids[0], c.token_ids[2], c.token_ids[1], *c.token_ids[3:])}),
        "id 1 is 12 where the baseline has 11",
    ),
    "special tokens stand in the text": (choices(lambda c: {"text": c.text + "<|im_end|>"}), '"<|im_end|>"'),
    "the text has broken characters": (choices(lambda c: {"text": f"w\ufffd{c.text}"}), "U+FFFD"),
    "usage counts other tokens than were answered": (changed(usage=Usage(prompt_tokens=3, completion_tokens=9)), "9 completion tokens"),
    "the same tokens are given as another text": (choices(lambda c: {"text": c.text.replace("oo", "o")}), "goes on with"),
    "the finish_reason is wrong": (changed(finish=None), "no finish_reason"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_fails_by_its_name_with_the_first_request(name):
    speculative, what = BROKEN[name]
    verdict = judged(speculative)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert verdict.headline.startswith(f"{name}: 24 of 24 answers")
    assert "chat/chat-00" in verdict.short[0]
    assert what in verdict.short[0]


@pytest.mark.parametrize("name", [rule.name for rule in invariants.RULES])
def test_what_the_baseline_does_as_well_is_no_fault(name):
    """Both its boots alike, and the rule is then left out of the pass."""
    speculative, _ = BROKEN[name]
    verdict = judged(speculative, speculative, speculative)
    assert verdict.names != name


def test_a_rule_that_the_baseline_breaks_is_said_to_be_left_out():
    wrong = BROKEN["usage does not add up"][0]
    verdict = judged(wrong, wrong, RIGHT)
    assert verdict.outcome is Outcome.PASS
    assert "keep 7 of 8 rules" in verdict.headline
    assert any("left out, since the baseline breaks it: usage does not add up" in line for line in verdict.evidence)


@pytest.mark.parametrize("name", [rule.name for rule in invariants.RULES if rule.by_chance])
def test_what_a_model_may_write_now_and_then_is_no_fault(name):
    speculative, _ = BROKEN[name]
    other = choices(lambda c: {"token_ids": (*c.token_ids[:1], 90, *c.token_ids[2:])}, speculative[:3])  # no twin has the same ids
    few = (*(other if name != "token ids and text disagree" else speculative[:3]), *RIGHT[3:])
    assert judged(few).outcome is Outcome.PASS


def test_a_text_that_the_request_asked_for_is_no_leak():
    asked = Workload(name="chat", version=1, requests=requests(COUNT, stop="<|im_end|>", max_tokens=6))
    leaking = choices(lambda c: {"text": "<|im_end|>", "token_ids": (c.token_ids[0], 99, *c.token_ids[2:])})
    assert judged(leaking, workload=asked).names != "special tokens stand in the text"


def test_a_prompt_with_other_ids_is_another_prompt():
    verdict = judged(tuple(replace(each, prompt_token_ids=(7, 8, 9)) for each in RIGHT))
    assert verdict.names == "usage counts another prompt"


def test_requests_that_were_all_refused_are_a_refusal():
    refused = [answer(f"chat-{index:02}", status=400, error="no") for index in range(COUNT)]
    assert judged(refused).outcome is Outcome.REFUSED


def test_access_that_was_lost_in_the_middle_is_invalid():
    lost = [*RIGHT[:3], *(answer(each.request_id, status=401, error="no such key") for each in RIGHT[3:])]
    assert judged(lost).outcome is Outcome.INVALID


def test_a_run_without_answers_is_invalid():
    lost = [answer(f"chat-{index:02}", status=None) for index in range(COUNT)]
    assert judged(lost, lost, lost).outcome is Outcome.INVALID


def test_a_variant_that_never_drafts_does_not_speculate():
    assert judged(counters=SpecCounters(), speculative=changed(windows=None)).outcome is Outcome.NOT_SPECULATING


def test_workloads_without_counters_do_not_hide_that_the_others_were_drafted_for():
    """A restart, or a route whose answers count nothing, leaves one workload of a run without counters."""
    plain = changed(windows=None)
    other = replace(WORKLOAD, name="other")
    parts = [a_part(one, plain, RIGHT, RIGHT, counters=counts) for one, counts in ((WORKLOAD, SPECULATING), (other, None))]
    assert invariants.judge(a_run(*parts)).outcome is Outcome.PASS
    uncounted = [a_part(one, plain, RIGHT, RIGHT, counters=counts) for one, counts in ((WORKLOAD, SpecCounters()), (other, None))]
    assert invariants.judge(a_run(*uncounted)).outcome is Outcome.NOT_SPECULATING


def test_the_control_is_held_to_the_rules_of_answers_and_not_of_counters():
    part = a_part(WORKLOAD, RIGHT, RIGHT, BROKEN["usage counts another prompt"][0])
    verdict = invariants.judge(a_run(part).as_control())
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "usage counts another prompt")
    healthy = a_part(WORKLOAD, RIGHT, RIGHT, RIGHT)
    assert invariants.judge(a_run(healthy).as_control()).outcome is Outcome.PASS


COUNTERS = {
    "tokens accepted of": SpecCounters(drafts=30, draft_tokens=60, accepted_tokens=80),
    "drafts of 3 at most": SpecCounters(drafts=30, draft_tokens=120, accepted_tokens=40),
    "went down": SpecCounters(drafts=30, draft_tokens=60, accepted_tokens=-20),
    "over all positions": SpecCounters(drafts=30, draft_tokens=90, accepted_tokens=40, accepted_per_position=(10, 5, 4)),
    "a later position": SpecCounters(drafts=30, draft_tokens=90, accepted_tokens=40, accepted_per_position=(5, 30, 5)),
    "answered": SpecCounters(drafts=3000, draft_tokens=9000, accepted_tokens=4000),
}


@pytest.mark.parametrize("what", COUNTERS)
def test_counters_that_no_drafting_gives_fail_by_name(what):
    verdict = judged(counters=COUNTERS[what])
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, invariants.UNEVEN)
    assert what in verdict.headline


def test_counters_that_stand_still_beside_accepted_drafts_fail_by_name():
    verdict = judged(counters=SpecCounters())
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, invariants.STILL)
    assert "72 accepted draft tokens" in verdict.headline


ROUNDED = {
    "a position off by rounding": SpecCounters(drafts=30, draft_tokens=90, accepted_tokens=40, accepted_per_position=(20, 11, 10)),
    "an estimate below nothing": SpecCounters(drafts=30, draft_tokens=90, accepted_tokens=-2),
    "drafts estimated from a mean": SpecCounters(drafts=29, draft_tokens=90, accepted_tokens=40),
}


@pytest.mark.parametrize("what", ROUNDED)
def test_counters_that_an_engine_rounds_are_no_fault(what):
    assert invariants.find_counter_breach(a_part(WORKLOAD, RIGHT, RIGHT, counters=ROUNDED[what])) is None


def test_a_head_may_draft_a_tree_of_more_tokens_than_a_step_accepts():
    tree = SpecCounters(drafts=30, draft_tokens=240, accepted_tokens=40)
    assert invariants.find_counter_breach(a_part(WORKLOAD, RIGHT, RIGHT, counters=tree, pair=a_pair(DraftKind.HEAD))) is None


def test_a_step_of_a_drafter_that_nothing_is_known_of_may_be_long():
    part = a_part(WORKLOAD, changed(windows=(1, 5)), RIGHT, RIGHT, pair=a_pair(DraftKind.UNKNOWN))
    assert invariants.judge(a_run(part)).outcome is Outcome.PASS


@pytest.mark.parametrize("fields", [{"foreign": "3 requests"}, {"restarts": 1}, {"replaced": "another start time"}])
def test_counters_that_may_count_something_else_are_not_held_to_anything(fields):
    part = a_part(WORKLOAD, RIGHT, RIGHT)
    speculative = replace(part.speculative, counters=COUNTERS["answered"], **fields)
    assert invariants.find_counter_breach(replace(part, speculative=speculative)) is None


def test_counters_of_an_engine_without_usage_are_held_against_the_ids():
    part = a_part(WORKLOAD, changed(usage=None), RIGHT, counters=COUNTERS["answered"])
    assert invariants.find_counter_breach(part).name == invariants.UNEVEN
    part = a_part(WORKLOAD, changed(usage=None, windows=None), RIGHT, counters=SPECULATING)
    assert invariants.find_counter_breach(part) is None


def test_an_engine_that_looks_for_stop_strings_in_another_process_computes_on_up_to_the_limit():
    """vLLM counted steps of 240 tokens for 105 answered, on two cores with seven more servers."""
    stops = tuple(replace(request, body={**request.body, "stop": ["text"], "max_tokens": 200}) for request in WORKLOAD.requests)
    unlimited = tuple(replace(request, body={"temperature": 0.0, "stop": ["text"]}) for request in WORKLOAD.requests)
    ahead = SpecCounters(drafts=1200, draft_tokens=3600, accepted_tokens=3500)
    for workload, counters, is_breach in (
        (replace(WORKLOAD, requests=stops), ahead, False),
        (replace(WORKLOAD, requests=stops), COUNTERS["answered"], True),
        (replace(WORKLOAD, requests=unlimited), COUNTERS["answered"], False),
        (WORKLOAD, ahead, True),
    ):
        assert (invariants.find_counter_breach(a_part(workload, RIGHT, RIGHT, counters=counters)) is not None) is is_breach
