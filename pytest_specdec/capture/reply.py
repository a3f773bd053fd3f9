"""A reply: the server's JSON as an answer's parts, whole or pieced together from a stream's chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.model.answer import Choice, Usage

if TYPE_CHECKING:
    from pytest_specdec.capture.engines.protocol import Steps
    from pytest_specdec.model.workload import JSON

__all__ = ["Reply", "Size", "of_stream", "of_whole", "size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one response says."""

    choices: tuple[Choice, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much one chunk of a stream brings, over all choices."""

    token_ids: int
    characters: int


def of_whole(data: Mapping[str, JSON], steps: Steps | None) -> Reply:
    """Return the reply in an unstreamed body; fields that the server left out stay empty."""
    told = _objects(data.get("choices"))
    choices = tuple(_choice(choice) for choice in told)
    return Reply(
        choices=_with_windows(choices, steps),
        prompt_token_ids=_prompt_ids(data, told),
        usage=_usage(data.get("usage")),
    )


def of_stream(chunks: Sequence[Mapping[str, JSON]], steps: Steps | None, draft_tokens: int) -> Reply:
    """Return the reply that the chunks of a stream add up to.

    Windows come from ``steps``; without them from the chunks' lengths, if none is longer than a verify step can be: ``draft_tokens`` + 1.
    """
    told = [(chunk, _objects(chunk.get("choices"))) for chunk in chunks]
    pieces: dict[int, list[Mapping[str, JSON]]] = {}
    for _, choices in told:
        for choice in choices:
            pieces.setdefault(_index(choice), []).append(choice)
    joined = tuple(_joined(index, parts, draft_tokens) for index, parts in sorted(pieces.items()))
    return Reply(
        choices=_with_windows(joined, steps),
        prompt_token_ids=next((ids for chunk, choices in told if (ids := _prompt_ids(chunk, choices))), ()),
        usage=next((usage for chunk, _ in reversed(told) if (usage := _usage(chunk.get("usage")))), None),
    )


def size(chunk: Mapping[str, JSON]) -> Size:
    """Return how much a chunk brings; an opening role chunk and a closing usage chunk bring nothing."""
    choices = _objects(chunk.get("choices"))
    return Size(
        token_ids=sum(len(_integers(choice.get("token_ids"))) for choice in choices),
        characters=sum(len(_text(choice)) for choice in choices),
    )


def _choice(choice: Mapping[str, JSON]) -> Choice:
    return Choice(
        index=_index(choice),
        text=_text(choice),
        token_ids=_integers(choice.get("token_ids")),
        finish_reason=_word(choice.get("finish_reason")),
        logprobs=_logprobs(choice.get("logprobs")),
    )


def _joined(index: int, parts: Sequence[Mapping[str, JSON]], draft_tokens: int) -> Choice:
    choices = [_choice(part) for part in parts]
    logprobs = [choice.logprobs for choice in choices if choice.logprobs is not None]
    lengths = tuple(len(choice.token_ids) for choice in choices if choice.token_ids)
    plausible = lengths[:1] == (1,) and max(lengths) <= draft_tokens + 1
    return Choice(
        index=index,
        text="".join(choice.text for choice in choices),
        token_ids=tuple(token for choice in choices for token in choice.token_ids),
        finish_reason=next((choice.finish_reason for choice in reversed(choices) if choice.finish_reason), None),
        logprobs=tuple(value for part in logprobs for value in part) if logprobs else None,
        windows=lengths if plausible else None,
    )


def _with_windows(choices: tuple[Choice, ...], steps: Steps | None) -> tuple[Choice, ...]:
    """Take the windows from ``steps`` where they cover the tokens: a step without a draft may have gone uncounted."""
    if steps is None or len(choices) != 1 or sum(steps.windows) < len(choices[0].token_ids):
        return choices
    return (replace(choices[0], windows=steps.windows),)


def _text(choice: Mapping[str, JSON]) -> str:
    for place in ("message", "delta"):
        said = choice.get(place)
        if isinstance(said, Mapping):
            return _word(said.get("content")) or ""
    return _word(choice.get("text")) or ""


def _logprobs(told: JSON) -> tuple[float, ...] | None:
    """Read the completions form (``token_logprobs``) or the chat form (``content[].logprob``)."""
    if not isinstance(told, Mapping):
        return None
    flat = told.get("token_logprobs")
    values = flat if isinstance(flat, Sequence) else [entry.get("logprob") for entry in _objects(told.get("content"))]
    numbers = tuple(float(value) for value in values if isinstance(value, (int, float)))
    return numbers if len(numbers) == len(values) else None


def _prompt_ids(data: Mapping[str, JSON], choices: Sequence[Mapping[str, JSON]]) -> tuple[int, ...]:
    """Read them where chat has them, at the top, or where completions have them, in the choice."""
    return _integers(data.get("prompt_token_ids")) or (_integers(choices[0].get("prompt_token_ids")) if choices else ())


def _usage(told: JSON) -> Usage | None:
    if not isinstance(told, Mapping):
        return None
    prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens")
    return Usage(prompt_tokens=prompt, completion_tokens=completion) if isinstance(prompt, int) and isinstance(completion, int) else None


def _objects(value: JSON) -> list[Mapping[str, JSON]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def _integers(value: JSON) -> tuple[int, ...]:
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, (list, tuple)) else ()


def _word(value: JSON) -> str | None:
    return value if isinstance(value, str) else None


def _index(choice: Mapping[str, JSON]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0
