"""Responses: the server's JSON as an answer's parts, whole or pieced together from a stream's chunks.

What a server left out or set to null stays empty. What is of another type than the protocol says is an error, never left out in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from pytest_specdec.capture import echoes
from pytest_specdec.model.soundness import LOWEST
from pytest_specdec.model.transcript import Choice, ListedTokens, ToolCall, Usage

if TYPE_CHECKING:
    from pytest_specdec.engines.protocol import VerifySteps
    from pytest_specdec.model.workload import JSON

_MAX_INT = 2**31
"""Ids and counts lie below: engines hold them in 32 bits."""
_HALF = re.compile("[\ud800-\udfff]")
_REASONING = ("reasoning_content", "reasoning")
"""Names of the reasoning in a message: the older one, which most engines have, and that of vLLM from 0.11 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """What one response says."""

    choices: tuple[Choice, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[float, ...] | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSize:
    """How much one chunk of a stream brings, over all choices."""

    token_ids: int
    characters: int
    content: int
    """Characters without the reasoning: of text and tool calls."""


def of_whole(data: Mapping[str, JSON], steps: VerifySteps | None) -> ParsedResponse:
    """Return the reply in an unstreamed body.

    Raises ValueError when it has no choices, or fields that are not of the protocol.
    """
    numbered = _choices_by_index(data)
    echo = None if len(numbered) != 1 else echoes.read(next(iter(numbered.values())), _prompt_tokens(data, numbered))
    if echo is not None:
        numbered = {index: {**choice, "logprobs": echo.rest} for index, choice in numbered.items()}
    choices = tuple(_choice(index, choice) for index, choice in sorted(numbered.items()))
    _check_indexes(numbered)
    return ParsedResponse(
        choices=_with_windows(choices, steps),
        prompt_token_ids=_prompt_ids(data, numbered),
        prompt_logprobs=_prompt_logprobs(data, numbered) if echo is None else echo.logprobs,
        usage=_usage(data.get("usage")),
    )


def _prompt_tokens(data: Mapping[str, JSON], choices: Mapping[int, Mapping[str, JSON]]) -> int:
    usage = _usage(data.get("usage"))
    return len(_prompt_ids(data, choices)) or (usage.prompt_tokens if usage else 0)


def of_stream(chunks: Sequence[Mapping[str, JSON]], steps: VerifySteps | None, draft_tokens: int | None) -> ParsedResponse:
    """Return the reply assembled from the chunks of a stream.

    Windows come from ``steps``. Without them they come from the chunks' lengths, if none is longer than a verify step
    can be: ``draft_tokens`` + 1. ``draft_tokens`` is None where a chunk is no verify step.

    Raises ValueError when there are no choices, or fields that are not of the protocol.
    """
    numbered = [(chunk, _choices_by_index(chunk)) for chunk in chunks]
    pieces: dict[int, list[Mapping[str, JSON]]] = {}
    for _, choices in numbered:
        for index, choice in choices.items():
            pieces.setdefault(index, []).append(choice)
    _check_indexes(pieces)
    joined = tuple(_join_choice(index, parts, draft_tokens) for index, parts in sorted(pieces.items()))
    return ParsedResponse(
        choices=_with_windows(joined, steps),
        prompt_token_ids=next((ids for chunk, choices in numbered if (ids := _prompt_ids(chunk, choices))), ()),
        usage=next((usage for chunk, _ in reversed(numbered) if (usage := _usage(chunk.get("usage")))), None),
    )


def is_finished(chunks: Sequence[Mapping[str, JSON]]) -> bool:
    """Return True if the last chunk with choices finishes them.

    Each of its choices then has its ``finish_reason``. Raises ValueError when fields are not of the protocol.
    """
    last = next((choices for chunk in reversed(chunks) if (choices := _choices_by_index(chunk))), {})
    return bool(last) and all(_string(choice, "finish_reason") for choice in last.values())


def size(chunk: Mapping[str, JSON]) -> ChunkSize:
    """Return the size of one chunk of a stream.

    An opening role chunk and a closing usage chunk bring nothing. Raises ValueError when the chunk's fields are not
    of the protocol.
    """
    choices = _choices_by_index(chunk).values()
    content = sum(len(_text(choice)) + _call_characters(choice) for choice in choices)
    return ChunkSize(
        token_ids=sum(len(_ids(choice, "token_ids")) for choice in choices),
        characters=content + sum(len(_reasoning(choice)) for choice in choices),
        content=content,
    )


def _choices_by_index(data: Mapping[str, JSON]) -> dict[int, Mapping[str, JSON]]:
    """Return the choices of a body or a chunk by index.

    The index is 0 where none is given. Raises ValueError when an index is given twice.
    """
    choices = _objects(data, "choices")
    numbered = {_index(choice): choice for choice in choices}
    if len(numbered) < len(choices):
        _mismatch("choices", [choice.get("index") for choice in choices], "every index once")
    return numbered


def _check_indexes(choices: Mapping[int, object]) -> None:
    if sorted(choices) != list(range(max(1, len(choices)))):
        _mismatch("choices", sorted(choices), "a choice, and the indexes from 0 on")


def _choice(index: int, choice: Mapping[str, JSON]) -> Choice:
    return Choice(
        index=index,
        text=_join_surrogates(_text(choice)),
        reasoning=_join_surrogates(_reasoning(choice)),
        tool_calls=_tool_calls([choice]),
        token_ids=_ids(choice, "token_ids"),
        finish_reason=_string(choice, "finish_reason"),
        stop_string=stop if isinstance(stop := choice.get("stop_reason"), str) else None,
        stop_token_id=_stop_id(choice),
        logprobs=_logprobs(choice.get("logprobs")),
        listed=_read_listed(choice.get("logprobs")),
    )


def _join_choice(index: int, parts: Sequence[Mapping[str, JSON]], draft_tokens: int | None) -> Choice:
    choices = [_choice(index, part) for part in parts]
    logprobs = [choice.logprobs for choice in choices if choice.logprobs is not None]
    listed = [choice.listed for choice in choices if choice.listed is not None]
    lengths = tuple(len(choice.token_ids) for choice in choices if choice.token_ids)
    plausible = draft_tokens is not None and lengths[:1] == (1,) and max(lengths) <= draft_tokens + 1
    return Choice(
        index=index,
        text=_join_surrogates("".join(choice.text for choice in choices)),
        reasoning=_join_surrogates("".join(choice.reasoning for choice in choices)),
        tool_calls=_tool_calls(parts),
        token_ids=tuple(token for choice in choices for token in choice.token_ids),
        finish_reason=next((choice.finish_reason for choice in reversed(choices) if choice.finish_reason), None),
        stop_string=next((choice.stop_string for choice in reversed(choices) if choice.stop_string is not None), None),
        stop_token_id=next((choice.stop_token_id for choice in reversed(choices) if choice.stop_token_id is not None), None),
        logprobs=tuple(value for part in logprobs for value in part) if logprobs else None,
        listed=tuple(value for part in listed for value in part) if listed else None,
        windows=lengths if plausible else None,
    )


def _stop_id(choice: Mapping[str, JSON]) -> int | None:
    """Return the stop token id of a choice.

    None for any other value, so that another engine's ``stop_reason`` never makes an answer unreadable.
    """
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, int) and not isinstance(reason, bool) and 0 <= reason < _MAX_INT else None


