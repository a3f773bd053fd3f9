"""Pressure: tokens and documents of preempted requests, and preemptions that have to be counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import pressure
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, requests, score, transcript

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["n"]}}}
PLAIN = requests(6)
BOUND = tuple(replace(request, id=f"json-{request.id}") for request in requests(2, response_format=SCHEMA))
WORKLOAD = a_workload((*PLAIN, *BOUND), small_cache=True)


def answers(document='{"n": 1}', **changed):
    plain = [answer(f"chat-{i:02}", range(64 * i, 64 * i + 64), finish="length", windows=(1, *(4, 3) * 9)) for i in range(6)]
    bound = [answer(f"json-chat-{i:02}", range(900, 908), text=document, windows=(1, 3, 4)) for i in range(2)]
    counted = [replace(a, usage=Usage(prompt_tokens=9, completion_tokens=len(a.choice.token_ids))) for a in (*plain, *bound)]
    return [changed.get(a.request_id.replace("-", "_"), lambda one: one)(a) for a in counted]


def judged(mine, preemptions=5, wrong=(), **fields):
    gaps = {name: {5: 4.0} for name in wrong}
    given = {VARIANT: mine, "baseline": answers(), "control": answers()}
    scores = {
        arm: tuple(score(arm, a, gaps.get(a.request_id, ()) if arm == VARIANT else ()) for a in each if a.ok) for arm, each in given.items()
    }
    arm = transcript(VARIANT, mine, preemptions=preemptions)
    base = transcript("baseline", answers(), preemptions=3)
    return pressure.judge(captured("pressure", arm, base, answers(), workload=WORKLOAD, scores=scores, **fields))


def test_right_answers_under_counted_preemptions_pass():
    verdict = judged(answers())
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.startswith("8 requests answered, 5 preempted on the way")


@pytest.mark.parametrize("preemptions, words", [(0, "did not bind"), (None, "nothing counts preemptions")])
def test_without_preemptions_nothing_was_put_to_the_test(preemptions, words):
    verdict = judged(answers(), preemptions)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert words in verdict.headline


def test_wrong_tokens_fail_with_or_without_counted_preemptions():
    for preemptions in (5, 0, None):
        verdict = judged(answers(), preemptions, ["chat-03"])
        assert verdict.outcome is Outcome.FAIL
        assert verdict.names.startswith(pressure.WRONG_TOKENS)
    assert any(line.startswith("preempted") for line in verdict.short)


def test_tokens_that_a_grammar_chose_are_not_held_against_the_plain_distribution():
    assert judged(answers(), wrong=["json-chat-00"]).outcome is Outcome.PASS


def test_invalid_documents_fail():
    def without(one):
        return replace(one, choices=(replace(one.choice, text='{"m": 1}', token_ids=tuple(range(910, 918))),))

    assert judged(answers(json_chat_00=without)).names.startswith(pressure.WRONG_DOCUMENTS)


def test_answers_whose_tokens_the_server_counts_otherwise_fail():
    def one_more(one):
        return replace(one, usage=replace(one.usage, completion_tokens=65))

    assert judged(answers(chat_01=one_more)).names.startswith(pressure.WRONG_END)


def test_an_answer_that_never_came_fails():
    def lost(one):
        return replace(one, status=None, choices=(), error="timed out")

    verdict = judged(answers(chat_01=lost))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, pressure.UNANSWERED)
    assert verdict.example == Example(symptom=Symptom.UNANSWERED, request_id="chat-01")


def test_refused_documents_do_not_matter():
    def refused(one):
        return replace(one, status=400, choices=(), error="no grammars here")

    assert judged(answers(json_chat_00=refused, json_chat_01=refused)).outcome is Outcome.PASS


def test_the_control_needs_no_preemptions_and_every_verdict_is_told_once():
    told = []
    judged(answers(), on_verdict=told.append)
    judged(answers(), wrong=["chat-03"], on_verdict=told.append)
    assert [verdict.outcome for verdict in told] == [Outcome.PASS, Outcome.FAIL]
    arms = {arm: tuple(score(arm, a) for a in answers()) for arm in ("baseline", "control", VARIANT)}
    control = captured("pressure", answers(), answers(), answers(), workload=WORKLOAD, scores=arms).as_control()
    assert pressure.judge(control).outcome is Outcome.PASS
