"""Rules of tool calls: for one answer by itself, and for two answers of the same tokens, which must agree.

Neither kind needs scores, and neither compares texts of different tokens. A fault of two answers is one of the first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator

from pytest_specdec.judge.structured.json_documents import is_rarely_enforced
from pytest_specdec.judge.verdicts import quote
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Choice, ToolCall
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["BY_MODEL", "CHOSEN", "Breach", "RequestedTools", "ToolFault", "compare_answers", "find_faults", "requested_tools"]


class ToolFault(StrEnum):
    """Faults of answers to requests with tools, or with reasoning."""

    FIRST_LOST = "the first tool arguments are lost in the stream"
    END_LOST = "the last tool arguments are lost"
    EMPTY = "the arguments of a tool call are empty"
    CALL_LOST = "a tool call is lost"
    AS_TEXT = "a tool call is delivered as text"
    NAME_TWICE = "the name of a tool call is sent more than once"
    INDEX = "tool calls are put together under a wrong index"
    NO_ID = "a tool call has no id"
    SAME_ID = "two tool calls have one id"
    INVALID = "the arguments of a tool call are not valid JSON"
    SCHEMA = "the arguments of a tool call do not fit its parameters"
    LOOSE = "the arguments of a tool call break a rule that engines seldom enforce"
    STRANGE = "a tool is called that was not offered"
    NO_CALL = "a required tool call does not come"
    NOT_CALLED = "no tool is called where the baseline calls one"
    MARKUP = "the markup of a tool call stands in the text"
    FINISH = "the finish_reason of a tool call is wrong"
    LEAK = "the reasoning leaks into the answer"
    SWALLOWED = "the answer is taken for reasoning"
    COUNT = "the reasoning tokens are counted wrongly"
    TAIL = "the end of the text is lost"
    PART = "a part of the text is lost"
    TWICE = "a part of the text comes twice"
    ORDER = "parts of the text are out of order"
    CHARACTERS = "characters that go over several tokens are lost"
    DIFFER = "the same tokens are given as other tool calls"


CHOSEN = frozenset({ToolFault.LOOSE, ToolFault.NOT_CALLED})
"""Faults that a model may commit by itself, whatever the request requires."""
BY_MODEL = CHOSEN | {ToolFault.AS_TEXT, ToolFault.INVALID, ToolFault.SCHEMA, ToolFault.STRANGE, ToolFault.NO_CALL}
"""Faults of CHOSEN, and those that a model may commit unless a grammar prevents it."""
_MARKUP = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=")
"""Markup by which models write calls; clients should never see it."""
_CUT = "length"
"""The finish reason of an answer that its token limit cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One fault of one answer."""

    fault: ToolFault
    request_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.request_id}: {self.fault.value}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTools:
    """The tools of a request, and whether it demands a call."""

    parameters: Mapping[str, Mapping[str, JSON]]
    """JSON Schemas of the arguments, by the name of the tool."""
    choice: str
    """``none``, ``auto``, ``required`` or ``named``; ``none`` without tools."""

    @property
    def required(self) -> bool:
        """Whether the answer must have a call."""
        return self.choice in {"required", "named"}


def requested_tools(request: Request) -> RequestedTools:
    """Return the tools of a request, with its tool_choice in one word.

    A choice that names a function becomes ``named``; without tools it is ``none``. On the responses route a tool is the function itself.
    """
    tools, choice = request.body.get("tools"), request.body.get("tool_choice", "auto")
    functions = [_object(_object(tool).get("function", tool)) for tool in tools] if isinstance(tools, Sequence) else []
    parameters = {str(function.get("name")): _object(function.get("parameters")) for function in functions}
    return RequestedTools(
        parameters=parameters, choice="none" if not parameters else "named" if isinstance(choice, Mapping) else str(choice)
    )


def _object(value: JSON) -> Mapping[str, JSON]:
    return value if isinstance(value, Mapping) else {}


def find_faults(tools: RequestedTools, choice: Choice) -> list[tuple[ToolFault, str]]:
    """Return the faults of one answer by itself, each with a description.

    Faults of ids and indexes come first, then those of single calls, markup of calls in the text, and a missing call. Empty for a request
    without tools or with tool_choice ``none``. Parts missing because the token limit cut the answer are no fault.
    """
    if tools.choice == "none":
        return []
    faults = [*_check_framing(choice), *(call_breach for call in choice.tool_calls if (call_breach := _check_call(tools, call, choice)))]
    markup = next((tag for tag in _MARKUP if tag in choice.text), None)
    if markup is not None:
        faults.append((ToolFault.AS_TEXT, f"content has {quote(choice.text, 60)}"))
    if tools.required and not choice.tool_calls and markup is None and choice.finish_reason != _CUT:
        faults.append((ToolFault.NO_CALL, f"tool_choice is {tools.choice}; content is {quote(choice.text, 60)}"))
    return faults


def _check_framing(choice: Choice) -> list[tuple[ToolFault, str]]:
    """Return faults in the ids and indexes of an answer's calls."""
    calls, wrong = choice.tool_calls, []
    ids = [call.id for call in calls if call.id]
    if len(ids) < len(calls):
        wrong.append((ToolFault.NO_ID, f"{len(calls) - len(ids)} of {len(calls)} calls"))
    if len(set(ids)) < len(ids):
        repeated, times = Counter(ids).most_common(1)[0]
        wrong.append((ToolFault.SAME_ID, f"id {quote(repeated)} in {times} of {len(calls)} calls"))
    indexes = [call.index for call in calls]
    if indexes != list(range(len(calls))):
        wrong.append((ToolFault.INDEX, f"indexes {indexes}"))
    return wrong


