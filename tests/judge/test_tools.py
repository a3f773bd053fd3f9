"""The judge of tools: same tokens, same calls; what the baseline does itself is never called a fault."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import tools
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.transcript import ToolCall, Usage
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.prompts.tools import twins
from tests.judge.captured_values import answer, captured

WORKLOAD = replace(twins(), requests=twins().requests[:8], take={})
GOOD = '{"city": "Köln", "unit": "C"}'
ORDER = '{"customer": {"name": "Ann", "address": {"street": "a", "town": "Malmö"}}, "lines": [{"sku": "a-1", "amount": 2}]}'
FIND = '{"quoted": "a \\"quoted\\" word", "lines": "one\\ntwo\\tback\\\\slash", "face": "smile 😀"}'
CALLED = {"parallel": [("get_weather", GOOD)] * 2, "named-nested": [("place_order", ORDER)], "escapes": [("find_text", FIND)]}


def healthy(*, ids=True, shift=0):
    """Every case answered as it should be, streamed and whole from the same tokens."""
    return [_answer(request.id, ids=ids, shift=shift) for request in WORKLOAD.requests]


def _answer(request_id, *, ids, shift):
    case = request_id.removesuffix("-streamed")
    calls = tuple(
        ToolCall(index=i, id=f"{request_id}-{i}", name=name, arguments=arguments)
        for i, (name, arguments) in enumerate(CALLED.get(case, ()))
    )
    tokens = [10 + shift + len(case), 11, 12]
    return answer(
        request_id,
        tokens if ids else (),
        text="" if calls else "Rhine, Köln",
        finish="tool_calls" if calls else "stop",
        usage=Usage(prompt_tokens=3, completion_tokens=3, reasoning_tokens=0),
        tool_calls=calls,
    )


def changed(answers, request_id, **fields):
    return [
        replace(one, choices=(replace(one.choice, **fields),)) if one.request_id == request_id else one for one in answers
    ]  # fmt: skip


def recalled(answers, request_id, **fields):
    calls = next(one.choice.tool_calls for one in answers if one.request_id == request_id)
    return changed(answers, request_id, tool_calls=(replace(calls[0], **fields), *calls[1:]))


def judged(mine, baseline=None, control=None, **fields):
    return tools.judge(captured("tools", mine, baseline or healthy(), control or healthy(), workload=WORKLOAD, alpha=1e-3, **fields))


def test_the_same_calls_of_the_same_tokens_pass_and_say_what_was_compared():
    verdict = judged(healthy())
    assert verdict.outcome is Outcome.PASS, verdict
    assert verdict.figures == {"answers": 8, "answers_with_calls": 6, "tool_calls": 8, "compared_answers": 8, "twins": 4}


def test_other_tokens_are_judged_alone():
    assert judged(healthy(shift=50)).outcome is Outcome.PASS
    verdict = judged(recalled(recalled(healthy(shift=50), "escapes-streamed", arguments="{"), "escapes", arguments="{"))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the arguments of a tool call are not valid JSON")
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id="escapes")


def test_a_stream_of_other_tokens_than_the_baselines_is_held_beside_the_arms_own_whole_answer():
    verdict = judged(recalled(healthy(shift=50), "escapes-streamed", arguments=FIND[:9]))
    assert (verdict.names, verdict.figures["wrong_answers"]) == ("the last tool arguments are lost", 1)


@pytest.mark.parametrize("shift", [0, 50])
def test_streams_that_every_arm_writes_otherwise_than_whole_answers_are_no_fault_of_the_variant(shift):
    """The engine writes the arguments of whole answers anew, and streams the model's own text."""
    written = '{"city":"K\\u00f6ln","unit":"C"}'
    ours, theirs = (recalled(healthy(shift=by), "parallel-streamed", arguments=written) for by in (shift, 0))
    assert judged(ours, theirs, theirs).outcome is Outcome.PASS
    lost = recalled(ours, "escapes-streamed", arguments=FIND[:9])
    assert judged(lost, theirs, theirs).names == "the last tool arguments are lost"


