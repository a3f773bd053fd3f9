"""Rules of tool calls: for one answer by itself, and for two answers of the same tokens, which must agree.

Neither kind needs scores, and neither compares texts of different tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator

from pytest_specdec.judge.verdicts import quote
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Choice, ToolCall
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["BY_MODEL", "Breach", "Broken", "ToolsAsked", "apart", "breaches", "requested_tools"]


class Broken(StrEnum):
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
    STRANGE = "a tool is called that was not offered"
    NO_CALL = "a required tool call does not come"
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


BY_MODEL = frozenset({Broken.AS_TEXT, Broken.INVALID, Broken.SCHEMA, Broken.STRANGE, Broken.NO_CALL})
"""Faults that a model may commit by itself unless a grammar prevents it."""
_MARKUP = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=")
"""Markup by which models write calls; clients should never see it."""
_CUT = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One fault of one answer."""

    broken: Broken
    request_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.request_id}: {self.broken.value}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsAsked:
    """The tools of a request, and whether it demands a call."""

    parameters: Mapping[str, Mapping[str, JSON]]
    """JSON Schemas of the arguments, by the name of the tool."""
    choice: str
    """``none``, ``auto``, ``required`` or ``named``; ``none`` without tools."""

    @property
    def required(self) -> bool:
        """Whether the answer must have a call."""
        return self.choice in {"required", "named"}


def requested_tools(request: Request) -> ToolsAsked:
    """Return the tools of a request, and its tool_choice."""
    tools, choice = request.body.get("tools"), request.body.get("tool_choice", "auto")
    functions = [_object(_object(tool).get("function")) for tool in tools] if isinstance(tools, Sequence) else []
    parameters = {str(function.get("name")): _object(function.get("parameters")) for function in functions}
    return ToolsAsked(parameters=parameters, choice="none" if not parameters else "named" if isinstance(choice, Mapping) else str(choice))


def _object(value: JSON) -> Mapping[str, JSON]:
    return value if isinstance(value, Mapping) else {}


def breaches(tools: ToolsAsked, choice: Choice) -> list[tuple[Broken, str]]:
    """Return the faults of one answer by itself, each with a description.

    Empty for a request without tools. What is missing because the token limit cut the answer is no fault.
    """
    if tools.choice == "none":
        return []
    wrong = [*_check_framing(choice), *(call_breach for call in choice.tool_calls if (call_breach := _check_call(tools, call, choice)))]
    markup = next((tag for tag in _MARKUP if tag in choice.text), None)
    if markup is not None:
        wrong.append((Broken.AS_TEXT, f"content has {quote(choice.text, 60)}"))
    if tools.required and not choice.tool_calls and markup is None and choice.finish_reason != _CUT:
        wrong.append((Broken.NO_CALL, f"tool_choice is {tools.choice}; content is {quote(choice.text, 60)}"))
    return wrong


def _check_framing(choice: Choice) -> list[tuple[Broken, str]]:
    """Return faults in the ids and indexes of an answer's calls."""
    calls, wrong = choice.tool_calls, []
    ids = [call.id for call in calls if call.id]
    if len(ids) < len(calls):
        wrong.append((Broken.NO_ID, f"{len(calls) - len(ids)} of {len(calls)} calls"))
    if len(set(ids)) < len(ids):
        wrong.append((Broken.SAME_ID, f"{ids[0]} of {len(ids)} calls"))
    indexes = [call.index for call in calls]
    if indexes != list(range(len(calls))):
        wrong.append((Broken.INDEX, f"indexes {indexes}"))
    return wrong


def _check_call(tools: ToolsAsked, call: ToolCall, choice: Choice) -> tuple[Broken, str] | None:
    """Return the fault of one call, with a description, or None.

    The arguments of the last call are not checked if the token limit cut the answer.
    """
    if _holds_several(call.arguments):
        return Broken.INDEX, f"one call has the arguments of several: {quote(call.arguments, 80)}"
    if call.name not in tools.parameters:
        again = next((name for name in tools.parameters if _is_repetition(call.name, name)), None)
        return Broken.STRANGE if again is None else Broken.NAME_TWICE, f"name {quote(call.name)}"
    if choice.finish_reason == _CUT and call is choice.tool_calls[-1]:
        return None
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        return Broken.INVALID, f"{call.name} has {quote(call.arguments, 80)}: {error}"
    fault = next(iter(Draft202012Validator(dict(tools.parameters[call.name])).iter_errors(arguments)), None)
    return None if fault is None else (Broken.SCHEMA, f"{call.name}: {fault.message[:100]}")


def _is_repetition(text: str, name: str) -> bool:
    times = len(text) // len(name) if name else 0
    return times > 1 and text == name * times


