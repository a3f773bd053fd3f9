"""The same conversations by the chat route and by the Responses API, each whole and streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts.schemas import bound
from pytest_specdec.prompts.tools import TOOLS

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["conversation_of", "in_responses_form", "pairs"]

_SEPARATOR = "/"
_SAME = ("temperature", "top_p", "tool_choice", "parallel_tool_calls")

_RESULT: tuple[Mapping[str, JSON], ...] = (
    {"role": "user", "content": "What is the weather in Tromsø?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Tromsø", "unit": "C"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": '{"sky": "clear", "degrees": -4}'},
)
_TURNS: tuple[Mapping[str, JSON], ...] = (
    {"role": "user", "content": "Count from one to five in words."},
    {"role": "assistant", "content": "one, two, three, four, five"},
    {"role": "user", "content": "And now from five to ten."},
)
_INSTRUCTED: tuple[Mapping[str, JSON], ...] = (
    {"role": "system", "content": "Answer in German, in one sentence."},
    {"role": "user", "content": "Which river flows through Köln?"},
)


def _chat(conversation: str | Sequence[Mapping[str, JSON]], *tools: str, most: int, **more: JSON) -> dict[str, JSON]:
    """Return the body of a greedy chat.

    ``conversation`` is one user's message or all messages, ``tools`` are names of :data:`TOOLS`, and ``most`` is the limit
    of the answer in tokens. ``more`` has further fields of the body.
    """
    messages = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else list(conversation)
    offered: dict[str, JSON] = {"tools": [TOOLS[tool] for tool in tools]} if tools else {}
    return {"messages": messages, "temperature": 0, "top_p": 1.0, "max_tokens": most, **offered, **more}


_CASES: Mapping[str, dict[str, JSON]] = {
    "calls": _chat("What is the weather in Tromsø and in Köln?", "weather", most=112, tool_choice="required"),
    "plain": _chat("Name four rivers of Europe, and a town at each.", most=32),
    "limit": _chat("Count from one to forty in words, one a line.", most=17),
    "schema": _chat("File a ticket: the router in the hall is dead.", most=64, response_format=bound("ticket")),
    "named": _chat(
        "Dim the light in the hall to twenty.",
        *("light", "weather"),
        most=48,
        tool_choice={"type": "function", "function": {"name": "set_light"}},
    ),
    "turns": _chat(_TURNS, most=32),
    "instructed": _chat(_INSTRUCTED, most=32),
    "result": _chat(_RESULT, "weather", most=32, tool_choice="auto"),
    "one-call": _chat("What is the weather in Łódź?", "weather", most=48, tool_choice="required", parallel_tool_calls=False),
    "short": _chat("Answer with one word: is water wet?", most=48),
    "accents": _chat("Gib wörtlich zurück: Füße, Öl, Äpfel, größer, 東京, naïve café, 😀😀.", most=32),
}
"""By id; the first four stand for all at smoke depth."""


def pairs() -> Workload:
    """Return a workload with every conversation four times.

    It is sent by both routes, whole and streamed.
    """
    requests = tuple(
        Request(
            id=f"{name}{_SEPARATOR}{route}{'-streamed' if stream else ''}",
            route=route,
            body=body if route is Route.CHAT else in_responses_form(body),
            stream=stream,
        )
        for name, body in _CASES.items()
        for route in (Route.CHAT, Route.RESPONSES)
        for stream in (False, True)
    )
    return Workload(name="responses", version=1, requests=requests, concurrency=16, take={Depth.SMOKE: 16}, scored=False)


def conversation_of(request_id: str) -> str:
    """Return the conversation of a request of :func:`pairs`."""
    return request_id.rpartition(_SEPARATOR)[0]


def in_responses_form(chat: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the body of a chat in the form of the Responses API.

    A first system message becomes the instructions, and a user's message without any others a plain text. Fields in
    ``_SAME`` have the same name in both forms. The server is asked to store nothing. Fields of ``chat`` beyond those of
    this module's conversations are left out.
    """
    messages = [message for message in _items(chat.get("messages")) if isinstance(message, Mapping)]
    instructions = [str(message.get("content")) for message in messages[:1] if message.get("role") == "system"]
    items = [item for message in messages[len(instructions) :] for item in _input_items(message)]
    tools = [_flatten(tool) for tool in _items(chat.get("tools"))]
    text_format = chat.get("response_format")
    return {
        "input": items[0]["content"] if len(items) == 1 and items[0].get("role") == "user" else items,
        "store": False,
        **({"instructions": instructions[0]} if instructions else {}),
        **{name: _flatten(chat[name]) for name in _SAME if name in chat},
        **({"max_output_tokens": chat["max_tokens"]} if "max_tokens" in chat else {}),
        **({"tools": tools} if tools else {}),
        **({"text": {"format": _flatten(text_format, "json_schema")}} if text_format else {}),
    }


def _items(value: JSON) -> Sequence[JSON]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _flatten(value: JSON, inner: str = "function") -> JSON:
    """Return an object with the fields under ``inner`` beside its type.

    The chat route nests these fields, the Responses API does not. Anything without ``inner`` is returned unchanged.
    """
    fields = value.get(inner) if isinstance(value, Mapping) else None
    return {"type": value["type"], **fields} if isinstance(value, Mapping) and isinstance(fields, Mapping) else value


def _input_items(message: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """Return one chat message as items of a Responses input.

    A tool's answer is one item. Any other message is an item for its content, if it has any, and one for each tool call.
    """
    if message.get("role") == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": message.get("content")}]
    content: list[dict[str, JSON]] = [{"role": message.get("role"), "content": message["content"]}] if "content" in message else []
    calls = [call for call in _items(message.get("tool_calls")) if isinstance(call, Mapping)]
    return content + [{**_fields(call.get("function")), "type": "function_call", "call_id": call.get("id")} for call in calls]


def _fields(value: JSON) -> Mapping[str, JSON]:
    return value if isinstance(value, Mapping) else {}