def _with_windows(choices: tuple[Choice, ...], steps: VerifySteps | None) -> tuple[Choice, ...]:
    """Return ``choices`` with the windows of ``steps``.

    Windows are taken only where they cover the tokens: a step without a draft may have gone uncounted. Without any
    draft each token was a step of its own.
    """
    if steps is None or len(choices) != 1:
        return choices
    tokens = len(choices[0].token_ids)
    if tokens and not steps.drafted:
        return (replace(choices[0], windows=(1,) * tokens, drafted=(0,) * (tokens - 1)),)
    if sum(steps.windows) < tokens:
        return choices
    return (replace(choices[0], windows=steps.windows, drafted=steps.drafted),)


def _text(choice: Mapping[str, JSON]) -> str:
    message = _message(choice)
    return (_string(choice, "text") if message is None else _string(message, "content")) or ""


def _reasoning(choice: Mapping[str, JSON]) -> str:
    """Return the reasoning of a choice; empty without any.

    The first of its names with a text counts: some servers send the same text under both.
    """
    message = _message(choice) or {}
    return next((text for name in _REASONING if (text := _string(message, name))), "")


def _tool_calls(parts: Sequence[Mapping[str, JSON]]) -> tuple[ToolCall, ...]:
    """Return the tool calls of a message or of stream deltas.

    Pieces with the same index are one call, as in OpenAI's clients.
    """
    calls: dict[int, ToolCall] = {}
    for part in parts:
        for place, piece in enumerate(_call_pieces(part)):
            function = piece.get("function")
            said = function if isinstance(function, Mapping) else {}
            number = _count("tool_calls.index", piece.get("index"))
            index = place if number is None else number
            before = calls.get(index, ToolCall(index=index))
            calls[index] = replace(
                before,
                id=before.id or _string(piece, "id") or "",
                name=before.name + (_string(said, "name") or ""),
                arguments=before.arguments + _arguments(said),
            )
    return tuple(replace(call, arguments=_join_surrogates(call.arguments)) for call in calls.values())


