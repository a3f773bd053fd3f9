"""Requests at the ends of contexts: prompts of exact lengths as token ids, answers that run up to the limit and one token beyond.

Where the config states the limit, :func:`fitted` puts the numbers in when a run is planned; else when the
servers have reported theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["EDGES", "LIMITED", "LONG", "fitted", "is_open"]

LIMITED = "limit-"
"""How the ids begin of requests whose length follows from the limit."""

_WORDS = (307, 451, 389, 512, 640, 333, 478, 395)
"""Token ids of every vocabulary, again and again."""
_RUN = (647, 682, 203)
"""The same, fewer: an answer that goes on as its prompt began is drafted to its end."""
_ANSWER = 24
_FULL = f"{LIMITED}full-"
"""How the ids begin of scored requests whose answer ends at the limit, drafted to its last token."""
_MOST_FILLED = 8192
"""Tokens of the longest context that is filled."""


def _fill_request(what: str, *, below: int = 0, prompt: int = 0, most: int = _ANSWER, above: int = 0) -> Request:
    """Return a request with a prompt of an exact length.

    :func:`fitted` replaces the length by token ids. The prompt has ``prompt`` tokens. Without ``prompt`` its length
    follows from the context limit: an answer of ``most`` tokens then ends ``below`` tokens before the limit, or
    ``above`` tokens beyond it.
    """
    length: JSON = prompt or {"below_limit": most + below - above}
    body: dict[str, JSON] = {"prompt": length, "max_tokens": most, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    return Request(id=what, route=Route.COMPLETIONS, body=body)


LONG = Workload(
    name="long",
    version=2,
    requests=(
        _fill_request("limit-less-1", below=1),
        _fill_request("prompt-129", prompt=129),
        _fill_request("limit-less-2", below=2),
        _fill_request("short", prompt=8),
        *(_fill_request(f"prompt-{length}", prompt=length) for length in (31, 64, 128, 512)),
        _fill_request("limit-less-5", below=5),
        *(_fill_request(f"{_FULL}{most}", most=most) for most in (24, 23, 22)),
    ),
    take={Depth.SMOKE: 2},
    concurrency=4,
    top_tokens=5,
)
"""Answers that end before the limit or at it, every token of which is scored."""
EDGES = Workload(
    name="edges",
    version=1,
    requests=(
        _fill_request("limit-exact"),
        _fill_request("limit-plus-1", above=1),
        _fill_request("limit-one-token", most=1),
        _fill_request("limit-two-tokens", most=2),
        _fill_request("limit-four-tokens", most=4),
        _fill_request("limit-no-room", most=1, above=1),
        _fill_request("short", prompt=8),
    ),
    take={Depth.SMOKE: 2},
    concurrency=4,
    scored=False,
)
"""Answers that end at the limit, requests one token beyond it, and one far from it that must not suffer."""


def is_open(workload: Workload) -> bool:
    """Return True if a prompt is still given as a length."""
    return any(isinstance(request.body.get("prompt"), int | Mapping) for request in workload.requests)


def fitted(workload: Workload, limit: int | None) -> Workload:
    """Return ``workload`` with prompts of token ids in place of lengths.

    ``limit`` is the longest context in tokens, None if unknown. A request is left out if its length depends on an
    unknown limit or on a context too long to fill, or if its prompt and answer do not fit. Answers that end at the
    limit have repetitive prompts, so that they are drafted up to it.
    """
    lengths = {request.id: _prompt_length(request.body.get("prompt"), limit) for request in workload.requests}
    kept = [request for request in workload.requests if lengths[request.id] != 0]
    requests = tuple(_with_prompt(request, lengths[request.id], _words_of(request, scored=workload.scored)) for request in kept)
    return replace(workload, requests=requests)


def _words_of(request: Request, *, scored: bool) -> Sequence[int]:
    """Return the token ids that a prompt repeats.

    Scored answers that end at the limit each begin at another of them: equal sequences would show equal noise, and no more than one.
    """
    if not request.id.startswith(_FULL):
        return _WORDS if scored else _RUN
    start = (request.token_limit or 0) % len(_RUN)
    return (*_RUN[start:], *_RUN[:start])


def _prompt_length(prompt: JSON, limit: int | None) -> int | None:
    """Return the length of a request's prompt in tokens.

    None if the prompt is filled in already, and 0 if the request is to be left out: its length does not fit into the
    limit, or depends on a limit that is unknown or above ``_MOST_FILLED``.
    """
    if isinstance(prompt, int):
        return prompt if limit is None or prompt + _ANSWER < limit else 0
    if isinstance(prompt, Mapping):
        below = prompt["below_limit"]
        assert isinstance(below, int)
        return max(0, limit - below) if limit is not None and limit <= _MOST_FILLED else 0
    return None


def _with_prompt(request: Request, length: int | None, words: Sequence[int]) -> Request:
    return request if length is None else replace(request, body={**request.body, "prompt": list(islice(cycle(words), length))})
