"""Draft positions: one that is never accepted is found by prompts, by windows or counters; one that is rarely accepted is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_specdec.judge.drafting.findings import compare_by_counters, compare_by_steps
from pytest_specdec.judge.drafting.traffic import drafted_answers
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import SPECULATING, answer, requests

ONE, TWO, ALL = (1, *(2,) * 10), (1, *(3,) * 10), (1, *(4,) * 10)


def positions(windows, count=20, drafted=3, body=None, counters=SPECULATING):
    """Answer every request by the same windows, or each by its own."""
    workload = Workload(name="plain", version=1, requests=requests(count, **(body or {})))
    by_request = windows if isinstance(windows, list) else [windows] * count
    said = [
        answer(request.id, range(24), finish="length", windows=each, drafted=None if drafted is None else (drafted,) * (len(each) - 1))
        for request, each in zip(workload.requests, by_request, strict=True)
    ]
    return compare_by_steps(drafted_answers(a_run(a_part(workload, said, said, family="speed", counters=counters))))


def test_positions_that_are_accepted_are_no_finding():
    assert [(each.subject, each.counts, each.bad, each.is_striking) for each in positions(ALL)] == [
        ("position 2 of the draft", "accepted in 20 of 20 prompts", 0, False),
        ("position 3 of the draft", "accepted in 20 of 20 prompts", 0, False),
    ]


def test_the_first_position_without_acceptance_is_the_one_with_chances():
    second, third = positions(ONE)
    assert (second.bad, second.is_striking) == (20, True)
    assert [second.counts, third.counts] == ["accepted in 0 of 20 prompts", "accepted in 0 of 0 prompts"]
    assert second.p_value == pytest.approx(0.5**20) == second.least_p
    assert second.name == "draft tokens after the first are never accepted"
    assert second.headline == (
        "draft tokens after the first are never accepted: position 2 in 0 of 20 prompts that accepted the one before it 8 times or more"
    )
    assert second.first == "plain/chat-00"


def test_a_later_position_is_named_by_those_before_it():
    second, third = positions(TWO)
    assert (second.is_striking, third.is_striking, third.name) == (False, True, "draft tokens after the first 2 are never accepted")


def test_a_prompt_counts_once_however_often_it_was_answered():
    workload = Workload(name="twice", version=1, requests=requests(3), passes=4)
    said = [answer(r.id, range(24), windows=ONE, drafted=(3,) * 10, pass_index=i) for i in range(4) for r in workload.requests]
    run = a_run(a_part(workload, said, said, family="speed"))
    assert compare_by_steps(drafted_answers(run))[0].counts == "accepted in 0 of 3 prompts"


@pytest.mark.parametrize("why", [{"drafted": 1}, {"drafted": None}, {"body": {"response_format": {"type": "json_object"}}}])
def test_a_position_without_known_chances_is_not_asked(why):
    assert all(each.counts.endswith(" of 0 prompts") for each in positions(ONE, **why))


def test_the_counters_of_each_workload_stand_in_for_windows():
    names = "abcdefgh"
    dead = SpecCounters(drafts=100, draft_tokens=300, accepted_tokens=60, accepted_per_position=(60, 0, 0))
    said = [answer("chat-00", range(24))]
    parts = [a_part(Workload(name=name, version=1, requests=requests(1)), said, said, family="speed", counters=dead) for name in names]
    second, third = compare_by_counters(parts)
    assert (second.bad, third.bad, second.first) == (8, 0, "a")
    few = replace(dead, draft_tokens=150)
    shorter = [replace(part, speculative=replace(part.speculative, counters=few)) for part in parts]
    assert compare_by_counters(shorter) == ()
    assert compare_by_counters([replace(part, speculative=replace(part.speculative, counters=None)) for part in parts]) == ()


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_a_position_that_every_second_prompt_accepts_raises_no_more_alarms_than_it_may(alpha):
    """The worst of the null: half of the prompts accept it in every step, the others never."""
    random.seed(11)
    runs = 400
    found = [positions([TWO if random.random() < 0.5 else ONE for _ in range(20)])[0] for _ in range(runs)]
    assert sum(each.p_value <= alpha for each in found) <= alpha * runs + 3 * (alpha * runs) ** 0.5
    assert not any(each.is_striking and each.p_value <= alpha for each in found)


@pytest.mark.statistics(quick=True)
def test_a_drafter_whose_second_token_is_accepted_once_in_ten_is_no_finding():
    random.seed(12)
    for _ in range(100):
        windows = [(1, *(3 if random.random() < 0.1 else 2 for _ in range(10))) for _ in range(20)]
        assert not positions(windows)[0].is_striking
