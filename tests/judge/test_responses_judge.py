"""The judge of the Responses API: broken streams, lost parts, and answers unlike the chat's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import responses
from pytest_specdec.judge.response_rules import find_loss
from pytest_specdec.model.response_object import OutputItem, ResponseObject, StreamEvent
from pytest_specdec.model.transcript import Choice, ToolCall, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Route
from pytest_specdec.prompts.responses import conversation_of, pairs
from tests.judge.captured_values import answer, captured

WORKLOAD = pairs()
REQUESTS = WORKLOAD.by_id
TEXT = "one, two, three, four, five, six"
WEATHER = '{"city": "Köln", "unit": "C"}'
CALLS = {
    "calls": ("get_weather", WEATHER),
    "named": ("set_light", '{"on": true, "dim": 20, "room": "hall"}'),
    "one-call": ("get_weather", WEATHER),
}


def healthy(**texts):
    """Every conversation answered alike in its four forms; ``texts`` has other texts by id."""
    return [_answer(request, texts.get(request.id, TEXT)) for request in WORKLOAD.requests]


def _answer(request, text):
    name = conversation_of(request.id)
    calls = (
        tuple(ToolCall(id=request.id, name=tool, arguments=arguments) for tool, arguments in [CALLS[name]] if name in CALLS)
        if name in CALLS
        else ()
    )
    is_cut = name == "limit"
    finish = "length" if is_cut else "tool_calls" if calls else "stop"
    usage = Usage(prompt_tokens=9, completion_tokens=17)
    choice = Choice(text="" if calls else text, tool_calls=calls, finish_reason=finish)
    one = replace(answer(request.id, usage=usage), choices=(choice,))
    return one if request.route is Route.CHAT else replace(one, response=_response(choice, is_cut, streamed=request.stream))


def _response(choice, is_cut, *, streamed):
    item = OutputItem(type="message", text=choice.text)
    name = "output_text"
    if choice.tool_calls:
        (call,) = choice.tool_calls
        item, name = OutputItem(type="function_call", text=call.arguments, name=call.name, call_id=call.id), "function_call_arguments"
    status = "incomplete" if is_cut else "completed"
    events = (
        StreamEvent(type="created"),
        StreamEvent(type="output_item.added", output_index=0, item=replace(item, text="")),
        StreamEvent(type=f"{name}.delta", output_index=0, text=item.text, count=5),
        StreamEvent(type=f"{name}.done", output_index=0, text=item.text),
        StreamEvent(type="output_item.done", output_index=0, item=item),
        StreamEvent(type=status),
    )
    return ResponseObject(status=status, reason="max_output_tokens" if is_cut else "", items=(item,), events=events if streamed else ())


def changed(answers, request_id, change):
    return [change(one) if one.request_id == request_id else one for one in answers]


def with_events(change):
    return lambda one: replace(one, response=replace(one.response, events=tuple(change(list(one.response.events)))))


def with_response(**fields):
    return lambda one: replace(one, response=replace(one.response, **fields))


def with_choice(**fields):
    return lambda one: replace(one, choices=(replace(one.choice, **fields),))


def with_usage(tokens):
    return lambda one: replace(one, usage=replace(one.usage, completion_tokens=tokens))


def judged(answers, baseline=None, control=None):
    given = captured("responses", answers, baseline or healthy(), control or healthy(), workload=WORKLOAD, alpha=1e-5)
    return responses.judge(given)


def test_answers_like_the_chats_pass_and_say_what_was_compared():
    verdict = judged(healthy())
    assert verdict.outcome is Outcome.PASS, verdict
    assert verdict.figures == {"answers": 22.0, "compared_answers": 22.0, "unlike_answers": 0.0}


STREAM = "plain/responses-streamed"
BROKEN = [
    pytest.param(with_events(lambda events: events[:-1]), "a stream ends without a terminal event", id="no last event"),
    pytest.param(with_events(lambda events: []), "a stream comes without events", id="no events"),
    pytest.param(with_response(misnumbered=2), "sequence numbers do not rise", id="numbers"),
    pytest.param(with_events(lambda events: events[1:]), "events are out of order", id="no first event"),
    pytest.param(with_events(lambda events: [events[0], *events[2:]]), "events are out of order", id="an item is not added"),
    pytest.param(with_events(lambda events: [*events[:2], *events[1:]]), "events are out of order", id="an item is added twice"),
    pytest.param(
        with_events(lambda events: [*events[:-2], events[-1], events[-2]]),
        "a stream ends without a terminal event",
        id="an event after the end",
    ),
    pytest.param(with_events(lambda events: [*events[:3], *events[4:]]), "a done event is missing", id="no done"),
    pytest.param(
        with_events(lambda events: [*events[:2], replace(events[2], text="one"), *events[3:]]),
        "a done event says something else than its deltas",
        id="another done",
    ),
    pytest.param(with_response(items=()), "the final response says something else than its stream", id="no output"),
    pytest.param(
        with_response(items=(OutputItem(type="message", text="one"),)),
        "the final response says something else than its stream",
        id="another output",
    ),
    pytest.param(
        with_events(lambda events: [*events[:-1], replace(events[-1], type="incomplete")]),
        "the terminal event is of another status",
        id="another last event",
    ),
    pytest.param(with_response(status="incomplete"), "the terminal event is of another status", id="another status"),
    pytest.param(with_usage(33), "usage counts more tokens than were allowed", id="more than allowed"),
    pytest.param(lambda one: replace(one, usage=None), "the usage is missing", id="no usage"),
    pytest.param(with_choice(text="one, two, five, six"), "a part of the text is lost", id="a hole"),
    pytest.param(with_choice(text="one, two, three, four"), "the end of the text is lost", id="a cut text"),
]


@pytest.mark.parametrize("change, words", BROKEN)
def test_a_broken_answer_fails_at_once_unless_the_baseline_breaks_it_too(change, words):
    broken = changed(healthy(), STREAM, change)
    verdict = judged(broken)
    assert verdict.outcome is Outcome.FAIL, verdict
    assert words in verdict.names
    assert verdict.example.request_id == STREAM
    assert judged(broken, baseline=broken).outcome is Outcome.PASS
    assert judged(broken, control=broken).outcome is Outcome.PASS


@pytest.mark.parametrize("change, words", [
    (with_choice(tool_calls=()), "a required tool call does not come"),
    (with_choice(tool_calls=(ToolCall(id="x", name="get_weather", arguments=""),)), "the arguments of a tool call are"),
    (with_choice(tool_calls=(ToolCall(id="x", name="get_weather", arguments='{"city": "Köln"}'),)), "do not fit"),
])  # fmt: skip
def test_a_call_that_is_lost_or_cut_fails_at_once(change, words):
    verdict = judged(changed(healthy(), "one-call/responses-streamed", change))
    assert verdict.outcome is Outcome.FAIL, verdict
    assert any(words in line for line in verdict.evidence)


def test_a_cut_answer_that_is_called_complete_fails_by_the_chats_finish_reason():
    complete = {"finish_reason": "stop"}
    answers = changed(changed(healthy(), "limit/responses", with_choice(**complete)), "limit/responses", with_response(status="completed"))
    assert judged(answers).names == "the status is wrong at the token limit"
    without = changed(healthy(), "limit/responses", with_response(reason=""))
    assert judged(without).names == "an incomplete response gives no reason"


def test_texts_that_noise_may_lead_apart_are_shown_and_decide_nothing():
    every = healthy(**{name: f"{name[:3]} another thing" for name, request in REQUESTS.items() if request.route is Route.RESPONSES})
    verdict = judged(every)
    assert verdict.outcome is Outcome.PASS, verdict
    assert verdict.figures["unlike_answers"] == 16.0
    assert "6 of 22 are the chat's" in verdict.headline


@pytest.mark.parametrize("text", ["one, two, three, four, five, six ", "one,two, three, four, five, six", "one, two, three, four, five"])
def test_white_space_and_a_hole_of_a_word_are_no_loss(text):
    assert judged(changed(healthy(), STREAM, with_choice(text=text))).outcome is Outcome.PASS


@pytest.mark.parametrize("name", ["plain", "one-call"])
def test_an_answer_that_runs_into_white_space_up_to_its_limit_has_lost_nothing(name):
    def short(one):
        calls = tuple(replace(call, arguments=WEATHER[:16] + " \n" * 8) for call in one.choice.tool_calls)
        return with_choice(text="" if calls else "one, two, three, \n\n\n", tool_calls=calls, finish_reason="length")(one)

    answers = [
        replace(one, choices=(replace(one.choice, finish_reason="length"),)) if conversation_of(one.request_id) == name else one
        for one in healthy()
    ]
    streamed = f"{name}/responses-streamed"
    spaced = changed(answers, streamed, short)
    one, other = (next(each for each in spaced if each.request_id == id_) for id_ in (streamed, f"{name}/responses"))
    assert find_loss(one, other) is None
    assert find_loss(other, one) is None
    assert find_loss(with_choice(finish_reason="stop")(one), other), "nothing but its limit ends it in white space"
    cut = with_choice(text=one.choice.text.strip(), tool_calls=tuple(replace(c, arguments=WEATHER[:16]) for c in one.choice.tool_calls))
    assert find_loss(cut(one), other)


def test_token_counts_of_few_answers_are_said_to_tell_nothing():
    def few(answers):
        kept = list(dict.fromkeys(conversation_of(one.request_id) for one in answers))[:2]
        return [one for one in answers if conversation_of(one.request_id) in kept]

    def recount(answers):
        return [with_usage(16)(one) if REQUESTS[one.request_id].route is Route.RESPONSES else one for one in answers]

    wrong, right = judged(recount(few(healthy())), few(healthy()), few(healthy())), judged(few(healthy()), few(healthy()), few(healthy()))
    trials = int(right.figures["compared_answers"])
    assert (wrong.outcome, right.outcome) == (Outcome.PASS, Outcome.PASS)
    assert f"token counts: {trials} of {trials} unlike the chat's, too few answers to tell" in wrong.evidence
    assert f"token counts: 0 of {trials} unlike the chat's, too few answers to tell" in right.evidence
    assert "a rate of broken protocol above" in right.rules_out
    assert not any("token counts" in line for line in judged(healthy()).evidence)


def test_requests_that_the_baseline_answers_alone_fail():
    verdict = judged(changed(healthy(), STREAM, lambda one: replace(one, status=400, error="no such parameter", choices=(), response=None)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, responses.REFUSED)
    assert verdict.headline.endswith(f'1 with 400; first: request {STREAM}: "no such parameter"')


def test_token_counts_of_the_same_text_are_counted_too():
    def recount(answers):
        return [with_usage(16)(one) if REQUESTS[one.request_id].route is Route.RESPONSES else one for one in answers]

    assert judged(recount(healthy())).names == "usage counts other tokens than the chat's"
    assert judged(recount(healthy()), baseline=recount(healthy())).outcome is Outcome.PASS


def test_prompts_that_the_server_presents_in_another_way_are_not_compared():
    def moved(answers, words):
        longer = [(one, REQUESTS[one.request_id].route is Route.RESPONSES) for one in answers]
        return [replace(one, usage=replace(one.usage, prompt_tokens=12)) if other else one for one, other in longer] if words else answers

    other = {name: "quite another thing" for name, request in REQUESTS.items() if request.route is Route.RESPONSES}
    verdict = judged(moved(healthy(**other), words=True), baseline=moved(healthy(**other), words=True))
    assert verdict.outcome is Outcome.PASS, verdict
    assert verdict.figures["compared_answers"] == 0.0
    assert "22 answers not compared" in verdict.evidence[0]


def refused(answers, status=404):
    no_route = {name for name, request in REQUESTS.items() if request.route is Route.RESPONSES}
    return [answer(one.request_id, status=status, error="Not Found") if one.request_id in no_route else one for one in answers]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_route_that_no_server_has_is_refused(status):
    verdict = judged(refused(healthy(), status), refused(healthy(), status), refused(healthy(), status))
    assert verdict.outcome is Outcome.REFUSED
    assert verdict.headline.startswith(f"{responses.NOT_SERVED}: {status} to all 22 requests")


@pytest.mark.parametrize("status", [400, 404])
def test_a_whole_route_that_one_server_refuses_is_asked_past_its_proxy(status):
    given = captured("responses", refused(healthy(), status), healthy(), healthy(), workload=WORKLOAD, alpha=1e-5)
    verdict = responses.judge(replace(given, speculative=replace(given.speculative, silent_routes=(Route.RESPONSES,))))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.settle.startswith("ask the server itself, past any proxy: if it refuses too, draft-k3 does not serve this route")
    assert "--specdec-resume" in verdict.settle


def test_a_route_that_only_the_baseline_has_never_passes():
    assert judged(refused(healthy())).outcome is not Outcome.PASS
