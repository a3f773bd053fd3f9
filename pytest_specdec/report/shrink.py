"""Shrinking: the smallest requests that still show a fault.

Groups of requests are sent one after another, those of a group in flight together. The wrong request, one with a wrong answer, is in the
last group. Each trial sends a smaller form of all this to live servers.
"""

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
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_PROMPT = {"prompt", "messages", "input", "instructions", *_LIMITS}
"""Prompts and limits, which are shrunk in another way than parameters."""
_STAYING = {*_PROMPT, "temperature", "seed"}
"""Fields that stay when parameters are left out: without temperature and seed an answer may differ by chance."""


def minimise(items: Sequence[T], shows: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Return a minimal part of ``items`` still showing the fault.

    No single item of the result can be left out; it is empty if the fault shows without any. ``shows`` returns True if the given items, in
    their order, show the fault; all items together have to. The algorithm is ddmin (Zeller and Hildebrandt, Simplifying and isolating
    failure-inducing input, 2002). It calls ``shows`` at most n^2 + 3n times for n items, and about 2 log2 n times if one item is enough.
    """
    current = tuple(items)
    if not current or shows(()):
        return ()
    parts = 2  # of about equal length; more of them if neither a part nor the rest without one shows the fault
    while len(current) > 1:
        cuts = [len(current) * part // parts for part in range(parts + 1)]
        spans = list(pairwise(cuts))
        subsets = [current[start:end] for start, end in spans]
        complements = [current[:start] + current[end:] for start, end in spans] if parts > 2 else []  # noqa: PLR2004 - of halves they are the subsets
        smaller = next((part for part in (*subsets, *complements) if shows(part)), None)
        if smaller is not None:
            parts = 2 if smaller in subsets else max(2, parts - 1)  # a rest keeps its division, with one part fewer
            current = smaller
        elif parts < len(current):
            parts = min(len(current), 2 * parts)
        else:
            break
    return current


def shrink(groups: Groups, wrong: Request, shows: Callable[[Groups, Request], bool]) -> tuple[Groups, Request]:
    """Return the smallest groups still showing the fault, and the request.

    ``wrong`` is the request with the wrong answer, in the last group; its smaller form is returned. ``shows`` gets groups and that form,
    and returns True if the fault still shows. Left out or lowered are, in turn: earlier groups, requests beside ``wrong``, its token
    limit, its parameters, the parameters of the requests beside it, the words of its prompt, and the limit once more.
    """
    earlier, last = groups[:-1], groups[-1]
    earlier = minimise(earlier, lambda part: shows((*part, last), wrong))
    beside = minimise(_other_requests(last, wrong), lambda part: shows((*earlier, _keep_requests(last, wrong, part)), wrong))
    last = _keep_requests(last, wrong, beside)
    still_shows = _wrong_check(earlier, last, wrong, shows)
    smaller = _shrink_parameters(_shrink_limit(wrong, still_shows), still_shows)
    last, wrong = _replace_request(last, wrong, smaller), smaller
    for other in _other_requests(last, wrong):
        last = _replace_request(last, other, _shrink_parameters(other, _neighbour_check(earlier, last, wrong, other, shows)))
    still_shows = _wrong_check(earlier, last, wrong, shows)
    smaller = _shrink_limit(_shrink_prompt(wrong, still_shows), still_shows)
    return (*earlier, _replace_request(last, wrong, smaller)), smaller


def _wrong_check(
    earlier: Groups, last: tuple[Request, ...], wrong: Request, shows: Callable[[Groups, Request], bool]
) -> Callable[[Request], bool]:
    """Return a check of other forms of ``wrong``, among these groups.

    The check takes a form of the request, puts it in the place of ``wrong``, and returns True if it still shows the fault.
    """
    return lambda changed: shows((*earlier, _replace_request(last, wrong, changed)), changed)


def _neighbour_check(
    earlier: Groups, last: tuple[Request, ...], wrong: Request, other: Request, shows: Callable[[Groups, Request], bool]
) -> Callable[[Request], bool]:
    """Return a check of other forms of ``other``, a request beside ``wrong``.

    The check takes a form of that request, puts it in its place, and returns True if ``wrong`` still shows the fault.
    """
    return lambda changed: shows((*earlier, _replace_request(last, other, changed)), wrong)


def _other_requests(group: tuple[Request, ...], wrong: Request) -> tuple[Request, ...]:
    return tuple(request for request in group if request is not wrong)


def _keep_requests(group: tuple[Request, ...], wrong: Request, others: Sequence[Request]) -> tuple[Request, ...]:
    """Return ``wrong`` and ``others`` in the order of ``group``."""
    return tuple(request for request in group if request is wrong or request in others)


def _replace_request(group: tuple[Request, ...], old: Request, new: Request) -> tuple[Request, ...]:
    return tuple(new if request is old else request for request in group)


def _with_body(request: Request, **fields: JSON) -> Request:
    return replace(request, body={**request.body, **fields})


def _shrink_limit(request: Request, still_shows: Callable[[Request], bool]) -> Request:
    """Return the request with its token limit lowered by bisection.

    ``still_shows`` returns True if a changed request still shows the fault. A request without a limit is returned as it is.
    """
    name = next((name for name in _LIMITS if isinstance(request.body.get(name), int)), None)
    if name is None:
        return request
    low, high, smallest = 1, int(str(request.body[name])), request  # str() for the type checker alone
    while low < high:
        middle = (low + high) // 2
        candidate = _with_body(request, **{name: middle})
        if still_shows(candidate):
            high, smallest = middle, candidate
        else:
            low = middle + 1
    return smallest


def _shrink_parameters(request: Request, still_shows: Callable[[Request], bool]) -> Request:
    """Return the request with only the parameters needed for the fault.

    The fields in :data:`_STAYING` always stay. ``still_shows`` returns True if a changed request still shows the fault.
    """
    names = [name for name in request.body if name not in _STAYING]

    def keep(part: Sequence[str]) -> Request:
        return replace(request, body={name: value for name, value in request.body.items() if name in _STAYING or name in part})

    return keep(minimise(names, lambda part: still_shows(keep(part))))


def _shrink_prompt(request: Request, still_shows: Callable[[Request], bool]) -> Request:
    """Return the request with its prompt cut to the needed words.

    A prompt of token ids is cut to the needed ids, and of a conversation only the last message is cut. ``still_shows`` returns True if a
    changed request still shows the fault. A prompt of another form stays as it is.
    """
    name = next((name for name in ("prompt", "messages", "input") if name in request.body), "")
    prompt = request.body.get(name)
    if isinstance(prompt, str):
        return _shrink_words(prompt, lambda text: _with_body(request, **{name: text}), still_shows)
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return request
    *others, last = prompt
    if isinstance(last, int):
        ids = minimise(prompt, lambda part: bool(part) and still_shows(_with_body(request, **{name: list(part)})))
        return _with_body(request, **{name: list(ids)})
    if isinstance(last, dict) and isinstance(content := last.get("content"), str):
        return _shrink_words(content, lambda text: _with_body(request, **{name: [*others, {**last, "content": text}]}), still_shows)
    return request


def _shrink_words(text: str, put: Callable[[str], Request], still_shows: Callable[[Request], bool]) -> Request:
    """Return the request with only the words of ``text`` needed for the fault.

    ``put`` returns the request with another text in its place. At least one word stays.
    """
    words = re.findall(r"\s*\S+\s*$|\s*\S+", text)  # with the blanks before them, and after the last one
    return put("".join(minimise(words, lambda part: bool(part) and still_shows(put("".join(part))))))
