"""Growing context: drafts that end at a length are found in the answers that grow past it, and in no others."""

from __future__ import annotations

import random

import pytest

from pytest_specdec.judge.drafting.findings import compare_contexts
from pytest_specdec.judge.drafting.traffic import drafted_answers
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import answer, requests

BEFORE = (2,) * 8
"""From 49 tokens on, so that the eighth step begins at 63 tokens of context."""


def found(after, drafted_after=3, count=20, body=None, before=BEFORE):
    workload = Workload(name="plain", version=1, requests=requests(count, **(body or {})))
    by_request = after if isinstance(after, list) else [after] * count
    said = []
    for request, each in zip(workload.requests, by_request, strict=True):
        windows, drafted = (1, *before, *each, 1), (3,) * len(before) + (drafted_after,) * len(each) + (3,)
        usage = Usage(prompt_tokens=48, completion_tokens=sum(windows))
        said.append(answer(request.id, range(sum(windows)), finish="length", windows=windows, drafted=drafted, usage=usage))
    run = a_run(a_part(workload, said, said, family="speed"))
    return {each.name: each for each in compare_contexts(drafted_answers(run))}


def test_drafting_that_ends_with_a_length_is_named_by_it():
    off = found((1,) * 6, drafted_after=0)["drafting ends beyond 64 tokens of context"]
    assert (off.bad, off.is_striking) == (20, True)
    assert off.p_value == off.least_p == pytest.approx(0.5**20)
    assert off.headline == "drafting ends beyond 64 tokens of context: in 20 of 20 answers that grow past them, in 0 up to there"
    assert off.cell == "drafting ends beyond 64"
    assert off.first == "plain/chat-00"


def test_drafts_of_which_none_is_accepted_beyond_a_length_are_named_by_it():
    by_name = found((1,) * 6)
    assert by_name["no draft is accepted beyond 64 tokens of context"].is_striking
    assert not by_name["drafting ends beyond 64 tokens of context"].is_striking


def test_drafts_that_go_on_are_no_finding():
    assert not any(each.is_striking for each in found((2,) * 6).values())
    assert found((2,) * 6)["drafting ends beyond 64 tokens of context"].p_value == 1.0


def test_answers_that_accepted_nothing_before_either_show_nothing():
    assert not found((1,) * 6, before=(1,) * 16)["no draft is accepted beyond 64 tokens of context"].is_striking


@pytest.mark.parametrize("why", [{"after": (1,) * 3}, {"after": (1,) * 6, "body": {"response_format": {"type": "json_object"}}}])
def test_too_few_steps_and_grammars_are_not_asked(why):
    assert found(**why) == {}


@pytest.mark.statistics(quick=True)
def test_chance_raises_no_alarm():
    """Every answer goes without an accepted draft on either side at one rate, 30 %."""
    random.seed(5)
    for _ in range(200):
        after = [(1,) * 6 if random.random() < 0.3 else (2,) * 6 for _ in range(20)]
        assert not any(each.is_striking and each.p_value <= 0.05 for each in found(after).values())
