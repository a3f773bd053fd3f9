"""Requests at the ends of contexts: prompts of exact lengths as token ids, answers that run up to the limit and one token beyond.

The limit is the longest context of a server in tokens. Until it is known, a request has an open prompt in place of token ids: a number of
tokens, or a distance from the limit or a share of it. :func:`fitted` replaces it when a run is planned, if the config states the limit,
else when the servers have reported theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts.open_prompt import BelowLimit, LimitShare, TextLength, TokenCount, read_open_prompt

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


def fill_request(request_id: str, *, below: int = 0, prompt_tokens: int = 0, most: int = _ANSWER, above: int = 0) -> Request:
    """Return a request with an open prompt of an exact length.

    :func:`fitted` replaces the length by token ids. The prompt has ``prompt_tokens`` tokens. If that is 0, its length
    follows from the context limit: an answer of ``most`` tokens then ends ``below`` tokens before the limit, or
    ``above`` tokens beyond it.
    """
    open_prompt = TokenCount(tokens=prompt_tokens) if prompt_tokens else BelowLimit(tokens=most + below - above)
    body: dict[str, JSON] = {"prompt": open_prompt.as_json, "max_tokens": most, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    return Request(id=request_id, route=Route.COMPLETIONS, body=body)


LONG = Workload(
    name="long",
    version=2,
    requests=(
        fill_request("limit-less-1", below=1),
        fill_request("prompt-129", prompt_tokens=129),
        fill_request("limit-less-2", below=2),
        fill_request("short", prompt_tokens=8),
        *(fill_request(f"prompt-{length}", prompt_tokens=length) for length in (31, 64, 128, 512)),
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
        fill_request("short", prompt_tokens=8),
    ),
    take={Depth.SMOKE: 2},
    concurrency=4,
    scored=False,
)
"""Answers that end at the limit, requests one token beyond it, and one far from it that must not suffer."""


def is_open(workload: Workload) -> bool:
    """Return True if a prompt is still given as a length."""
    return any(read_open_prompt(request) is not None for request in workload.requests)


def prompt_length(request: Request) -> int:
    """Return a prompt's length in tokens, as far as known.

    It is known of token ids and of a number of them. Returns 0 for a text, for messages, and for a length that depends on
    an unknown limit.
    """
    open_prompt = read_open_prompt(request)
    if isinstance(open_prompt, TokenCount | TextLength):
        return open_prompt.tokens
    prompt = request.body.get("prompt")
    return len(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else 0


def long_prompt(request: Request) -> int:
    """Return the length of a long prompt in tokens, 0 for others.

    A prompt is long from ``_LONG_PROMPT`` tokens on, as reading it then takes about as long as answering. An estimate of a
    run's time leaves shorter ones out.
    """
    length = prompt_length(request)
    return length if length >= _LONG_PROMPT else 0


def scored_prompt_tokens(workload: Workload) -> int:
    """Return the tokens of long prompts that scoring reads again.

    Scoring sends a prompt with its answer to get the probability of each token. A prompt is left out if it and its longest
    answer have more than ``workload.scored_to`` tokens (no limit if None).
    """
    most = workload.scored_to
    scored = [request for request in workload.requests if most is None or prompt_length(request) + (request.token_limit or 0) <= most]
    # The number serves to estimate times, so that prompts count 0 here if they are short and soon read.
    return sum(long_prompt(request) for request in scored)


def fitted(workload: Workload, limit: int | None) -> Workload:
    """Return ``workload`` with prompts of token ids in place of lengths.

    ``limit`` is the longest context in tokens, None if unknown. A request is left out if its length depends on a limit that is unknown,
    too high to fill or too low for shares of it, or if its prompt and answer do not fit. Answers that end at the limit have
    repetitive prompts, so that they are drafted up to it. A length stated as a share of the limit becomes a number of tokens, and
    :func:`write_prompts` of prompts/long.py puts text there later.
    """
    requests = (_fit(request, limit, scored=workload.scored) for request in workload.requests)
    return replace(workload, requests=tuple(request for request in requests if request is not None))


def _fit(request: Request, limit: int | None, *, scored: bool) -> Request | None:
    """Return ``request`` with a prompt that fits into the limit.

    An open prompt becomes token ids; one stated as a share of the limit becomes a TextLength, a number of tokens of a text that is
    put in later. The request is unchanged if its prompt is not open or is a TextLength already. None if the request is to be left
    out. ``scored`` is True if the answers of its workload are scored.
    """
    open_prompt = read_open_prompt(request)
    if open_prompt is None or isinstance(open_prompt, TextLength):
        return request
    length = _length_within(open_prompt, limit, request.token_limit or 0)
    if length == 0:
        return None
    if isinstance(open_prompt, LimitShare):
        prompt = TextLength(tokens=length, ending=open_prompt.ending).as_json
    else:
        prompt = list(islice(cycle(_words_of(request, scored=scored)), length))
    return replace(request, body={**request.body, "prompt": prompt})


def _length_within(open_prompt: TokenCount | BelowLimit | LimitShare, limit: int | None, answer_tokens: int) -> int:
    """Return the length of an open prompt in tokens under a limit.

    0 if it does not fit into the limit, or depends on a limit that is unknown. A distance from the limit also needs a limit of at
    most ``_MOST_FILLED`` tokens, the longest context that is filled. A share of the limit, which prompt and answer fill together,
    needs one above ``SHORTEST_LIMIT``: in shorter contexts the prompts up to the limit are enough.
    """
    if isinstance(open_prompt, TokenCount):
        # All requests with a fixed length have answers of so many tokens.
        return open_prompt.tokens if limit is None or open_prompt.tokens + _ANSWER < limit else 0
    if limit is None:
        return 0
    if isinstance(open_prompt, BelowLimit):
        return max(0, limit - open_prompt.tokens) if limit <= _MOST_FILLED else 0
    return int(limit * open_prompt.share) - answer_tokens if limit > SHORTEST_LIMIT else 0


def _words_of(request: Request, *, scored: bool) -> Sequence[int]:
    """Return the token ids that a request's prompt repeats.

    They are ``_WORDS`` if its workload is scored, else ``_RUN``, which is so short that the answer repeats it and is drafted to its
    end. Requests whose answers are scored and end at the limit (``_FULL``) have ``_RUN`` too, from another start for another token
    limit: equal sequences would show equal noise.
    """
    if not request.id.startswith(_FULL):
        return _WORDS if scored else _RUN
    start = (request.token_limit or 0) % len(_RUN)
    return (*_RUN[start:], *_RUN[:start])
