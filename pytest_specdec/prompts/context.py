"""Requests at the ends of contexts: prompts of exact lengths as token ids, answers that run up to the limit and one token beyond.

Where the config states the limit, :func:`fitted` puts the numbers in when a run is planned; else when the
servers have reported theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = [
    "EDGES",
    "LIMITED",
    "LONG",
    "SHORTEST_LIMIT",
    "fill_request",
    "fitted",
    "is_open",
    "long_prompt",
    "prompt_length",
    "scored_prompt_tokens",
]

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
_LONG_PROMPT = 1024
"""Tokens of a prompt from which on reading it takes about as long as answering."""
SHORTEST_LIMIT = 2048
"""Tokens of a context up to which no parts of it are asked for: what goes up to its end is enough."""


def fill_request(what: str, *, below: int = 0, prompt: int = 0, most: int = _ANSWER, above: int = 0) -> Request:
    """Return a request with a prompt of an exact length; ``what`` is its id.

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
        fill_request("limit-less-1", below=1),
        fill_request("prompt-129", prompt=129),
        fill_request("limit-less-2", below=2),
        fill_request("short", prompt=8),
        *(fill_request(f"prompt-{length}", prompt=length) for length in (31, 64, 128, 512)),
        fill_request("limit-less-5", below=5),
        *(fill_request(f"{_FULL}{most}", most=most) for most in (24, 23, 22)),
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
        fill_request("limit-exact"),
        fill_request("limit-plus-1", above=1),
        fill_request("limit-one-token", most=1),
        fill_request("limit-two-tokens", most=2),
        fill_request("limit-four-tokens", most=4),
        fill_request("limit-no-room", most=1, above=1),
        fill_request("short", prompt=8),
    ),
    take={Depth.SMOKE: 2},
    concurrency=4,
    scored=False,
)
"""Answers that end at the limit, requests one token beyond it, and one far from it that must not suffer."""


def is_open(workload: Workload) -> bool:
    """Return True if a prompt is still given as a length."""
    return any(isinstance(request.body.get("prompt"), int | Mapping) for request in workload.requests)


def prompt_length(request: Request) -> int:
    """Return a prompt's length in tokens, as far as known.

    It is known of token ids and of a number of them. Returns 0 for a text, for messages, and for a length that depends on
    an unknown limit.
    """
    prompt = request.body.get("prompt")
    if prompt is None or isinstance(prompt, str):
        return 0
    if isinstance(prompt, Mapping):
        prompt = prompt.get("tokens", 0)
    if isinstance(prompt, Sequence):
        return len(prompt)
    return prompt if isinstance(prompt, int) else 0


def long_prompt(request: Request) -> int:
    """Return a long prompt's length in tokens, 0 for others.

    A prompt is long from ``_LONG_PROMPT`` tokens on: an estimate of a run's time leaves shorter ones out.
    """
    length = prompt_length(request)
    return length if length >= _LONG_PROMPT else 0


def scored_prompt_tokens(workload: Workload) -> int:
    """Return the tokens of long prompts that scoring reads again.

    A prompt is left out if it and its longest answer have more than ``workload.scored_to`` tokens.
    """
    most = workload.scored_to
    scored = [request for request in workload.requests if most is None or prompt_length(request) + (request.token_limit or 0) <= most]
    return sum(map(long_prompt, scored))


def fitted(workload: Workload, limit: int | None) -> Workload:
    """Return ``workload`` with prompts of token ids in place of lengths.

    ``limit`` is the longest context in tokens, None if unknown. A request is left out if its length depends on a limit that is unknown,
    too high to fill or too low for fractions of it, or if its prompt and answer do not fit. Answers that end at the limit have
    repetitive prompts, so that they are drafted up to it. A length stated as a fraction of the limit becomes a number of tokens, and
    :func:`write_prompts` of prompts/long.py puts text there later.
    """
    lengths = {request.id: _fitted_length(request, limit) for request in workload.requests}
    fitting_requests = [request for request in workload.requests if lengths[request.id] != 0]
    requests = tuple(_with_prompt(request, lengths[request.id], _words_of(request, scored=workload.scored)) for request in fitting_requests)
    return replace(workload, requests=requests)


def _words_of(request: Request, *, scored: bool) -> Sequence[int]:
    """Return the token ids that a prompt repeats.

    They are ``_WORDS`` if the workload is scored, else ``_RUN``. Answers that end at the limit always have ``_RUN``,
    from another start for another token limit, since equal sequences would show equal noise.
    """
    if not request.id.startswith(_FULL):
        return _WORDS if scored else _RUN
    start = (request.token_limit or 0) % len(_RUN)
    return (*_RUN[start:], *_RUN[:start])


def _fitted_length(request: Request, limit: int | None) -> int | None:
    """Return the length of a request's prompt in tokens.

    None if the prompt is filled in already, or waits for its text alone. 0 if the request is to be left out: its length
    does not fit into the limit, or depends on a limit that is unknown. A length stated as tokens below the limit needs a
    limit up to ``_MOST_FILLED``; one stated as a fraction of the limit needs a limit above ``SHORTEST_LIMIT``.
    """
    prompt = request.body.get("prompt")
    if isinstance(prompt, int):
        return prompt if limit is None or prompt + _ANSWER < limit else 0
    if isinstance(prompt, Mapping) and "of_limit" in prompt:
        fraction = prompt["of_limit"]
        assert isinstance(fraction, float)
        return int(limit * fraction) - (request.token_limit or 0) if limit is not None and limit > SHORTEST_LIMIT else 0
    if isinstance(prompt, Mapping) and "tokens" not in prompt:
        below = prompt["below_limit"]
        assert isinstance(below, int)
        return max(0, limit - below) if limit is not None and limit <= _MOST_FILLED else 0
    return None


def _with_prompt(request: Request, length: int | None, words: Sequence[int]) -> Request:
    """Return the request with a prompt of ``length`` tokens.

    The prompt repeats the token ids ``words``. One stated as a fraction of the limit gets ``length`` in place of the fraction and keeps its
    ending; its text comes later (prompts/long.py). The request is unchanged if ``length`` is None.
    """
    prompt = request.body.get("prompt")
    if length is None:
        return request
    filled: JSON = list(islice(cycle(words), length))
    if isinstance(prompt, Mapping) and "of_limit" in prompt:
        filled = {"tokens": length, "ending": prompt["ending"]}
    return replace(request, body={**request.body, "prompt": filled})