def _check_call(tools: RequestedTools, call: ToolCall, choice: Choice) -> tuple[ToolFault, str] | None:
    """Return the first fault of one call, with a description, or None.

    Several calls in one come first, then the name, then the arguments. Broken rules of the schema that engines seldom enforce are LOOSE,
    and count only if no other is broken. ``choice`` is the answer with the call. The arguments of its last call are not checked if the
    token limit cut it.
    """
    if _holds_several(call.arguments):
        return ToolFault.INDEX, f"one call has the arguments of several: {quote(call.arguments, 80)}"
    if call.name not in tools.parameters:
        is_twice = any(_is_repetition(call.name, name) for name in tools.parameters)
        return ToolFault.NAME_TWICE if is_twice else ToolFault.STRANGE, f"name {quote(call.name)}"
    if choice.finish_reason == _CUT and call is choice.tool_calls[-1]:
        return None
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as invalid:
        return ToolFault.INVALID, f"{call.name} has {quote(call.arguments, 80)}: {invalid}"
    errors = list(Draft202012Validator(dict(tools.parameters[call.name])).iter_errors(arguments))
    enforced = [error for error in errors if not is_rarely_enforced(error.relative_schema_path)]
    error = next(iter(enforced or errors), None)
    return None if error is None else (ToolFault.SCHEMA if enforced else ToolFault.LOOSE, f"{call.name}: {error.message[:100]}")


def _is_repetition(text: str, name: str) -> bool:
    """Return True if ``text`` is ``name`` twice or more in a row."""
    times = len(text) // len(name) if name else 0
    return times > 1 and text == name * times


def _holds_several(arguments: str) -> bool:
    """Return True if an object begins after the first JSON value, as where calls are put together."""
    try:
        _, end = json.JSONDecoder().raw_decode(arguments)
    except (ValueError, RecursionError):
        return False
    return arguments[end:].lstrip().startswith("{")


def compare_answers(choice: Choice, other: Choice) -> tuple[ToolFault, str] | None:
    """Return the fault of ``choice`` beside another answer, with a description.

    Both are taken to have the same tokens. Reasoning is compared first, then calls, then text; None if all are equal.
    """
    if choice.reasoning != other.reasoning:
        return _compare_reasoning(choice, other)
    calls = [(call.name, call.arguments) for call in choice.tool_calls]
    if calls != [(call.name, call.arguments) for call in other.tool_calls]:
        return _compare_calls(choice, other)
    return _compare_texts(choice.text, other.text)


def _compare_reasoning(choice: Choice, other: Choice) -> tuple[ToolFault, str] | None:
    """Return the fault of unequal reasoning, with a description, or None.

    If reasoning and text together are equal, only the border between them is elsewhere: reasoning leaked into the text, or text was taken
    for reasoning. Reasoning leaked too if it ends early and the text is longer. Otherwise the fault is that of unequal texts, None if they
    differ by an incomplete last character.
    """
    if choice.written == other.written:
        fault = ToolFault.LEAK if len(choice.reasoning) < len(other.reasoning) else ToolFault.SWALLOWED
        return fault, f"reasoning ends with {quote(choice.reasoning[-30:])}, elsewhere with {quote(other.reasoning[-30:])}"
    if other.reasoning.startswith(choice.reasoning) and len(choice.text) > len(other.text):
        return ToolFault.LEAK, f"content is {quote(choice.text, 60)}, elsewhere {quote(other.text, 60)}"
    return _compare_texts(choice.reasoning, other.reasoning) or _compare_texts(choice.text, other.text)


