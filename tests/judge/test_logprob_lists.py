"""Lists of most probable tokens: each rule of its own, and none that the baseline breaks too."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.judge import logprobs
from pytest_specdec.judge.logprob_lists import check_lists
from pytest_specdec.model.transcript import ListedTokens
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import a_workload, answer, captured

VALUES = tuple(math.log(p) for p in (0.5, 0.3, 0.6, 0.2, 0.7, 0.45))
TOKENS = tuple(range(10, 16))


def listed(own, *, names=("own", "b"), values=None):
    return ListedTokens(token="own", tokens=names, logprobs=(own, own - 1.0) if values is None else values)


def answers(values=VALUES, lists=None, count=4, tokens=TOKENS):
    lists = [listed(value) for value in values or ()] if lists is None else lists
    return [answer(f"chat-{i:02}", tokens, logprobs=values, listed=tuple(lists)) for i in range(count)]


def the_captured(mine, theirs=None, *, route=Route.CHAT, top=2, **fields):
    asked = {"logprobs": True, "top_logprobs": top} if route is Route.CHAT else {"logprobs": top}
    body = {"temperature": 0, "max_tokens": 64, **asked}
    workload = a_workload([Request(id=f"chat-{i:02}", route=route, body=body) for i in range(4)], scored=False)
    theirs = answers() if theirs is None else theirs
    return captured("logprobs", mine, theirs, theirs, workload=workload, **fields)


def name(mine, theirs=None, **fields):
    verdict = check_lists(the_captured(mine, theirs, **fields))
    return verdict.names if verdict else ""


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_lists_as_asked_for_are_right(route):
    assert name(answers(), route=route) == ""
    assert logprobs.judge(the_captured(answers(), route=route)).outcome is Outcome.PASS


SHORT = [listed(value, names=("own",), values=(value,)) for value in VALUES]
BACKWARDS = [listed(value, names=("b", "own"), values=(value - 1.0, value)) for value in VALUES]
ELSEWHERE = [listed(value, names=("b", "c"), values=(value - 1.0, value - 2.0)) for value in VALUES]
OTHER_VALUE = [listed(value, values=(value - 0.5, value - 1.0)) for value in VALUES]
TOO_MUCH = [listed(value, names=("own", "b"), values=(value, value)) for value in VALUES]
ABOVE = [listed(value, names=("b", "own"), values=(800.0, value)) for value in VALUES]
FLAWS = [
    (answers(None), "log-probabilities are missing"),
    (answers(VALUES[:4]), "log-probabilities are missing for some tokens"),
    (answers((0.0,) * 6), "reported log-probabilities are zero"),
    (answers((-1.0,) * 6), "reported log-probabilities are one constant"),
    (answers(lists=SHORT), "fewer most probable tokens are listed than asked for"),
    (answers(lists=SHORT[:2]), "fewer most probable tokens are listed than asked for"),
    (answers(lists=BACKWARDS), "the most probable tokens are listed out of order"),
    (answers(lists=ELSEWHERE), "the emitted token is missing from the most probable ones or listed with another value"),
    (answers(lists=OTHER_VALUE), "the emitted token is missing from the most probable ones or listed with another value"),
    (answers(lists=ABOVE), "reported log-probabilities are above 0"),
    (answers(lists=TOO_MUCH), "listed probabilities add up to more than 1"),
]


@pytest.mark.parametrize("mine, flaw", FLAWS)
def test_each_rule_names_its_breach_and_none_is_a_fault_that_the_baseline_shows(mine, flaw):
    assert name(mine) == flaw
    assert logprobs.judge(the_captured(mine)).outcome is Outcome.FAIL
    assert name(mine, mine) == ""


def test_completions_may_list_the_emitted_token_first_whatever_its_rank():
    first = [listed(value, names=("own", "b", "c"), values=(value, -0.4, -3.0)) for value in (-2.0,) * 6]
    values = (-2.0, -2.01, -2.0, -2.0, -2.0, -2.0)
    same = [replace(one, logprobs=(value, -0.4, -3.0)) for one, value in zip(first, values, strict=True)]
    assert name(answers(values, same, count=2), route=Route.COMPLETIONS) == ""
    assert name(answers(values, same, count=2), route=Route.CHAT) == "the most probable tokens are listed out of order"


def test_requests_without_log_probabilities_and_answers_without_ids_are_let_be():
    plain = [replace(each, choices=(replace(each.choice, logprobs=None, listed=None),)) for each in answers()]
    one = the_captured(plain)
    silent = replace(
        one, workload=replace(one.workload, requests=tuple(replace(r, body={"temperature": 0}) for r in one.workload.requests))
    )
    assert check_lists(silent) is None
    assert name([replace(each, choices=(replace(each.choice, token_ids=()),)) for each in answers()]) == ""


def test_without_a_control_and_as_the_control_the_baseline_alone_excuses():
    assert check_lists(replace(the_captured(answers(lists=BACKWARDS)), control=None)).outcome is Outcome.FAIL
    assert check_lists(the_captured(answers(lists=BACKWARDS)).as_control()) is None


def test_texts_of_certain_tokens_are_no_constant_where_half_the_baselines_values_are_the_same():
    """A value of 11 in 20 tokens here, 9 in 20 there: which side of half they fall on is chance."""
    tokens = tuple(range(100, 120))

    def given(zeros):
        return answers((0.0,) * zeros + tuple(-0.5 - 0.01 * i for i in range(20 - zeros)), lists=[], tokens=tokens)

    assert name(given(11), given(9), top=0) == ""
    assert name(given(11), given(8), top=0) == "reported log-probabilities are zero"
