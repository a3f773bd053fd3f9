"""Responses: the server's JSON as an answer's parts, whole or pieced together from a stream's chunks.

What a server left out or set to null stays empty. What is of another type than the protocol says is an error, never left out in silence.

A choice is one of a request's ``n`` answers. In a stream each chunk has a piece of it. A verify window is the number of tokens that one
step of speculative decoding emitted: the accepted draft tokens and one more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import echoes
from pytest_specdec.capture.fields import (
    MAX_INT,
    finite_number,
    finite_numbers,
    raise_mismatch,
    read_count,
    read_ids,
    read_list,
    read_objects,
    read_string,
)
from pytest_specdec.model.transcript import Choice, ListedTokens, ToolCall, Usage

if TYPE_CHECKING:
    from pytest_specdec.engines.server_counts import VerifySteps
    from pytest_specdec.model.response_object import ResponseObject
    from pytest_specdec.model.workload import JSON

_HALF = re.compile("[\ud800-\udfff]")
_REASONING = ("reasoning_content", "reasoning")
"""Names of the reasoning in a message: the older one, which most engines have, and that of vLLM from 0.11 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """The contents of one response."""

    choices: tuple[Choice, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[float, ...] | None = None
    usage: Usage | None = None
    response: ResponseObject | None = None
    """None on any route but that of responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSize:
    """How much one chunk of a stream brings, over all choices."""

    token_ids: int
    characters: int
    content: int
    """Characters without the reasoning: of text and tool calls."""


def parse_body(data: Mapping[str, JSON], steps: VerifySteps | None) -> ParsedResponse:
    """Return the contents of an unstreamed response's JSON body.

    If the answer's lists of log-probabilities begin with an echo of its prompt, that part is split off. ``steps`` are the verify steps that
    the server reports, None without any. Raises ValueError if the body has no choices, or fields that are not of the protocol.
    """
    by_index = _choices_by_index(data)
    echo = None
    if len(by_index) == 1:  # an echo is asked for with a single choice only
        (single_choice,) = by_index.values()
        echo = echoes.read(single_choice, _count_reported_prompt_tokens(data, by_index))
    if echo is not None:
        by_index = {index: {**choice, "logprobs": echo.answer_lists} for index, choice in by_index.items()}
    choices = tuple(_read_choice(index, choice) for index, choice in sorted(by_index.items()))
    _check_indexes(by_index)
    return ParsedResponse(
        choices=_add_windows(choices, steps),
        prompt_token_ids=_read_prompt_ids(data, by_index),
        prompt_logprobs=_read_prompt_logprobs(data, by_index) if echo is None else echo.logprobs,
        usage=read_usage(data.get("usage")),
    )


def _count_reported_prompt_tokens(data: Mapping[str, JSON], choices: Mapping[int, Mapping[str, JSON]]) -> int:
    """Return the number of prompt tokens, by ids or usage; 0 if unknown."""
    usage = read_usage(data.get("usage"))
    return len(_read_prompt_ids(data, choices)) or (usage.prompt_tokens if usage else 0)


def parse_stream(chunks: Sequence[Mapping[str, JSON]], steps: VerifySteps | None, draft_tokens: int | None) -> ParsedResponse:
    """Return the contents of a streamed response, joined from its chunks.

    Verify windows come from ``steps``, as the server reports them, or else from the chunks' token counts. ``draft_tokens`` is the most that
    one step drafts, or None if this server's chunks are no verify steps. Raises ValueError if there are no choices, or fields that are not
    of the protocol.
    """
    chunk_choices = [(chunk, _choices_by_index(chunk)) for chunk in chunks]
    pieces: dict[int, list[Mapping[str, JSON]]] = {}
    for _, choices in chunk_choices:
        for index, choice in choices.items():
            pieces.setdefault(index, []).append(choice)
    _check_indexes(pieces)
    joined = tuple(_join_choice(index, choice_pieces, draft_tokens) for index, choice_pieces in sorted(pieces.items()))
    return ParsedResponse(
        choices=_add_windows(joined, steps),
        prompt_token_ids=next((ids for chunk, choices in chunk_choices if (ids := _read_prompt_ids(chunk, choices))), ()),
        usage=next((usage for chunk, _ in reversed(chunk_choices) if (usage := read_usage(chunk.get("usage")))), None),
    )


def is_finished(chunks: Sequence[Mapping[str, JSON]]) -> bool:
    """Return True if a stream without ``[DONE]`` came to its end.

    Its last chunk with choices then has a ``finish_reason`` for each of these; a stream that broke off ends in the middle of a choice.
    Raises ValueError if fields are not of the protocol.
    """
    last_pieces = next((choices for chunk in reversed(chunks) if (choices := _choices_by_index(chunk))), {})
    return bool(last_pieces) and all(read_string(piece, "finish_reason") for piece in last_pieces.values())


def size(chunk: Mapping[str, JSON]) -> ChunkSize:
    """Return the numbers of tokens and characters in one chunk.

    ``content`` counts characters without the reasoning, to time the answer after it. An opening role chunk and a closing usage chunk have
    none of all. Raises ValueError if the chunk's fields are not of the protocol.
    """
    choices = _choices_by_index(chunk).values()
    content = sum(len(_read_text(choice)) + _count_call_characters(choice) for choice in choices)
    return ChunkSize(
        token_ids=sum(len(read_ids(choice, "token_ids")) for choice in choices),
        characters=content + sum(len(_read_reasoning(choice)) for choice in choices),
        content=content,
    )


def _choices_by_index(data: Mapping[str, JSON]) -> dict[int, Mapping[str, JSON]]:
    """Return the choices of a body or a chunk by index.

    A choice without an index has index 0. Raises ValueError if an index is given twice.
    """
    choices = read_objects(data, "choices")
    by_index = {_read_index(choice): choice for choice in choices}
    if len(by_index) < len(choices):
        raise_mismatch("choices", [choice.get("index") for choice in choices], "every index once")
    return by_index


def _check_indexes(choices: Mapping[int, object]) -> None:
    if sorted(choices) != list(range(max(1, len(choices)))):
        raise_mismatch("choices", sorted(choices), "a choice, and the indexes from 0 on")


def _read_choice(index: int, choice: Mapping[str, JSON]) -> Choice:
    """Return the choice of a whole body or of one chunk.

    Its ``logprobs`` field has the emitted tokens' own values, and beside each the top tokens (``listed``). Its ``stop_reason`` field is the
    stop string or the id of the stop token. A character that came as two surrogate halves is joined.
    """
    token_lists, stop_reason = choice.get("logprobs"), choice.get("stop_reason")
    return Choice(
        index=index,
        text=_join_split_characters(_read_text(choice)),
        reasoning=_join_split_characters(_read_reasoning(choice)),
        tool_calls=_read_tool_calls([choice]),
        token_ids=read_ids(choice, "token_ids"),
        finish_reason=read_string(choice, "finish_reason"),
        stop_string=stop_reason if isinstance(stop_reason, str) else None,
        stop_token_id=_read_stop_id(choice),
        logprobs=_read_logprobs(token_lists),
        listed=_read_listed_tokens(token_lists),
    )


def _join_choice(index: int, pieces: Sequence[Mapping[str, JSON]], draft_tokens: int | None) -> Choice:
    """Return one choice, joined from its pieces in the chunks.

    ``draft_tokens`` is the most that one verify step drafts, None if chunks are no verify steps. The chunks' token counts become its verify
    windows only if they can be: the first has one token, emitted by the prefill, and none has more than ``draft_tokens`` + 1.
    """
    choices = [_read_choice(index, piece) for piece in pieces]
    logprobs = [choice.logprobs for choice in choices if choice.logprobs is not None]
    listed = [choice.listed for choice in choices if choice.listed is not None]
    lengths = tuple(len(choice.token_ids) for choice in choices if choice.token_ids)
    are_windows = draft_tokens is not None and lengths[:1] == (1,) and max(lengths) <= draft_tokens + 1
    return Choice(
        index=index,
        text=_join_split_characters("".join(choice.text for choice in choices)),
        reasoning=_join_split_characters("".join(choice.reasoning for choice in choices)),
        tool_calls=_read_tool_calls(pieces),
        token_ids=tuple(token for choice in choices for token in choice.token_ids),
        finish_reason=next((choice.finish_reason for choice in reversed(choices) if choice.finish_reason), None),
        stop_string=next((choice.stop_string for choice in reversed(choices) if choice.stop_string is not None), None),
        stop_token_id=next((choice.stop_token_id for choice in reversed(choices) if choice.stop_token_id is not None), None),
        logprobs=tuple(value for values in logprobs for value in values) if logprobs else None,
        listed=tuple(value for values in listed for value in values) if listed else None,
        windows=lengths if are_windows else None,
    )


def _read_stop_id(choice: Mapping[str, JSON]) -> int | None:
    """Return the id of the token stopping a choice.

    Returns None if ``stop_reason`` is no token id, so that another engine's value never makes an answer unreadable.
    """
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, int) and not isinstance(reason, bool) and 0 <= reason < MAX_INT else None


def _add_windows(choices: tuple[Choice, ...], steps: VerifySteps | None) -> tuple[Choice, ...]:
    """Return ``choices`` with the verify windows reported in ``steps``.

    The first window is the prefill's, a single token; ``drafted`` has the draft tokens of each later window. ``choices`` are unchanged
    without ``steps``, and if there are several choices.
    """
    if steps is None or len(choices) != 1:
        return choices
    tokens = len(choices[0].token_ids)
    if tokens and not steps.drafted:  # each token was a step of its own
        return (replace(choices[0], windows=(1,) * tokens, drafted=(0,) * (tokens - 1)),)
    # Windows may have more tokens than the answer, of which a limit cut the last one. If they have fewer, a step was not reported.
    if sum(steps.windows) < tokens:
        return choices
    return (replace(choices[0], windows=steps.windows, drafted=steps.drafted),)


def _read_text(choice: Mapping[str, JSON]) -> str:
    message = _read_message(choice)
    return (read_string(choice, "text") if message is None else read_string(message, "content")) or ""


def _read_reasoning(choice: Mapping[str, JSON]) -> str:
    """Return the reasoning text of a choice, empty without any.

    The first field of :data:`_REASONING` with a text counts: some servers send the same text under both names.
    """
    message = _read_message(choice) or {}
    return next((text for name in _REASONING if (text := read_string(message, name))), "")


def _read_tool_calls(choices: Sequence[Mapping[str, JSON]]) -> tuple[ToolCall, ...]:
    """Return the tool calls in a message or in stream deltas.

    Deltas with the same index are joined to one call, as in OpenAI's clients. The calls of a whole message are numbered by their order.
    """
    calls: dict[int, ToolCall] = {}
    for choice in choices:
        is_whole_message = isinstance(choice.get("message"), Mapping)
        for position, piece in enumerate(_read_call_pieces(choice)):
            function = piece.get("function")
            fields = function if isinstance(function, Mapping) else {}
            # OpenAI's messages have no index, and in another server's it may number the request's tools, not the calls.
            delta_index = None if is_whole_message else read_count("tool_calls.index", piece.get("index"))
            index = position if delta_index is None else delta_index
            partial_call = calls.get(index, ToolCall(index=index))
            calls[index] = replace(
                partial_call,
                id=partial_call.id or read_string(piece, "id") or "",
                name=partial_call.name + (read_string(fields, "name") or ""),
                arguments=partial_call.arguments + _read_arguments(fields),
            )
    return tuple(replace(call, arguments=_join_split_characters(call.arguments)) for call in calls.values())


def _read_call_pieces(choice: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    return read_objects(_read_message(choice) or {}, "tool_calls")


def _count_call_characters(choice: Mapping[str, JSON]) -> int:
    """Return the number of characters in tool calls, names included."""
    return sum(len(call.name) + len(call.arguments) for call in _read_tool_calls([choice]))


def _read_arguments(function: Mapping[str, JSON]) -> str:
    """Return the arguments of a called function, as JSON text.

    Some servers send the object itself, which is written as text here.
    """
    arguments = function.get("arguments")
    return json.dumps(arguments) if isinstance(arguments, Mapping) else read_string(function, "arguments") or ""


def _read_message(choice: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return the message of a chat choice, or its stream delta.

    Returns None for a choice of the completions route.
    """
    messages = (choice.get(name) for name in ("message", "delta"))
    return next((message for message in messages if isinstance(message, Mapping)), None)


def _join_split_characters(text: str) -> str:
    """Return ``text`` with adjacent surrogate halves joined to one character.

    A server may divide a character beyond 16 bits, such as an emoji, between two pieces of a stream. Lone halves stay.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") if _HALF.search(text) else text


def _read_logprobs(value: JSON) -> tuple[float, ...] | None:
    """Return the log-probabilities of a choice's tokens, one per token.

    ``value`` is its ``logprobs`` field, in the completions form (``token_logprobs``) or the chat form (``content[].logprob``). Returns
    None without any value, as for an empty list, or if a value is null. Raises ValueError if one is anything else but a finite number.
    """
    if not isinstance(value, Mapping):
        return None
    flat = value.get("token_logprobs")
    values = flat if isinstance(flat, (list, tuple)) else [entry.get("logprob") for entry in read_objects(value, "content")]
    numbers = tuple(_read_logprob(logprob) for logprob in values if logprob is not None)
    return numbers if numbers and len(numbers) == len(values) else None


def _read_listed_tokens(value: JSON) -> tuple[ListedTokens, ...] | None:
    """Return the top tokens listed with each emitted token.

    ``value`` is the choice's ``logprobs`` field, in the completions form, with objects by token text, or the chat form. Returns None if
    no top tokens are listed. Values that are no numbers are left out: lists are judged later, and never make an answer unreadable.
    """
    if not isinstance(value, Mapping):
        return None
    lists: list[tuple[JSON, Sequence[tuple[JSON, JSON]]]]  # per emitted token: the token, and its top tokens with log-probabilities
    if isinstance(value.get("token_logprobs"), (list, tuple)):
        tokens, tops = read_list(value, "tokens"), read_list(value, "top_logprobs")
        lists = [(token, [*top.items()]) for token, top in zip(tokens, tops, strict=False) if isinstance(top, Mapping)]
    else:
        entries = [(entry.get("token"), entry.get("top_logprobs")) for entry in read_objects(value, "content")]
        lists = [(token, _read_candidates(top)) for token, top in entries if isinstance(top, (list, tuple))]
    return tuple(_make_listed_tokens(token, top) for token, top in lists) if any(top for _, top in lists) else None


def _read_candidates(top: Sequence[JSON]) -> list[tuple[JSON, JSON]]:
    """Return pairs of token and log-probability from a chat answer's list."""
    return [(candidate.get("token"), candidate.get("logprob")) for candidate in top if isinstance(candidate, Mapping)]


def _make_listed_tokens(name: JSON, top: Sequence[tuple[JSON, JSON]]) -> ListedTokens:
    """Return the top tokens listed with the emitted token ``name``.

    ``top`` has pairs of token and log-probability. Pairs without a finite log-probability are left out.
    """
    finite = [(str(token), number) for token, logprob in top if (number := finite_number(logprob)) is not None]
    return ListedTokens(token=str(name), tokens=tuple(token for token, _ in finite), logprobs=tuple(number for _, number in finite))


def _read_prompt_logprobs(data: Mapping[str, JSON], choices: Mapping[int, Mapping[str, JSON]]) -> tuple[float, ...] | None:
    """Return the log-probabilities of the prompt's tokens in vLLM's form.

    The list is at the top of a chat answer or in a completion's choice: null for the first token, then an object by token id for each
    other. The prompt's own token stands first in its object. Returns None without a list, or if one of its values is no finite number.
    """
    first_choice = choices[min(choices)] if choices else {}
    entries = data.get("prompt_logprobs") or first_choice.get("prompt_logprobs")
    if not isinstance(entries, (list, tuple)):
        return None
    prompt_entries = [next(iter(entry.values()), None) for entry in entries if isinstance(entry, Mapping)]
    return finite_numbers([entry.get("logprob") if isinstance(entry, Mapping) else entry for entry in prompt_entries])


def _read_logprob(value: JSON) -> float:
    """Return ``value`` as one log-probability of an emitted token.

    Raises ValueError for anything but a finite number.
    """
    number = finite_number(value)
    if number is None:
        raise_mismatch("logprobs", value, "finite numbers")
    return number


def _read_prompt_ids(data: Mapping[str, JSON], choices: Mapping[int, Mapping[str, JSON]]) -> tuple[int, ...]:
    """Return the token ids of the prompt, empty without any.

    Chat answers have these at the top, completions in the choice.
    """
    return read_ids(data, "prompt_token_ids") or (read_ids(choices[min(choices)], "prompt_token_ids") if choices else ())


def read_usage(value: JSON) -> Usage | None:
    """Return the token counts in a response's ``usage`` field.

    Returns None without both prompt and completion tokens.
    """
    if not isinstance(value, Mapping):
        return None
    prompt, completion = (read_count(name, value.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if prompt is None or completion is None:
        return None
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        reasoning_tokens=_read_reasoning_tokens(value),
        cached_tokens=_read_cached_tokens(value),
        total_tokens=_read_total_tokens(value),
    )


def _read_total_tokens(usage: Mapping[str, JSON]) -> int | None:
    return read_count("total_tokens", usage.get("total_tokens"))


def _read_reasoning_tokens(usage: Mapping[str, JSON]) -> int | None:
    """Return the number of reasoning tokens, None if not reported.

    OpenAI has it among the completion's details, other servers beside the other counts.
    """
    details = usage.get("completion_tokens_details")
    counts = details if isinstance(details, Mapping) and "reasoning_tokens" in details else usage
    return read_count("reasoning_tokens", counts.get("reasoning_tokens"))


def _read_cached_tokens(usage: Mapping[str, JSON]) -> int | None:
    """Return the number of cached prompt tokens, None if not reported.

    OpenAI has it among the prompt's details.
    """
    details = usage.get("prompt_tokens_details")
    return read_count("cached_tokens", details.get("cached_tokens")) if isinstance(details, Mapping) else None


def _read_index(choice: Mapping[str, JSON]) -> int:
    return read_count("index", choice.get("index")) or 0
