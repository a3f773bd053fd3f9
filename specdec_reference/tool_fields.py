"""Tool fields: the tools of a chat request as presented to the model, and the grammar of a call that must come.

Calls are written as Hermes and Qwen models write them: ``<tool_call>``, a JSON object of name and arguments, ``</tool_call>``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from specdec_reference.grammar import LAYOUT
from specdec_reference.request_fields import Fields, Refusal
from specdec_reference.tool_calls import CLOSING, OPENING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

NAMES: Final = frozenset({"parallel_tool_calls", "tool_choice", "tools"})
_CHOICES: Final = ("none", "auto", "required")
_MOST_CALLS: Final = 3
"""Calls that a grammar lets through: a small model may find no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """The tools that one request offers, and what it wants of them."""

    parameters: Mapping[str, Mapping[str, JSON]]
    """JSON Schemas of the arguments, by the tool's name."""
    choice: str = "auto"
    """``none``, ``auto``, ``required``, or ``named`` where only one tool is in ``parameters``, which must be called."""
    parallel: bool = True
    """Whether several calls may come."""


def offer(fields: Fields) -> ToolOffer | None:
    """Return the tools offered by a body; None without tools.

    Raises Refusal where the fields are wrong or do not fit each other.
    """
    parallel = fields.flag("parallel_tool_calls", default=True)
    parameters = dict(map(_parse_function, _tool_list(fields)))
    choice = fields.value("tool_choice")
    if not parameters:
        if choice not in (None, "none"):
            raise Refusal(message="tool_choice needs tools", param="tool_choice")
        return None
    if isinstance(choice, dict):
        name = _chosen_name(choice)
        if name not in parameters:
            raise Refusal(message=f"tool_choice names {name}, which is not among the tools", param="tool_choice")
        return ToolOffer(parameters={name: parameters[name]}, choice="named", parallel=False)
    choice = choice or "auto"
    if not isinstance(choice, str) or choice not in _CHOICES:
        raise Refusal(message=f"tool_choice must be {', '.join(_CHOICES)} or a function's name", param="tool_choice")
    return ToolOffer(parameters=parameters, choice=choice, parallel=parallel)


def _tool_list(fields: Fields) -> list[JSON]:
    """Return the ``tools`` of a body, empty without any; raise Refusal for anything but a list."""
    tools = fields.value("tools") or []
    if not isinstance(tools, list):
        raise Refusal(message="tools must be a list", param="tools")
    return tools


def _chosen_name(choice: Mapping[str, JSON]) -> str:
    """Return the name in a ``tool_choice`` object; raises Refusal."""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise Refusal(message="tool_choice must be a text, or an object with type function and a function's name", param="tool_choice")
    return name


def _parse_function(tool: JSON) -> tuple[str, Mapping[str, JSON]]:
    """Return a tool's name and the schema of its arguments.

    Raises Refusal for anything but a function with a name.
    """
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
        raise Refusal(message="a tool must be an object of type function, and its function must have a name", param="tools")
    parameters = function.get("parameters") or {"type": "object"}
    if not isinstance(parameters, dict):
        raise Refusal(message=f"the parameters of {name} must be a JSON Schema", param="tools")
    return name, parameters


def instructions(fields: Fields) -> str:
    """Return the instructions to the model about its tools.

    They serve a template without tools of its own, in the form of Qwen's template. Empty without tools.
    """
    tools = _tool_list(fields)
    if not tools:
        return ""
    tool_lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tool_lines}\n</tools>\n\n"
        f"For each function call, return a json object with function name and arguments within {OPENING}{CLOSING} XML tags:\n"
        f'{OPENING}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSING}'
    )


def calls_text(message: Mapping[str, JSON]) -> str:
    """Return the tool calls of a message as the model writes them; empty without any.

    Raises Refusal for what is no call.
    """
    calls = message.get("tool_calls") or []
    # None stands for what is no call: _call_text refuses it.
    functions = [call.get("function") if isinstance(call, dict) else None for call in calls] if isinstance(calls, list) else [None]
    return "\n".join(_call_text(function) for function in functions)


def _call_text(function: JSON) -> str:
    """Return one tool call as the model writes it.

    Raises Refusal without a name, and for arguments that are no JSON.
    """
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
        raise Refusal(message="a tool call must have a function with a name", param="messages")
    try:
        arguments = json.loads(str(function.get("arguments") or "{}"))
    except ValueError as error:
        raise Refusal(message=f"the arguments of a tool call are no JSON: {error}", param="messages") from error
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPENING}\n{call}\n{CLOSING}"


def lark(tools: ToolOffer, *, tokens: bool) -> str:
    """Return a grammar of calls in Lark's syntax, with a rule for each tool.

    Empty where no call must come. ``tokens`` is True where the tags are tokens of their own, which the grammar names unquoted.
    """
    if tools.choice not in {"required", "named"}:
        return ""
    further_calls = f"(sep call){{0,{_MOST_CALLS - 1}}}" if tools.parallel else ""
    opening, closing = (OPENING, CLOSING) if tokens else (f'"{OPENING}"', f'"{CLOSING}"')
    names = list(tools.parameters)
    beginnings = (json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ') for name in names)
    schemas = (json.dumps({"x-guidance": LAYOUT, **tools.parameters[name]}) for name in names)
    rules = [
        f"start: call {further_calls}",
        'sep: "\\n"',
        f'call: {opening} "\\n" one "\\n" {closing}',
        f"one: {' | '.join(f'one_{number}' for number in range(len(names)))}",
        *(f'one_{number}: {begin} args_{number} "}}"' for number, begin in enumerate(beginnings)),
        *(f"args_{number}: %json {schema}" for number, schema in enumerate(schemas)),
    ]
    return "\n".join(rules)
