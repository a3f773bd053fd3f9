"""Rules of the Responses API: for one answer by itself, and for one beside the chat's answer to the same conversation.

Token ids are no part of the API. What can be lost between a verify step and its events shows without them: a stream says its text three
times (in deltas, in done events, in the final response), and a text with a hole in it is no text that numerical noise leads to. An item is
a part of the output: a message, a call or reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.tool_rules import BY_MODEL, compare_answers, find_faults, requested_tools
from pytest_specdec.judge.verdicts import number_of, quote
from pytest_specdec.model.response_object import FUNCTION_CALL, INCOMPLETE, MESSAGE, REASONING
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.tool_rules import ToolFault
    from pytest_specdec.model.response_object import OutputItem, ResponseObject, StreamEvent
    from pytest_specdec.model.transcript import Answer, Choice
    from pytest_specdec.model.workload import Request

__all__ = ["Fault", "ResponseFault", "answer_faults", "find_loss", "is_cut", "is_unlike"]


class ResponseFault(StrEnum):
    """Faults of answers on the responses route."""

    NO_END = "a stream ends without a terminal event"
    NO_EVENTS = "a stream comes without events"
    NUMBERS = "sequence numbers do not rise"
    ORDER = "events are out of order"
    NO_DONE = "a done event is missing"
    DONE = "a done event says something else than its deltas"
    FINAL = "the final response says something else than its stream"
    TERMINAL = "the terminal event is of another status than its response"
    STATUS = "the status is wrong at the token limit"
    REASON = "an incomplete response gives no reason"
    NO_USAGE = "the usage is missing"
    OVERCOUNT = "usage counts more tokens than were allowed"
    COUNT = "usage counts other tokens than the chat's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one answer."""

    kind: ResponseFault | ToolFault
    request_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.request_id}: {self.kind.value}: {self.what}"


_TERMINAL = {"completed", "incomplete", "failed", "cancelled"}
_OPENING = "created"
_TEXTS = {
    "output_text": MESSAGE,
    "reasoning_text": REASONING,
    "reasoning_summary_text": REASONING,
    "function_call_arguments": FUNCTION_CALL,
}
"""Types of items by the beginning of their deltas' names."""
_SURE = 8
"""Fewest characters, white space not counted, of a lost part, and of the text that must follow it: fewer may be a coincidence."""
_MOST = 4
"""Times as many characters as the text with a hole that the whole one may have: a text fifteen times as long holds the letters of any
other in their order."""


def answer_faults(request: Request, answer: Answer) -> Iterator[tuple[ResponseFault | ToolFault, str]]:
    """Yield the faults of one answer by itself, each with a description.

    A stream that does not end has that fault alone. Faults of tool calls that a model may commit by itself (``BY_MODEL``) count only if the
    request requires a call. Nothing is yielded for an answer of another route, which has no response object.
    """
    response = answer.response
    if response is None:
        return
    if response.events and response.events[-1].type not in _TERMINAL:
        last = response.events[-1]
        yield ResponseFault.NO_END, f"the last of {sum(e.count for e in response.events)} events is {last.type}" + _describe_break(response)
        return
    if request.stream and not response.events:
        yield ResponseFault.NO_EVENTS, f"a whole response of {number_of(len(response.items), 'item')}"
    yield from _stream_faults(response)
    yield from _status_faults(request, answer, response)
    tools = requested_tools(request)
    yield from ((fault, what) for fault, what in find_faults(tools, answer.choice) if tools.required or fault not in BY_MODEL)


def _describe_break(response: ResponseObject) -> str:
    return ", and the connection breaks; the server goes on answering others" if response.broken else ""


def _stream_faults(response: ResponseObject) -> Iterator[tuple[ResponseFault, str]]:
    """Yield the faults of a stream that has ended; none for a whole body."""
    events = response.events
    if not events:
        return
    if response.misnumbered:
        yield ResponseFault.NUMBERS, f"{response.misnumbered} of {sum(event.count for event in events)} events"
    if what := _find_disorder(events):
        yield ResponseFault.ORDER, what
    if what := _find_missing_done(events):
        yield ResponseFault.NO_DONE, what
    if what := _find_other_done(events):
        yield ResponseFault.DONE, what
    if what := _find_other_output(response):
        yield ResponseFault.FINAL, what
    if events[-1].type != response.status:
        yield ResponseFault.TERMINAL, f"the event is {events[-1].type}, the status {response.status}"