@pytest.mark.parametrize("fields, name", [
    ({"arguments": GOOD[9:]}, "the first tool arguments are lost in the stream"),
    ({"name": "get_weatherget_weather"}, "the name of a tool call is sent more than once"),
    ({"id": ""}, "a tool call has no id"),
    ({"id": "parallel-streamed-1"}, "two tool calls have one id"),
])  # fmt: skip
def test_a_stream_that_loses_or_doubles_something_fails_by_name(fields, name):
    verdict = judged(recalled(healthy(), "parallel-streamed", **fields))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert verdict.figures["wrong_streamed"] == 1


@pytest.mark.parametrize("request_id, fields, name", [
    ("parallel-streamed", {"finish_reason": "stop"}, "the finish_reason of a tool call is wrong"),
    ("parallel", {"tool_calls": ()}, "a tool call is lost"),
    ("plain-streamed", {"text": "Rhine"}, "the end of the text is lost"),
    ("plain", {"reasoning": "Rhine, ", "text": "Köln"}, "the answer is taken for reasoning"),
])  # fmt: skip
def test_an_answer_that_says_something_else_of_its_tokens_fails_by_name(request_id, fields, name):
    verdict = judged(changed(healthy(), request_id, **fields))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)


def test_reasoning_tokens_of_the_same_tokens_are_counted_alike():
    mine = [replace(one, usage=Usage(prompt_tokens=3, completion_tokens=3, reasoning_tokens=3)) for one in healthy()]
    assert judged(mine).names == "the reasoning tokens are counted wrongly"


def test_what_the_baseline_does_itself_is_left_out_and_said():
    wrong = recalled(healthy(), "parallel-streamed", id="")
    verdict = judged(wrong, baseline=recalled(healthy(), "escapes-streamed", id=""))
    assert verdict.outcome is Outcome.PASS
    assert "left out, as the baseline does it too: a tool call has no id" in verdict.headline


def test_what_a_model_may_write_is_no_failure_without_a_grammar():
    ignoring = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    wrong = recalled(recalled(healthy(shift=50), "parallel", arguments="{"), "parallel-streamed", arguments="{")
    assert judged(wrong, capabilities=ignoring).outcome is Outcome.PASS
    assert judged(wrong).outcome is Outcome.FAIL


def test_wrong_calls_that_are_more_often_wrong_than_the_baselines_fail_without_a_grammar_too():
    ignoring = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    wrong = healthy(shift=50)
    for request in WORKLOAD.requests:
        if not request.id.startswith("plain"):
            wrong = recalled(wrong, request.id, arguments="{")
    verdict = tools.judge(captured("tools", wrong, healthy(), healthy(), workload=WORKLOAD, alpha=0.05, capabilities=ignoring))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the arguments of a tool call are not valid JSON")


def test_wrong_answers_at_the_printed_rate_fail():
    """A model may commit these faults, so that 4 of 6 are needed beside none of the baseline's; one alone was said to be enough."""
    rng = np.random.default_rng(11)
    rate = float(re.search(r"and above ([\d.]+)% of others", judged_wrong([False] * 6, alpha=0.05).rules_out)[1]) / 100
    assert sum(judged_wrong(rng.random(6) < rate, alpha=0.05).outcome is Outcome.FAIL for _ in range(400)) >= 388


def test_answers_too_few_for_wrong_ones_to_be_too_many_are_untested():
    assert judged_wrong([True] * 6, alpha=1e-6).rules_out.endswith("; untested: others, of which even 6 would not be too many")


def judged_wrong(wrong, *, alpha):
    """The verdict on calls of tokens of their own, of which some are wrong as a model may be where no grammar is enforced."""
    workload = replace(WORKLOAD, requests=tuple(request for request in WORKLOAD.requests if not request.id.startswith("plain")))
    peers = [one for one in healthy() if not one.request_id.startswith("plain")]
    answers = peers
    for place, (request, is_wrong) in enumerate(zip(workload.requests, wrong, strict=True)):
        answers = changed(answers, request.id, token_ids=(100 + place, 11, 12))
        answers = recalled(answers, request.id, arguments="{") if is_wrong else answers
    ignoring = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    return tools.judge(captured("tools", answers, peers, peers, workload=workload, alpha=alpha, capabilities=ignoring))


