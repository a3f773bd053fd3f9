"""Tool calls and plain answers, each asked streamed and whole: tools of our own, whose arguments are short, nested, or full of escapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts.schemas import enum_schema, object_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["TOOLS", "twins"]


def _text(most: int) -> dict[str, JSON]:
    return {"type": "string", "maxLength": most}


def _tool(name: str, description: str, **parameters: JSON) -> dict[str, JSON]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": object_schema(**parameters)}}


_LINE = object_schema(sku=enum_schema("a-1", "b-2"), amount={"type": "integer", "minimum": 1, "maximum": 12})

TOOLS: Mapping[str, JSON] = {
    "weather": _tool("get_weather", "Weather of a city", city=enum_schema("Köln", "Tromsø", "東京", "Łódź"), unit=enum_schema("C", "F")),
    "note": _tool(
        "save_note",
        "Keep a note",
        text=_text(60),
        tags={"type": "array", "items": enum_schema("home", "work"), "minItems": 1, "maxItems": 2},
    ),
    "order": _tool(
        "place_order",
        "Order goods",
        customer=object_schema(name=_text(12), address=object_schema(street=_text(16), town=enum_schema("Łódź", "Malmö"))),
        lines={"type": "array", "items": _LINE, "minItems": 1, "maxItems": 2},
    ),
    "find": _tool(
        "find_text",
        "Find texts",
        quoted=enum_schema('a "quoted" word', "'a' {word}"),
        lines=enum_schema("one\ntwo\tback\\slash"),
        face=enum_schema("smile 😀"),
    ),
    "light": _tool(
        "set_light",
        "Switch a light",
        on={"type": "boolean"},
        dim={"type": "integer", "minimum": 0, "maximum": 99},
        room={"enum": ["hall", None]},
    ),
}
"""By a short name of ours; a call takes some thirty tokens, an order a hundred."""

_RESULT: tuple[Mapping[str, JSON], ...] = (
    {"role": "user", "content": "What is the weather in Tromsø?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Tromsø", "unit": "C"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": '{"sky": "clear", "degrees": -4}'},
)
_ANSWERED: tuple[Mapping[str, JSON], ...] = (
    *_RESULT,
    {"role": "assistant", "content": "The sky is clear, at -4 °C."},
    {"role": "user", "content": "And in Łódź?"},
)


def _tool_body(
    conversation: str | Sequence[Mapping[str, JSON]], *tools: str, choice: str = "required", most: int = 112, **more: JSON
) -> dict[str, JSON]:
    """Return the body of a greedy chat request with some of :data:`TOOLS`.

    ``conversation`` is one user's message or all messages. ``choice`` is a value of ``tool_choice``, or the short name of
    the tool that has to be called. It is not used without tools. ``most`` is the limit of the answer in tokens, and
    ``more`` has further fields of the body.
    """
    messages = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else list(conversation)
    body: dict[str, JSON] = {"messages": messages, "temperature": 0, "max_tokens": most, **more}
    if not tools:
        return body
    function_name = _NAMES.get(choice)
    tool_choice: JSON = choice if function_name is None else {"type": "function", "function": {"name": function_name}}
    return body | {"tools": [TOOLS[tool] for tool in tools], "tool_choice": tool_choice}


_NAMES: Mapping[str, str] = {
    "weather": "get_weather",
    "note": "save_note",
    "order": "place_order",
    "find": "find_text",
    "light": "set_light",
}

_CASES: Mapping[str, dict[str, JSON]] = {
    "parallel": _tool_body("What is the weather in Tromsø and in Köln?", "weather"),
    "plain": _tool_body("Name four rivers of Europe, and a town at each.", most=32),
    "named-nested": _tool_body("Order two of a-1 and one of b-2 for Ann, who lives in Malmö.", "order", choice="order", most=128),
    "escapes": _tool_body("Find every smile in the text.", "find", parallel_tool_calls=False, most=80),
    "three-tools": _tool_body("Note that the hall is dark, and switch its light on.", "note", "light", "weather", most=128),
    "one-call": _tool_body("What is the weather in Łódź?", "weather", parallel_tool_calls=False, most=48),
    "named-note": _tool_body("Keep this in mind: call the bakery, buy flour, and write to Ann.", "note", choice="note", most=72),
    "parallel-escapes": _tool_body('Find "a quoted word" and a backslash.', "find", most=128),
    "auto": _tool_body("What is the weather in Köln? Use the tool.", "weather", choice="auto", most=32),
    "tool-result": _tool_body(_RESULT, "weather", choice="auto", most=32),
    "second-turn": _tool_body(_ANSWERED, "weather", parallel_tool_calls=False, most=48),
    "auto-two-tools": _tool_body("Switch the light in the hall off. Use a tool.", "light", "note", choice="auto", most=32),
    "named-light": _tool_body("Dim the light in the hall to twenty.", "light", choice="light", most=48),
    "parallel-notes": _tool_body("Two notes, please: flour is out; the bakery is closed on Monday.", "note", "find", most=112),
    "plain-accents": _tool_body("Gib wörtlich zurück: Füße, Öl, Äpfel, größer, 東京, naïve café, 😀😀.", most=32),
    "none": _tool_body("Is it raining in Köln?", "weather", choice="none", most=24),
    "order-or-note": _tool_body("Ann wants one b-2; or write it down.", "order", "note", parallel_tool_calls=False, most=112),
    "plain-list": _tool_body("Count from one to twelve in words, one a line.", most=32),
}
"""By id; the first four stand for all at smoke depth."""


def twins() -> Workload:
    """Return a workload with every case twice, not streamed and streamed."""
    requests = tuple(
        Request(id=f"{name}{'-streamed' if stream else ''}", route=Route.CHAT, body=body, stream=stream)
        for name, body in _CASES.items()
        for stream in (False, True)
    )
    return Workload(name="tools", version=1, requests=requests, concurrency=16, take={Depth.SMOKE: 8}, scored=False)