def _holds_several(arguments: str) -> bool:
    """Return True if an object begins after the first JSON value."""
    try:
        _, end = json.JSONDecoder().raw_decode(arguments)
    except (ValueError, RecursionError):
        return False
    return arguments[end:].lstrip().startswith("{")


def apart(mine: Choice, theirs: Choice) -> tuple[Broken, str] | None:
    """Return how two answers of the same tokens differ, or None.

    The first difference is named as a fault of ``mine``, in the order of reasoning, calls, text.
    """
    if mine.reasoning != theirs.reasoning:
        return _compare_reasoning(mine, theirs)
    called = [(call.name, call.arguments) for call in mine.tool_calls]
    if called != [(call.name, call.arguments) for call in theirs.tool_calls]:
        return _compare_calls(mine, theirs)
    return _compare_texts(mine.text, theirs.text)


def _compare_reasoning(mine: Choice, theirs: Choice) -> tuple[Broken, str] | None:
    """Return how the reasoning of two answers differs, with a description.

    If only the border between reasoning and text is elsewhere, reasoning leaked into the text, or text was taken for reasoning.
    """
    if mine.written == theirs.written:
        broken = Broken.LEAK if len(mine.reasoning) < len(theirs.reasoning) else Broken.SWALLOWED
        return broken, f"reasoning ends with {quote(mine.reasoning[-30:])}, elsewhere with {quote(theirs.reasoning[-30:])}"
    if theirs.reasoning.startswith(mine.reasoning) and len(mine.text) > len(theirs.text):
        return Broken.LEAK, f"content is {quote(mine.text, 60)}, elsewhere {quote(theirs.text, 60)}"
    return _compare_texts(mine.reasoning, theirs.reasoning) or _compare_texts(mine.text, theirs.text)


def _compare_calls(mine: Choice, theirs: Choice) -> tuple[Broken, str]:
    """Return how the calls of two answers differ, with a description.

    Of equally many calls, the first pair that differs is described.
    """
    what = f"{_names(mine.tool_calls)}, elsewhere {_names(theirs.tool_calls)}"
    if any(_holds_several(call.arguments) for call in mine.tool_calls):
        return Broken.INDEX, what
    if len(mine.tool_calls) < len(theirs.tool_calls):
        return (Broken.AS_TEXT, f"content has {quote(mine.text, 60)}") if len(mine.text) > len(theirs.text) else (Broken.CALL_LOST, what)
    if len(mine.tool_calls) > len(theirs.tool_calls):
        return Broken.DIFFER, what
    pairs = zip(mine.tool_calls, theirs.tool_calls, strict=True)
    ours, other = next((a, b) for a, b in pairs if (a.name, a.arguments) != (b.name, b.arguments))
    return _call_fault(ours, other), f"{_describe_call(ours)}, elsewhere {_describe_call(other)}"


def _call_fault(mine: ToolCall, theirs: ToolCall) -> Broken:
    """Return the fault that explains the difference of two calls."""
    if mine.name != theirs.name:
        return Broken.NAME_TWICE if _is_repetition(mine.name, theirs.name) else Broken.DIFFER
    if mine.arguments.strip() in {"", "{}"}:
        return Broken.EMPTY
    if theirs.arguments.endswith(mine.arguments):
        return Broken.FIRST_LOST
    if theirs.arguments.startswith(mine.arguments):
        return Broken.END_LOST
    if _ascii(mine.arguments) == _ascii(theirs.arguments):
        return Broken.CHARACTERS
    return Broken.INVALID if not _is_json(mine.arguments) else Broken.DIFFER


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode()


def _describe_call(call: ToolCall) -> str:
    return f"{call.name}({quote(call.arguments, 60)})"


def _names(calls: Sequence[ToolCall]) -> str:
    return f"{len(calls)} calls ({', '.join(quote(call.name) for call in calls[:3])})" if calls else "no call"


def _compare_texts(mine: str, theirs: str) -> tuple[Broken, str] | None:
    """Return how two texts differ, with a description, or None.

    Servers may show or leave out an incomplete character at the end, so that it is no difference.
    """
    mine, theirs = mine.rstrip("\ufffd"), theirs.rstrip("\ufffd")
    if mine == theirs:
        return None
    at = first_difference(mine, theirs)
    return _text_fault(mine, theirs), f"goes on with {quote(mine[at:], 30)}, elsewhere with {quote(theirs[at:], 30)}"


def _text_fault(mine: str, theirs: str) -> Broken:
    """Return the fault that explains the difference of two texts."""
    if theirs.startswith(mine):
        return Broken.TAIL
    if _ascii(mine) == _ascii(theirs):
        return Broken.CHARACTERS
    if sorted(mine) == sorted(theirs):
        return Broken.ORDER
    return Broken.TWICE if len(mine) > len(theirs) else Broken.PART