def test_a_fault_that_the_baseline_has_too_is_said_to_be_its_own_as_well():
    """Only how often it comes tells the arms apart, so that the headline has the counts of both."""
    ignoring = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    wrong = healthy(shift=50)
    for request in WORKLOAD.requests:
        if not request.id.startswith("plain"):
            wrong = recalled(wrong, request.id, arguments="{")
    baseline, control = (recalled(healthy(), "escapes", arguments="{") for _ in range(2))
    verdict = tools.judge(captured("tools", wrong, baseline, control, workload=WORKLOAD, alpha=0.2, capabilities=ignoring))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the arguments of a tool call are not valid JSON")
    assert "in 6 of 8 answers, baseline 1 of 8, control 1 of 8" in verdict.headline


@pytest.mark.parametrize("arguments, outcome", [
    ('{"text": "%s", "tags": ["home"]}' % ("x" * 63), Outcome.PASS), ('{"text": 7, "tags": ["home"]}', Outcome.FAIL),
])  # fmt: skip
def test_a_rule_that_engines_seldom_enforce_is_no_proof(arguments, outcome):
    workload = replace(twins(), requests=tuple(one for one in twins().requests if one.id.startswith(("named-note", "plain"))), take={})

    def noted(written, first):
        call = ToolCall(index=0, id="x", name="save_note", arguments=written)
        return [
            answer(one.id, [first, 11], text="", finish="stop", tool_calls=(call,))
            if "note" in one.id else answer(one.id, [first, 11], text="Rhine", finish="stop") for one in workload.requests
        ]  # fmt: skip

    good = noted('{"text": "short", "tags": ["home"]}', 1)
    assert tools.judge(captured("tools", noted(arguments, 5), good, good, workload=workload, alpha=1e-6)).outcome is outcome


def test_streams_that_differ_in_the_baseline_too_are_counted_there():
    differing, bare = healthy(ids=False), healthy(ids=False)
    for case in CALLED:
        differing = recalled(differing, f"{case}-streamed", arguments="{}")
    differing = changed(differing, "plain-streamed", text="Rhine")
    once = recalled(bare, "escapes-streamed", arguments="{}")
    ignoring = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    verdict = tools.judge(captured("tools", differing, once, bare, workload=WORKLOAD, alpha=0.3, capabilities=ignoring))
    assert verdict.outcome is Outcome.FAIL
    assert "baseline 1 of 8, control 0 of 8" in verdict.headline


def test_without_ids_streams_that_differ_count_only_where_they_do_so_more_often():
    one = changed(healthy(ids=False), "plain-streamed", text="Rhine")
    assert judged(one, baseline=healthy(ids=False), control=healthy(ids=False)).outcome is Outcome.PASS
    every = one
    for case in CALLED:
        every = recalled(every, f"{case}-streamed", arguments="{}")
    bare = healthy(ids=False)
    ignoring = {"baseline": Capabilities(support={"json_schema": FeatureSupport.IGNORED})}
    fields = {"workload": WORKLOAD, "alpha": 0.05, "capabilities": ignoring}
    assert tools.judge(captured("tools", every, bare, bare, **fields)).outcome is Outcome.FAIL


def test_ids_that_a_stream_leaves_out_are_no_tokens_to_compare():
    mine, baseline = (
        [replace(one, choices=(replace(one.choice, token_ids=(11,)),)) if one.request_id.endswith("streamed") else one for one in healthy()]
        for _ in range(2)
    )
    verdict = judged(mine, baseline=baseline)
    assert (verdict.outcome, verdict.figures["compared_answers"]) == (Outcome.PASS, 4)