def _compare_calls(choice: Choice, other: Choice) -> tuple[ToolFault, str]:
    """Return the fault of unequal calls, with a description.

    Calls put together in one come first, then missing calls, which may stand in the text, then calls too many. If both answers have equally
    many, the first pair that differs is described.
    """
    what = f"{_describe_names(choice.tool_calls)}, elsewhere {_describe_names(other.tool_calls)}"
    if any(_holds_several(call.arguments) for call in choice.tool_calls):
        return ToolFault.INDEX, what
    if len(choice.tool_calls) < len(other.tool_calls):
        is_text = len(choice.text) > len(other.text)
        return (ToolFault.AS_TEXT, f"content has {quote(choice.text, 60)}") if is_text else (ToolFault.CALL_LOST, what)
    if len(choice.tool_calls) > len(other.tool_calls):
        return ToolFault.DIFFER, what
    pairs = zip(choice.tool_calls, other.tool_calls, strict=True)
    call, other_call = next((a, b) for a, b in pairs if (a.name, a.arguments) != (b.name, b.arguments))
    return _call_fault(call, other_call), f"{_describe_call(call)}, elsewhere {_describe_call(other_call)}"


def _call_fault(call: ToolCall, other: ToolCall) -> ToolFault:
    """Return the fault that best explains how ``call`` differs from ``other``.

    ``other`` is another answer's call of the same tokens. The first explanation counts: another name, then arguments that are empty, lack
    their beginning or their end, differ in characters beyond ASCII only, or are not valid JSON.
    """
    if call.name != other.name:
        return ToolFault.NAME_TWICE if _is_repetition(call.name, other.name) else ToolFault.DIFFER
    if call.arguments.strip() in {"", "{}"}:
        return ToolFault.EMPTY
    if other.arguments.endswith(call.arguments):
        return ToolFault.FIRST_LOST
    if other.arguments.startswith(call.arguments):
        return ToolFault.END_LOST
    if _drop_non_ascii(call.arguments) == _drop_non_ascii(other.arguments):
        return ToolFault.CHARACTERS
    return ToolFault.INVALID if not _is_json(call.arguments) else ToolFault.DIFFER


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _drop_non_ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode()


def _describe_call(call: ToolCall) -> str:
    return f"{call.name}({quote(call.arguments, 60)})"


def _describe_names(calls: Sequence[ToolCall]) -> str:
    return f"{len(calls)} calls ({', '.join(quote(call.name) for call in calls[:3])})" if calls else "no call"


def _compare_texts(text: str, other: str) -> tuple[ToolFault, str] | None:
    """Return the fault of unequal texts, with a description, or None.

    It is a fault of ``text``. Servers may show or leave out an incomplete character at the end, so that it is no difference.
    """
    text, other = text.rstrip("\ufffd"), other.rstrip("\ufffd")
    if text == other:
        return None
    at = first_difference(text, other)
    return _text_fault(text, other), f"goes on with {quote(text[at:], 30)}, elsewhere with {quote(other[at:], 30)}"


def _text_fault(text: str, other: str) -> ToolFault:
    """Return the fault that best explains how ``text`` differs from ``other``.

    ``other`` is another answer's text of the same tokens. The first explanation counts: ``text`` has more markup of calls, ends early,
    differs in characters beyond ASCII only, or has the same characters in another order; failing these, a longer text has a part twice,
    and a shorter one lacks a part.
    """
    if any(text.count(tag) > other.count(tag) for tag in _MARKUP):
        return ToolFault.MARKUP
    if other.startswith(text):
        return ToolFault.TAIL
    if _drop_non_ascii(text) == _drop_non_ascii(other):
        return ToolFault.CHARACTERS
    if sorted(text) == sorted(other):
        return ToolFault.ORDER
    return ToolFault.TWICE if len(text) > len(other) else ToolFault.PART