def _find_disorder(events: Sequence[StreamEvent]) -> str:
    """Return the first event that comes out of its order, in words; empty without one.

    An item is added before anything is said of it, and nothing is said of it after its end. A terminal event is the last.
    """
    if events[0].type != _OPENING:
        return f"the first event is {events[0].type}"
    early_end = next((number for number, event in enumerate(events[:-1]) if event.type in _TERMINAL), None)
    if early_end is not None:
        return f"{events[early_end + 1].type} after {events[early_end].type}"
    begun: set[int] = set()
    ended: set[int] = set()
    return next((what for event in events if (what := _describe_misplacement(event, begun, ended))), "")


def _describe_misplacement(event: StreamEvent, begun: set[int], ended: set[int]) -> str:
    """Return a description of an event out of order; else empty.

    ``begun`` and ``ended`` are the places of the items that have begun or ended so far; that of the event's item is added to them.
    """
    place = event.output_index
    if place is None:
        return ""
    if event.type == "output_item.added":
        is_twice = place in begun
        begun.add(place)
        return f"item {place} is added twice" if is_twice else ""
    if place not in begun:
        return f"{event.type} of item {place}, which was not added"
    if place in ended:
        return f"{event.type} of item {place} after its end"
    if event.type == "output_item.done":
        ended.add(place)
    return ""


def _find_missing_done(events: Sequence[StreamEvent]) -> str:
    """Return the first item or part without its done event, in words; empty without one.

    Whatever an ``added`` or ``delta`` event begins must have a ``done`` event of the same name and place.
    """
    places = {(event.type, event.output_index, event.content_index) for event in events}
    for event in events:
        name, _, kind = event.type.rpartition(".")
        done = (f"{name}.done", event.output_index, event.content_index)
        if kind in {"added", "delta"} and done not in places:
            return f"{event.type} of item {event.output_index} without {name}.done"
    return ""


def _find_other_done(events: Sequence[StreamEvent]) -> str:
    """Return the first done event unlike its deltas, in words; empty without one."""
    for event in events:
        name, _, kind = event.type.rpartition(".")
        if kind == "done" and name in _TEXTS:
            place = (f"{name}.delta", event.output_index, event.content_index)
            deltas = "".join(e.text for e in events if (e.type, e.output_index, e.content_index) == place)
            if deltas != event.text:
                return f"{event.type} has {_describe_texts(event.text, deltas)} in its deltas"
    return ""


def _find_other_output(response: ResponseObject) -> str:
    """Return the difference of the final output from its stream, in words.

    Its items are compared with those of the stream and with their deltas; empty without a difference.
    """
    done = {event.output_index: event.item for event in response.events if event.type == "output_item.done" and event.item is not None}
    items = [item for _, item in sorted(done.items(), key=lambda pair: pair[0] or 0)]
    if len(items) != len(response.items):
        return f"{number_of(len(response.items), 'item')} in the output, {len(items)} in the stream"
    for place, (item, streamed) in enumerate(zip(response.items, items, strict=True)):
        if (item.type, item.name, item.call_id) != (streamed.type, streamed.name, streamed.call_id):
            return f"item {place} is {_describe_item(item)}, in the stream {_describe_item(streamed)}"
        if item.text != streamed.text:
            return f"item {place} has {_describe_texts(item.text, streamed.text)} in its done event"
        deltas = _join_deltas(response.events, place, item.type)
        if item.text != deltas:
            return f"item {place} has {_describe_texts(item.text, deltas)} in its deltas"
    return ""


def _join_deltas(events: Sequence[StreamEvent], place: int, kind: str) -> str:
    """Return the deltas of the item at ``place``, joined; ``kind`` is its type."""
    deltas = {f"{name}.delta" for name, of_kind in _TEXTS.items() if of_kind == kind}
    return "".join(event.text for event in events if event.output_index == place and event.type in deltas)


