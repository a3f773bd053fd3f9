"""Shrinking: the smallest requests that still show a fault."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_specdec.model.workload import JSON, Request

__all__ = ["minimise", "shrink"]

T = TypeVar("T")
Groups = tuple[tuple["Request", ...], ...]
"""Requests to be in flight together, group after group."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_PROMPT = {"prompt", "messages", *_LIMITS}
_STAYING = {*_PROMPT, "temperature", "seed"}
"""Fields that stay: without these an answer may differ by chance."""


def minimise(items: Sequence[T], shows: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Return a part of ``items`` that shows the fault, and of which no single item can be left out.

    ``shows`` says whether a part of them, in their order, shows the fault; all of them do. The algorithm is ddmin
    (Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002). It asks at most n^2 + 3n times
    for n items, and about 2 log2 n times if one of them is enough.
    """
    current = tuple(items)
    if not current or shows(()):
        return ()
    parts = 2
    while len(current) > 1:
        cuts = [len(current) * part // parts for part in range(parts + 1)]
        spans = list(pairwise(cuts))
        subsets = [current[start:end] for start, end in spans]
        complements = [current[:start] + current[end:] for start, end in spans] if parts > 2 else []  # noqa: PLR2004 - of halves they are the subsets
        smaller = next((part for part in (*subsets, *complements) if shows(part)), None)
        if smaller is not None:
            parts = 2 if smaller in subsets else max(2, parts - 1)
            current = smaller
        elif parts < len(current):
            parts = min(len(current), 2 * parts)
        else:
            break
    return current


def shrink(groups: Groups, own: Request, shows: Callable[[Groups, Request], bool]) -> tuple[Groups, Request]:
    """Return the smallest groups that still show the fault of ``own``, a request of the last group, and what became of it.

    In turn: earlier groups, requests beside it, its token limit, its parameters, the parameters of those beside it,
    the words of its prompt, and the limit once more.
    """
    earlier, last = groups[:-1], groups[-1]
    earlier = minimise(earlier, lambda kept: shows((*kept, last), own))
    beside = minimise(_other_requests(last, own), lambda kept: shows((*earlier, _keep_requests(last, own, kept)), own))
    last = _keep_requests(last, own, beside)

    def is_enough(changed: Request) -> bool:
        return shows((*earlier, _replace_request(last, own, changed)), changed)

    smaller = _shrink_limit(own, is_enough)
    smaller = _shrink_parameters(smaller, is_enough)
    last, own = _replace_request(last, own, smaller), smaller
    for other in _other_requests(last, own):
        last = _replace_request(last, other, _shrink_parameters(other, _neighbour_check(earlier, last, own, other, shows)))
    smaller = _shrink_limit(_shrink_prompt(own, is_enough), is_enough)
    return (*earlier, _replace_request(last, own, smaller)), smaller


def _neighbour_check(
    earlier: Groups, last: tuple[Request, ...], own: Request, other: Request, shows: Callable[[Groups, Request], bool]
) -> Callable[[Request], bool]:
    """Return a check whether ``own`` still shows the fault with another request in the place of ``other``."""
    return lambda changed: shows((*earlier, _replace_request(last, other, changed)), own)


def _other_requests(group: tuple[Request, ...], own: Request) -> tuple[Request, ...]:
    return tuple(request for request in group if request is not own)


def _keep_requests(group: tuple[Request, ...], own: Request, kept: Sequence[Request]) -> tuple[Request, ...]:
    """Return ``own`` and ``kept`` in the order of ``group``."""
    return tuple(request for request in group if request is own or request in kept)


def _replace_request(group: tuple[Request, ...], old: Request, new: Request) -> tuple[Request, ...]:
    return tuple(new if request is old else request for request in group)


def _with_body(request: Request, **fields: JSON) -> Request:
    return replace(request, body={**request.body, **fields})


def _shrink_limit(request: Request, is_enough: Callable[[Request], bool]) -> Request:
    """Return the request with the smallest token limit that bisection finds."""
    name = next((name for name in _LIMITS if isinstance(request.body.get(name), int)), None)
    if name is None:
        return request
    low, high, smallest = 1, int(str(request.body[name])), request
    while low < high:
        middle = (low + high) // 2
        candidate = _with_body(request, **{name: middle})
        if is_enough(candidate):
            high, smallest = middle, candidate
        else:
            low = middle + 1
    return smallest


def _shrink_parameters(request: Request, is_enough: Callable[[Request], bool]) -> Request:
    """Return the request with the parameters that it cannot do without."""
    names = [name for name in request.body if name not in _STAYING]

    def keep(kept: Sequence[str]) -> Request:
        return replace(request, body={name: value for name, value in request.body.items() if name in _STAYING or name in kept})

    return keep(minimise(names, lambda kept: is_enough(keep(kept))))


def _shrink_prompt(request: Request, is_enough: Callable[[Request], bool]) -> Request:
    """Return the request with the words, or the token ids, of its prompt that it cannot do without.

    Of a chat the last message is shrunk.
    """
    prompt, messages = request.body.get("prompt"), request.body.get("messages")
    if isinstance(prompt, str):
        return _shrink_words(prompt, lambda text: _with_body(request, prompt=text), is_enough)
    if isinstance(prompt, (list, tuple)):
        ids = minimise(prompt, lambda kept: bool(kept) and is_enough(_with_body(request, prompt=list(kept))))
        return _with_body(request, prompt=list(ids))
    if isinstance(messages, (list, tuple)) and messages and isinstance(last := messages[-1], dict) and isinstance(last.get("content"), str):
        others = list(messages[:-1])
        return _shrink_words(
            str(last["content"]), lambda text: _with_body(request, messages=[*others, {**last, "content": text}]), is_enough
        )
    return request


def _shrink_words(text: str, put: Callable[[str], Request], is_enough: Callable[[Request], bool]) -> Request:
    words = re.findall(r"\s*\S+\s*$|\s*\S+", text)
    return put("".join(minimise(words, lambda kept: bool(kept) and is_enough(put("".join(kept))))))
