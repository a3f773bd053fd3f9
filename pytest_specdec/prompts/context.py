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

    ``limit`` is the longest context in tokens, None if unknown. A request is left out if its prompt and answer do not fit, or if no length
    follows from the limit (:func:`_length_within`). A length stated as a share of the limit becomes a number of tokens, and
    :func:`write_prompts` of prompts/long.py puts text there later.
    """
    # Prompts repeat some token ids; which ones depends on whether the answers are scored.
    requests = (_fit(request, limit, scored=workload.scored) for request in workload.requests)
    return replace(workload, requests=tuple(request for request in requests if request is not None))


def _fit(request: Request, limit: int | None, *, scored: bool) -> Request | None:
    """Return ``request`` with a prompt that fits into the limit.

    An open prompt becomes token ids, or a TextLength if it is stated as a share of the limit. None if the request is to be left out.
    ``scored`` is True if the answers of its workload are scored: :func:`_words_of` chooses the token ids by it.
    """
    open_prompt = read_open_prompt(request)
    if open_prompt is None or isinstance(open_prompt, TextLength):
        return request  # its length is settled: the text for a TextLength is put in later
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

    0 if the request is to be left out: its prompt does not fit, or depends on a limit that is unknown or not suited to it.
    ``answer_tokens`` is the most tokens of its answer.
    """
    if isinstance(open_prompt, TokenCount):
        # All requests with a fixed length have answers of _ANSWER tokens.
        is_below_limit = limit is None or open_prompt.tokens + _ANSWER < limit
        return open_prompt.tokens if is_below_limit else 0
    if limit is None:
        return 0
    if isinstance(open_prompt, BelowLimit):
        if limit > _MOST_FILLED:
            return 0  # no longer context is filled
        return max(0, limit - open_prompt.tokens)
    # A share of the limit, which prompt and answer fill together.
    if limit <= SHORTEST_LIMIT:
        return 0  # in so short a context the prompts up to the limit are enough
    return int(limit * open_prompt.share) - answer_tokens


def _words_of(request: Request, *, scored: bool) -> Sequence[int]:
    """Return the token ids that a request's prompt repeats.

    ``scored`` is True if the answers of its workload are scored. The three ids of ``_RUN`` are so few that an answer goes on repeating
    them: it is then drafted to its last token, as is wanted of answers that end at the limit.
    """
    if request.id.startswith(_FULL):  # scored, and ends at the limit
        # Each token limit has another start, since the scores of two equal sequences would show the same noise twice.
        start = (request.token_limit or 0) % len(_RUN)
        return (*_RUN[start:], *_RUN[:start])
    return _WORDS if scored else _RUN