def answers_under(choice, count, *, without=(), finish="stop"):
    """Answers that call a tool, of ``count`` prompts; those of ``without`` are text of other tokens."""

    def make_answer(i):
        calls = () if i in without else (ToolCall(index=0, id="a", name="get_weather", arguments=GOOD),)
        text = {"text": "It rains.", "finish": finish} if i in without else {"finish": "tool_calls"}
        tokens = range(200, 312) if finish == "length" and i in without else (i, 7 if i in without else 8)
        return answer(f"case-{i}", tokens, tool_calls=calls, **text)

    bodies = {f"case-{i}": {**twins().requests[0].body, "tool_choice": choice, "messages": [{"content": str(i)}]} for i in range(count)}
    workload = replace(WORKLOAD, requests=tuple(Request(id=name, route=Route.CHAT, body=body) for name, body in bodies.items()))
    return workload, [make_answer(i) for i in range(count)]


def beside(choice, count, without, control=(), finish="stop", **fields):
    """The verdict on a variant that calls no tool at the prompts of ``without``; the baseline calls one at each."""
    workload, mine = answers_under(choice, count, without=without, finish=finish)
    (_, baseline), (_, other) = answers_under(choice, count), answers_under(choice, count, without=control)
    return tools.judge(captured("tools", mine, baseline, other, workload=workload, alpha=2.3e-6, **fields))


@pytest.mark.parametrize("choice, finish", [("auto", "stop"), ("required", "length")])
def test_a_server_that_calls_no_tool_where_the_baseline_does_fails(choice, finish):
    verdict = beside(choice, 20, range(20), finish=finish)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "no tool is called where the baseline calls one")
    assert verdict.headline.endswith("in 20 of 20 answers, none of the baseline's")
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id="case-0")


@pytest.mark.parametrize("control", [(), (4, 5)])
def test_a_few_answers_without_a_call_may_be_near_ties_and_are_said(control):
    verdict = beside("auto", 20, range(3), control)
    assert verdict.outcome is Outcome.PASS
    assert "; at 3 prompts no tool is called where the baseline calls one, too few to tell" in verdict.headline


def test_prompts_too_few_for_an_alarm_of_which_none_is_answered_by_a_call_are_inconclusive():
    verdict = beside("auto", 3, range(3))
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "auto: no calls")
    assert "none of 3 answers under tool_choice auto calls a tool, 6 of 6 of the baseline's do" in verdict.headline
    assert beside("auto", 2, range(2)).outcome is Outcome.PASS
    assert beside("auto", 3, range(2)).outcome is Outcome.PASS
    assert beside("auto", 4, range(4), (0, 1, 2)).outcome is Outcome.PASS, "the baseline does not repeat its calls either"


def test_a_baseline_that_calls_nothing_shows_nothing():
    silent = [replace(one, choices=(replace(one.choice, tool_calls=(), text="no", finish_reason="stop"),)) for one in healthy()]
    verdict = judged(silent, baseline=silent, control=silent)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "did not bind" in verdict.headline


def test_tools_that_are_refused_are_said_to_be():
    refused = [
        one if one.request_id.startswith("plain") else answer(one.request_id, status=400, error="no tools here") for one in healthy()
    ]  # fmt: skip
    verdict = judged(refused, baseline=refused, control=refused)
    assert verdict.outcome is Outcome.REFUSED
    assert judged([answer(one.request_id, status=400, error="no") for one in healthy()]).outcome is Outcome.REFUSED


def test_a_part_that_is_refused_is_said():
    mine = [answer(one.request_id, status=400, error="no") if "escapes" in one.request_id else one for one in healthy()]
    verdict = judged(mine, baseline=mine, control=mine)
    assert verdict.outcome is Outcome.PASS
    assert "2 requests refused" in verdict.headline


def test_the_control_is_judged_like_any_arm():
    control = recalled(healthy(), "parallel-streamed", id="")
    as_control = captured("tools", healthy(), healthy(), control, workload=WORKLOAD).as_control()
    assert tools.judge(as_control).outcome is Outcome.FAIL
