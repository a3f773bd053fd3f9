"""Drafting by kind of traffic: each kind that goes without is named, chance and unlike prompts name none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.drafting.verdict import judge_drafting
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import SpecCounters, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Workload
from pytest_specdec.prompts import traffic
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import SPECULATING, a_pair, answer, requests

KINDS = traffic.kinds()
FULL, DEAD, OFF = ((1, 4, 3, 4), (3, 3, 3)), ((1,) * 12, (3,) * 11), ((1,) * 12, (0,) * 11)
SHORTER = ((1, 3, 3, 2, 3), (2, 2, 2, 2))
FIRST = ((1, *(2,) * 10, 1), (3,) * 11)
LONG_RUNS = ((1, *(4,) * 10, 1), (3,) * 11)
PLAIN = {"name": "plain", "concurrency": 1}


def answered(workload, way=FULL, ways=(), prompt_tokens=60):
    """Answer every request ``way``, those whose kind is in ``ways`` as that says."""
    by_kind = dict(ways)
    answers = []
    for request in workload.requests:
        kind = request.id.partition("#")[2]
        windows, drafted = by_kind.get(kind, way)
        usage = Usage(prompt_tokens=700 if kind == "long" else prompt_tokens, completion_tokens=12)
        answers.append(answer(request.id, range(12), finish="length", windows=windows, drafted=drafted, usage=usage))
    return answers


def judged(*parts, pair=None, alpha=5e-4):
    captured = [a_part(w, answers, answers, family="speed", pair=pair, counters=SPECULATING) for w, answers in parts]
    return speed.judge(a_run(*captured, alpha=alpha))


WAYS = {
    "drafting is off for requests with log-probabilities": [("logprobs", OFF)],
    "drafting is off for requests with a grammar": [("grammar", OFF)],
    "drafting is off for requests with penalties": [("penalty", OFF)],
    "drafting is off for requests with a seed": [("seeded", OFF)],
    "drafting is off for requests that draw without a seed": [("drawn", OFF)],
    "drafting is off for requests above temperature 0": [("seeded", OFF), ("drawn", OFF)],
    "drafting is off for prompts of more than 512 tokens": [("long", OFF)],
    "no draft is accepted for requests with log-probabilities": [("logprobs", DEAD)],
    "no draft is accepted for prompts of more than 512 tokens": [("long", DEAD)],
}


@pytest.mark.parametrize("kind", [DraftKind.MODEL, DraftKind.NGRAM])
@pytest.mark.parametrize("name", WAYS)
def test_a_kind_without_drafts_is_named(name, kind):
    verdict = judged((KINDS, answered(KINDS, ways=WAYS[name])), pair=a_pair(kind))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert "kinds-of-traffic/copy-json-01#" in verdict.short[0]


def test_traffic_that_is_all_drafted_for_passes_and_says_how_many_kinds():
    verdict = judged((KINDS, answered(KINDS)))
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline == "drafts are made and accepted in 8 kinds of traffic alike, over 35 answers of 1 workloads"
    assert verdict.figures["kinds"] == 8.0
    assert verdict.promise.kinds == 8
    assert verdict.promise.steps == 35 * 2
    assert verdict.promise.accepted_by_position == pytest.approx((1.0, 1.0, 0.5))


def test_shorter_drafts_in_company_are_named_by_the_requests_in_flight():
    alone = Workload(version=1, requests=requests(5), **PLAIN)
    verdict = judged((KINDS, answered(KINDS, SHORTER)), (alone, answered(alone)))
    assert verdict.names == "fewer tokens are drafted for requests with more than 4 in flight"


def test_shorter_drafts_of_prompt_lookup_are_no_finding():
    alone = Workload(version=1, requests=requests(5), **PLAIN)
    verdict = judged((KINDS, answered(KINDS, SHORTER)), (alone, answered(alone)), pair=a_pair(DraftKind.NGRAM))
    assert verdict.outcome is Outcome.PASS


@pytest.mark.parametrize("kind", [DraftKind.MODEL, DraftKind.NGRAM])
def test_a_kind_that_accepts_the_first_draft_token_only_is_named(kind):
    ways = [("seeded", FIRST), ("drawn", FIRST)]
    verdict = judged((KINDS, answered(KINDS, LONG_RUNS, ways)), pair=a_pair(kind))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "only the first draft token is accepted for requests above temperature 0")


def test_a_variant_that_accepts_the_first_draft_token_only_is_named_with_its_rates():
    plain = Workload(name="plain", version=1, requests=requests(20))
    verdict = judged((plain, answered(plain, FIRST)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "draft tokens after the first are never accepted")
    assert verdict.short[1].endswith("binomial test over prompts")
    assert verdict.figures["accepted_at_position_1"] == 1.0
    assert any(line.startswith("all traffic: 200 steps, 3.00 drafted and 1.00 accepted") for line in verdict.evidence)


def test_counters_by_position_name_it_where_answers_show_no_windows():
    counters = SpecCounters(drafts=100, draft_tokens=300, accepted_tokens=70, accepted_per_position=(70, 0, 0))
    parts = []
    for name in map(str, range(12)):
        workload = Workload(name=name, version=1, requests=requests(4))
        bare = [answer(request.id, range(12), finish="length") for request in workload.requests]
        parts.append(a_part(workload, bare, bare, family="speed", counters=counters))
    assert judge_drafting(a_run(*parts, alpha=5e-4)).names == "draft tokens after the first are never accepted"


def test_drafts_that_end_where_answers_grow_past_a_length_are_named():
    plain = Workload(name="plain", version=1, requests=requests(20))
    ending = ((1, *(4,) * 6, *(1,) * 6), (3,) * 6 + (0,) * 6)
    verdict = judged((plain, answered(plain, ending, prompt_tokens=40)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "drafting ends beyond 64 tokens of context")
    assert verdict.short[1].endswith("McNemar's exact test over answers")
    assert judged((plain, answered(plain, ending, prompt_tokens=40)), pair=a_pair(DraftKind.NGRAM)).outcome is not Outcome.FAIL


def test_drafting_that_is_off_but_for_the_last_answers_of_a_crowd_is_off():
    """As those finish, fewer are in flight, and drafting sets in."""
    crowd, alone = (
        Workload(version=1, requests=requests(40), name="crowd", concurrency=16),
        Workload(version=1, requests=requests(20), **PLAIN),
    )
    tail = ((1,) * 9 + (4, 4), (0,) * 8 + (3, 3))
    assert (
        judged((crowd, answered(crowd, tail)), (alone, answered(alone))).names == "drafting is off for requests with more than 8 in flight"
    )


def test_other_prompts_do_not_prove_that_prompt_lookup_is_off():
    """A story has nothing to copy; those answers belong to another workload, whose prompts the others do not share."""
    story = Workload(name="story", version=1, requests=requests(60, logprobs=True), stream=True)
    parts = (KINDS, answered(KINDS)), (story, answered(story, OFF))
    assert judged(*parts, pair=a_pair(DraftKind.NGRAM)).outcome is Outcome.PASS
    assert judged(*parts).names == "drafting is off for requests with log-probabilities"


@pytest.mark.parametrize("body", [{"logit_bias": {"7": 100}}, {"temperature": 2.0, "min_p": 0.1}, {"bad_words": ["the"]}])
def test_drafts_that_fail_where_the_request_bends_the_distribution_are_no_finding(body):
    bent, plain = (Workload(name=name, version=1, requests=requests(60, **more)) for name, more in (("bent", body), ("plain", {})))
    assert judged((KINDS, answered(KINDS)), (bent, answered(bent, DEAD)), (plain, answered(plain))).outcome is Outcome.PASS


@pytest.mark.parametrize("body, kind", [
    ({"logit_bias": {"7": 1}}, "requests with a logit bias"),
    ({"stop": ["x"]}, "requests with stop strings"),
    ({"top_p": 0.9}, "requests with top-p"),
    ({"top_k": 5}, "requests with top-k"),
    ({"min_p": 0.1}, "requests with min-p"),
    ({"logprobs": 0}, "requests with log-probabilities"),
    ({"prompt_logprobs": 1}, "requests with log-probabilities of the prompt"),
])  # fmt: skip
def test_a_parameter_that_switches_drafting_off_is_named(body, kind):
    bare, plain = (Workload(name=name, version=1, requests=requests(30, **more)) for name, more in (("with", body), ("without", {})))
    assert judged((plain, answered(plain)), (bare, answered(bare, OFF))).names == f"drafting is off for {kind}"


def test_counters_tell_where_answers_do_not():
    bare = [answer(request.id, range(12), finish="length") for request in requests(40)]
    off, on = (Workload(name=name, version=1, requests=requests(40, **body)) for name, body in (("a", {"logprobs": True}), ("b", {})))
    parts = [a_part(w, bare, bare, family="speed", counters=counters) for w, counters in ((off, SpecCounters()), (on, SPECULATING))]
    assert judge_drafting(a_run(*parts, alpha=5e-4)).names == "drafting is off for requests with log-probabilities"


def test_drafting_that_depends_on_load_is_judged_one_at_a_time_only():
    pair = a_pair()
    pair = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, depends_on_load=True)))
    verdict = judged((KINDS, answered(KINDS, ways=WAYS["drafting is off for requests with a grammar"])), pair=pair)
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "0 answers" in verdict.headline


def test_too_few_answers_decide_nothing():
    few = Workload(name="few", version=1, requests=requests(2))
    assert judged((few, answered(few))).outcome is Outcome.NOT_DECIDED


def test_a_kind_counts_as_compared_only_if_the_alarm_of_the_whole_run_would_have_named_it():
    """Sixteen draft positions are tested beside it, so that four answers without a draft among 23 are no alarm."""
    long_drafts = ((1, *(17,) * 8, 1), (16,) * 9)
    plain, bare = (Workload(name=name, version=1, requests=requests(count, **body)) for name, count, body in _FEW_WITH_LOGPROBS)
    assert judged((plain, answered(plain, long_drafts)), (bare, answered(bare, OFF))).outcome is not Outcome.FAIL
    healthy = judged((plain, answered(plain, long_drafts)), (bare, answered(bare, long_drafts)))
    assert healthy.outcome is Outcome.NOT_DECIDED
    more = Workload(name="bare", version=1, requests=requests(12, logprobs=True))
    assert judged((plain, answered(plain, long_drafts)), (more, answered(more, OFF))).outcome is Outcome.FAIL
    assert judged((plain, answered(plain, long_drafts)), (more, answered(more, long_drafts))).figures["kinds"] == 1.0


_FEW_WITH_LOGPROBS = (("plain", 19, {}), ("bare", 4, {"logprobs": True}))


def test_the_baseline_drafts_nothing():
    part = a_part(KINDS, answered(KINDS), answered(KINDS), answered(KINDS), family="speed")
    assert judge_drafting(a_run(part).as_control()).outcome is Outcome.PASS


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("kind", [DraftKind.MODEL, DraftKind.NGRAM])
def test_chance_raises_no_alarm(kind):
    """Answers without an accepted draft fall on any kind at one rate, 20 %, which is the worst that an alarm could take for a finding."""
    random.seed(7)
    alarms = 0
    for _ in range(60):
        answers = [
            replace(each, choices=(replace(each.choice, windows=DEAD[0], drafted=DEAD[1]),)) if random.random() < 0.2 else each
            for each in answered(KINDS)
        ]
        alarms += judged((KINDS, answers), pair=a_pair(kind), alpha=5e-3).outcome is Outcome.FAIL
    assert alarms == 0