def _describe_item(item: OutputItem) -> str:
    return f"{item.type} {item.name} {item.call_id}".rstrip()


def _describe_texts(text: str, other: str) -> str:
    """Quote both texts from ten characters before their first difference on."""
    at = max(0, first_difference(text, other) - 10)
    return f"{quote(text[at:], 50)}, and {quote(other[at:], 50)}"


def _status_faults(request: Request, answer: Answer, response: ResponseObject) -> Iterator[tuple[ResponseFault, str]]:
    """Yield faults of status and usage.

    They are an incomplete response without a reason, a missing usage, and more tokens than the request allows.
    """
    if response.status == INCOMPLETE and not response.reason:
        yield ResponseFault.REASON, "status incomplete, and no incomplete_details.reason"
    if answer.usage is None:
        yield ResponseFault.NO_USAGE, f"status {response.status}"
        return
    limit, tokens = request.token_limit, answer.usage.completion_tokens
    if limit is not None and tokens > limit:
        yield ResponseFault.OVERCOUNT, f"{tokens} output tokens, max_output_tokens is {limit}"


def is_cut(choice: Choice) -> bool:
    """Return True if the token limit cut the answer."""
    return choice.finish_reason == "length"


def is_unlike(choice: Choice, other: Choice) -> bool:
    """Return True if texts, reasoning or calls differ, by more than white space around them."""
    return _content(choice) != _content(other)


def _content(choice: Choice) -> list[str]:
    """Return an answer's reasoning, text, and the names and arguments of its calls."""
    calls = [text for call in choice.tool_calls for text in (call.name, call.arguments.strip())]
    return [choice.reasoning.strip(), choice.text.strip(), *calls]


def find_loss(answer: Answer, other: Answer) -> tuple[ToolFault, str] | None:
    """Return the fault of an answer that surely lost or repeats a part, else None.

    ``other`` is another answer of the same server to the same conversation at temperature 0. Numerical noise may lead two such answers to
    different texts. But if both count equally many tokens by usage, it hardly leads to one text that is the other with parts left out. The
    fault is that of ``answer`` by comparison: a part is lost if it is the shorter one, or comes twice if it is the longer one.
    """
    if not is_unlike(answer.choice, other.choice) or _tokens(answer) is None or _tokens(answer) != _tokens(other):
        return None
    texts = ["\n".join(_content(choice)) for choice in (answer.choice, other.choice)]
    at = first_difference(*texts)
    # Both from there on, without white space: noise may put one token of it in another's place.
    rests = ["".join(text[at:].split()) for text in texts]
    short, long = sorted(rests, key=len)
    if len(long) - len(short) < _SURE:  # so few characters may be a coincidence
        return None
    if short:
        lacks_part = _has_holes(short, long)
    else:
        shorter = answer.choice if rests[0] == short else other.choice
        # An answer that noise led into white space up to its token limit has no further text, and lost none.
        lacks_part = not (is_cut(shorter) and _ends_in_space(shorter))
    return compare_answers(answer.choice, other.choice) if lacks_part else None


def _has_holes(short: str, long: str) -> bool:
    """Return True if ``short`` is ``long`` with parts left out.

    That must be no coincidence: ``short`` needs eight characters and a quarter of the characters of ``long``.
    """
    return len(short) >= _SURE and len(long) <= _MOST * len(short) and _is_within(short, long)


def _ends_in_space(choice: Choice) -> bool:
    """Return True if white space ends the last part of an answer."""
    parts = (choice.reasoning, choice.text, *(call.arguments for call in choice.tool_calls))
    return next((part for part in reversed(parts) if part), "")[-1:].isspace()


def _is_within(short: str, long: str) -> bool:
    """Return True if all characters of ``short`` come in ``long`` in their order."""
    rest = iter(long)
    # Each search goes on after the character that the one before ended at.
    return all(character in rest for character in short)


def _tokens(answer: Answer) -> int | None:
    return answer.usage.completion_tokens if answer.usage else None