def _call_pieces(choice: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    return _objects(_message(choice) or {}, "tool_calls")


def _call_characters(choice: Mapping[str, JSON]) -> int:
    """Return the number of characters in tool calls, names included."""
    return sum(len(call.name) + len(call.arguments) for call in _tool_calls([choice]))


def _arguments(function: Mapping[str, JSON]) -> str:
    """Return a function's arguments as text.

    Some servers send the object itself.
    """
    arguments = function.get("arguments")
    return json.dumps(arguments) if isinstance(arguments, Mapping) else _string(function, "arguments") or ""


def _message(choice: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return the message of a chat answer or of its chunk.

    None on the completions route.
    """
    messages = (choice.get(place) for place in ("message", "delta"))
    return next((message for message in messages if isinstance(message, Mapping)), None)


def _join_surrogates(text: str) -> str:
    """Return ``text`` with adjacent surrogate halves joined into one character.

    Lone halves stay.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") if _HALF.search(text) else text


def _logprobs(value: JSON) -> tuple[float, ...] | None:
    """Return the log-probabilities of a choice's tokens.

    They are read from the completions form (``token_logprobs``) or the chat form (``content[].logprob``). None where
    one of them is null.
    """
    if not isinstance(value, Mapping):
        return None
    flat = value.get("token_logprobs")
    values = flat if isinstance(flat, (list, tuple)) else [entry.get("logprob") for entry in _objects(value, "content")]
    numbers = tuple(_logprob(logprob) for logprob in values if logprob is not None)
    return numbers if len(numbers) == len(values) else None


def _read_listed(value: JSON) -> tuple[ListedTokens, ...] | None:
    """Return the top tokens listed with each emitted token.

    They are read from the completions form, objects by name, or from the chat form. None where there are none. Values
    that are no numbers are left out: lists are judged, and never make an answer unreadable.
    """
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("token_logprobs"), (list, tuple)):
        names, tops = _list(value, "tokens"), _list(value, "top_logprobs")
        pairs = [(str(name), list(top.items())) for name, top in zip(names, tops, strict=False) if isinstance(top, Mapping)]
    else:
        entries = [(str(entry.get("token")), entry.get("top_logprobs")) for entry in _objects(value, "content")]
        listed = [(name, top) for name, top in entries if isinstance(top, (list, tuple))]
        pairs = [(name, [(str(one.get("token")), one.get("logprob")) for one in top if isinstance(one, Mapping)]) for name, top in listed]
    return tuple(_listed_tokens(name, top) for name, top in pairs) if any(top for _, top in pairs) else None


def _listed_tokens(name: str, top: Sequence[tuple[str, JSON]]) -> ListedTokens:
    known = [(token, number) for token, logprob in top if (number := _finite(logprob)) is not None]
    return ListedTokens(token=name, tokens=tuple(token for token, _ in known), logprobs=tuple(number for _, number in known))


def _finite(value: JSON) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= -LOWEST
    return float(value) if is_number and isinstance(value, (int, float)) else None


def _prompt_logprobs(data: Mapping[str, JSON], choices: Mapping[int, Mapping[str, JSON]]) -> tuple[float, ...] | None:
    """Return the log-probabilities of the prompt, read from vLLM's form.

    They stand at the top of a chat answer or in a completion's choice: null for the first token, then an object by
    id. The prompt's own token stands first in its object.
    """
    first = choices[min(choices)] if choices else {}
    entries = data.get("prompt_logprobs") or first.get("prompt_logprobs")
    if not isinstance(entries, (list, tuple)):
        return None
    own = [next(iter(entry.values()), None) for entry in entries if isinstance(entry, Mapping)]
    values = [_finite(one.get("logprob") if isinstance(one, Mapping) else one) for one in own]
    return None if None in values else tuple(value for value in values if value is not None)


def _logprob(value: JSON) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= -LOWEST:
        _mismatch("logprobs", value, "finite numbers")
    return float(value)


def _prompt_ids(data: Mapping[str, JSON], choices: Mapping[int, Mapping[str, JSON]]) -> tuple[int, ...]:
    """Return the token ids of the prompt; empty without any.

    Chat answers have them at the top, completions in the choice.
    """
    return _ids(data, "prompt_token_ids") or (_ids(choices[min(choices)], "prompt_token_ids") if choices else ())


def _usage(value: JSON) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    prompt, completion = (_count(name, value.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if prompt is None or completion is None:
        return None
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        reasoning_tokens=_reasoning_tokens(value),
        cached_tokens=_cached_tokens(value),
        total_tokens=_total(value),
    )


def _total(usage: Mapping[str, JSON]) -> int | None:
    return _count("total_tokens", usage.get("total_tokens"))


def _reasoning_tokens(usage: Mapping[str, JSON]) -> int | None:
    """Return the number of reasoning tokens.

    OpenAI has it among the details, other servers together with the other counts.
    """
    details = usage.get("completion_tokens_details")
    counts = details if isinstance(details, Mapping) and "reasoning_tokens" in details else usage
    return _count("reasoning_tokens", counts.get("reasoning_tokens"))


def _cached_tokens(usage: Mapping[str, JSON]) -> int | None:
    """Return the number of cached prompt tokens.

    OpenAI has it among the details of the prompt.
    """
    details = usage.get("prompt_tokens_details")
    return _count("cached_tokens", details.get("cached_tokens")) if isinstance(details, Mapping) else None


def _objects(data: Mapping[str, JSON], name: str) -> list[Mapping[str, JSON]]:
    objects = []
    for item in _list(data, name):
        if not isinstance(item, Mapping):
            _mismatch(name, item, "objects")
        objects.append(item)
    return objects


def _ids(data: Mapping[str, JSON], name: str) -> tuple[int, ...]:
    ids = [_count(name, item) for item in _list(data, name)]
    if None in ids:
        _mismatch(name, None, "whole numbers")
    return tuple(item for item in ids if item is not None)


def _list(data: Mapping[str, JSON], name: str) -> Sequence[JSON]:
    value = data.get(name)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        _mismatch(name, value, "a list")
    return value


def _count(name: str, value: JSON) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_INT:
        _mismatch(name, value, f"whole numbers from 0 to {_MAX_INT - 1}")
    return value


def _string(data: Mapping[str, JSON], name: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        _mismatch(name, value, "a text")
    return value


def _index(choice: Mapping[str, JSON]) -> int:
    return _count("index", choice.get("index")) or 0


def _mismatch(name: str, found: object, expected: str) -> NoReturn:
    msg = f"`{name}` has {str(found)[:100]}, expected {expected}"
    raise ValueError(msg)
