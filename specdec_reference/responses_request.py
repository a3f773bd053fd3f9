"""Parsing for the Responses API: its body becomes that of a chat, which the engine answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdec_reference import structured_fields
from specdec_reference.request_fields import Fields, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.model.workload import JSON

_SAME: Final = frozenset({
    "chat_template_kwargs", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "logit_bias", "min_p", "model",
    "parallel_tool_calls", "presence_penalty", "repetition_penalty", "seed", "skip_special_tokens", "stop", "stop_token_ids", "stream",
    "temperature", "top_k", "top_p", "user", *structured_fields.NAMES,
})  # fmt: skip
"""Fields of both routes."""
_OWN: Final = frozenset({"input", "instructions", "max_output_tokens", "text", "tool_choice", "tools"})
_NEUTRAL: Final[Mapping[str, tuple[JSON, ...]]] = {
    "background": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "store": (True, False),  # nothing is stored, and nothing asks for it
    "truncation": ("disabled",),
}
_PARTS: Final = {"input_text", "output_text", "text"}


def chat_body(body: JSON) -> dict[str, JSON]:
    """Return the body of a chat that asks for the same answer.

    Raises Refusal for a field, or an input, that has no counterpart there.
    """
    if not isinstance(body, dict):
        raise Refusal(message="the body must be a JSON object")
    fields = Fields(body)
    fields.refuse_unknown(_SAME | _OWN, _NEUTRAL)
    chat: dict[str, JSON] = {name: value for name, value in body.items() if name in _SAME}
    chat["messages"] = _read_messages(fields)
    limit = fields.integer("max_output_tokens", low=1)
    tools = fields.value("tools")
    optional: dict[str, JSON] = {
        "max_tokens": limit,
        "tools": [_nest_function(tool) for tool in tools] if isinstance(tools, list) else tools,
        "tool_choice": _nest_function(fields.value("tool_choice")),
        "response_format": _read_format(fields),
    }
    return chat | {name: value for name, value in optional.items() if value is not None}


def _read_messages(fields: Fields) -> list[JSON]:
    """Return the messages of a chat for instructions and input.

    Raises Refusal for an input that is no text and no list of items.
    """
    instructions, value = fields.text("instructions"), fields.value("input")
    messages: list[dict[str, JSON]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise Refusal(message="input must be a text or a list that is not empty", param="input")
    for item in value:
        _add_item(messages, item)
    return [*messages]


def _add_item(messages: list[dict[str, JSON]], item: JSON) -> None:
    """Add one input item to ``messages``; a call joins the assistant's message before it.

    Raises Refusal for an item of another type than messages, calls and their outputs.
    """
    if not isinstance(item, dict):
        raise Refusal(message="an input item must be an object", param="input")
    kind = item.get("type", "message")
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        calls = messages[-1].setdefault("tool_calls", [])
        function = {name: item.get(name) for name in ("name", "arguments")}
        if isinstance(calls, list):
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
    elif kind == "message":
        content = item.get("content")
        parts = [*_read_parts(content)] if isinstance(content, list) else content
        messages.append({"role": item.get("role"), "content": parts})
    else:
        raise Refusal(message=f"input items of type {kind} are not supported", param="input")


def _read_parts(content: list[JSON]) -> Iterator[JSON]:
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _PARTS:
            raise Refusal(message="only text parts are supported in a message", param="input")
        yield {"type": "text", "text": part.get("text")}


def _nest_function(value: JSON) -> JSON:
    """Return a tool, or a choice of one, in the form of the chat route.

    Anything but an object is returned unchanged.
    """
    if not isinstance(value, dict):
        return value
    return {"type": value.get("type"), "function": {name: field for name, field in value.items() if name not in {"type", "strict"}}}


def _read_format(fields: Fields) -> JSON:
    """Return ``text.format`` as a response_format; None without one.

    Any format but a JSON Schema is returned as it is.
    """
    text_format = (fields.object("text") or {}).get("format")
    if not isinstance(text_format, dict) or text_format.get("type") != "json_schema":
        return text_format
    return {"type": "json_schema", "json_schema": {name: value for name, value in text_format.items() if name != "type"}}
