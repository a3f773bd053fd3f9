"""Under concurrency: a drafter that falls behind beside other requests is named; chance, a shared text and other words name none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.drafting.findings import compare_loads
from pytest_specdec.judge.drafting.traffic import drafted_answers
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import SPECULATING, a_pair, answer, requests

LONG, SHORT = (1, *(4, 2) * 20, 1), (1, *(3, 2) * 20, 1)
"""Windows of 3 and of 2.5 tokens on average."""


def part(name, windows, concurrency, *, asked=None, pair=None, counters=None, reported=True):
    workload = Workload(name=name, version=1, requests=asked or requests(12), concurrency=concurrency)
    said = [
        answer(request.id, range(24), finish="length", windows=each, drafted=(3,) * (len(each) - 1) if each and reported else None)
        for request, each in zip(workload.requests, windows, strict=True)
    ]
    if counters:
        said = [replace(each, counters=counters) for each in said]
    return a_part(workload, said, said, family="speed", pair=pair, counters=SPECULATING)


def judged(*parts, alpha=5e-4):
    return speed.judge(a_run(*parts, alpha=alpha))


def jittered(windows, seed, spread):
    rng = random.Random(seed)
    return [tuple(windows[:1]) + tuple(windows[1 + rng.randrange(spread) :]) for _ in range(12)]


def test_less_accepted_in_company_is_named_with_both_lengths():
    verdict = judged(part("alone", [LONG] * 12, 1), part("crowd", [SHORT] * 12, 8))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the drafter falls behind with more than 4 requests in flight")
    assert "2.50 tokens per step, 3.00 alone (-17% over 12 prompts)" in verdict.headline
    assert verdict.short[1].endswith("Student's paired t over prompts, beyond 3%")
    assert verdict.cell == "-17% with more than 4 requests"


@pytest.mark.parametrize("alone, crowd", [
    ([LONG] * 12, [LONG] * 12),
    (jittered(LONG, 1, 9), jittered(LONG, 2, 9)),
    ([LONG] * 12, [SHORT] + [LONG] * 11),
])  # fmt: skip
def test_as_much_and_a_single_prompt_are_no_finding(alone, crowd):
    assert judged(part("alone", alone, 1), part("crowd", crowd, 8)).outcome is Outcome.PASS


def test_less_accepted_alone_than_in_company_is_named_too():
    verdict = judged(part("alone", [SHORT] * 12, 1), part("crowd", [LONG] * 12, 8))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the drafter falls behind with no other request in flight")
    assert "2.50 tokens per step, 3.00 under concurrency" in verdict.headline


def test_other_words_are_not_compared():
    other = requests(12, max_tokens=96)
    assert judged(part("alone", [LONG] * 12, 1), part("crowd", [SHORT] * 12, 8, asked=other)).outcome is Outcome.PASS


def test_steps_that_only_the_chunks_of_a_stream_show_are_not_compared():
    """Under load several of them come in one, which makes a step look longer than it was."""
    run = a_run(part("alone", [SHORT] * 12, 1, reported=False), part("crowd", [LONG] * 12, 8, reported=False))
    assert compare_loads(drafted_answers(run)) == []


def test_few_prompts_are_not_compared():
    few = requests(7)
    run = a_run(part("alone", [LONG] * 7, 1, asked=few), part("crowd", [SHORT] * 7, 8, asked=few))
    assert compare_loads(drafted_answers(run)) == []


def test_what_prompt_lookup_finds_depends_on_what_others_asked():
    pair = a_pair(DraftKind.NGRAM)
    assert judged(part("alone", [LONG] * 12, 1, pair=pair), part("crowd", [SHORT] * 12, 8, pair=pair)).outcome is not Outcome.FAIL


def test_servers_that_count_by_answer_are_compared_too():
    many, few = (SpecCounters(drafts=10, draft_tokens=30, accepted_tokens=accepted) for accepted in (20, 12))
    unknown = [None] * 12
    verdict = judged(part("alone", unknown, 1, counters=many), part("crowd", unknown, 32, counters=few))
    assert verdict.names == "the drafter falls behind with more than 16 requests in flight"


def test_a_kind_of_traffic_without_drafts_says_more_than_that_less_is_accepted():
    dead = [(1,) * 24] * 12
    verdict = judged(part("alone", [LONG] * 12, 1), part("crowd", dead, 8))
    assert verdict.names == "no draft is accepted for requests with more than 4 in flight"


def lengths(rng, count, change):
    """Windows of prompts that differ from each other: alone, and with each chance smaller by ``change``."""
    rates = [rng.betavariate(7, 3) for _ in range(count)]
    return [[(1, *(step(rng, rate * part) for _ in range(12)), 1) for rate in rates] for part in (1.0, 1.0 + change)]


def step(rng, rate):
    return 1 + sum(rng.random() < rate for _ in range(3))


@pytest.mark.parametrize("change, least, most", [(0.0, 0, 1), (-0.5, 38, 40)])
def test_false_alarms_are_rare_and_a_drafter_that_loses_half_is_found(change, least, most):
    """The worst case: the drafts of one prompt have nothing in common alone and under concurrency but their chances."""
    rng, found = random.Random(7), 0
    for _ in range(40):
        alone, crowd = lengths(rng, 12, change)
        found += judged(part("alone", alone, 1), part("crowd", crowd, 8)).outcome is Outcome.FAIL
    assert least <= found <= most
