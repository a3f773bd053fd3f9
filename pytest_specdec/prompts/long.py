"""Long prompts: an eighth, a quarter, a half and the whole of what the server admits, to copy from, to repeat or to go on with.

The text is the documentation of this package, as token ids of the served model, so that prompts have exact lengths. Until the context
limit is known, a prompt is a share of it; :func:`~pytest_specdec.prompts.context.fitted` makes this a number of tokens, and
:func:`write_prompts` puts the text there when a server can make ids of it. A prompt's ending decides what the answer does (:class:`Kind`).
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Need, Request, Route, Workload
from pytest_specdec.prompts.context import fill_request
from pytest_specdec.prompts.open_prompt import LimitShare, TextLength, read_open_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["LIMIT_PARTS", "LONG_CONTEXTS", "MOST_SCORED", "Kind", "copied_text", "kind_of", "limit_part", "write_prompts"]

_ANSWER = 96
"""Tokens of every answer."""
MOST_SCORED = 32_768
"""Tokens of the longest sequence that is scored: the reply lists the log-probabilities of all of them."""
LIMIT_PARTS: Mapping[str, float] = {"eighth": 0.125, "quarter": 0.25, "half": 0.5, "whole": 1.0}
"""Share of the context limit that prompt and answer fill together, by the name with which a request's id begins."""
_PASSAGE, _BEGUN = 160, 32
"""Tokens of the passage, which comes twice at the end of a prompt to copy from, and of its beginning, which comes a third time."""
_PIECE = 4000
"""Characters that a server makes ids of at once: fewer tokens than any context."""
_CHARACTERS = 3
"""Characters counted as a token where no server makes ids: a text then has about as many tokens as asked for, or fewer."""
_RUN = (647, 682, 203)
_RUN_TEXT = "one two three "
"""What is repeated, as token ids of every vocabulary and as a text."""
_MATCHED = 8
"""Last tokens of a prompt by which the text is found that a copy goes on with."""


class Kind(StrEnum):
    """What the answer to a long prompt is to be."""

    COPY = "copy"
    """A passage that stands twice at the end of the prompt and begins a third time."""
    REPEAT = "repeat"
    """A few tokens again and again, as the prompt ends: models do so that copy no passage."""
    CONTINUE = "continue"
    """How the text goes on."""
    SAMPLED = "sampled"
    """The same, drawn at a temperature."""


def _long_request(part: str, kind: Kind, again: str = "") -> Request:
    """Return a request of one kind that fills a part of the limit.

    ``part`` is a key of ``LIMIT_PARTS``. Until the context limit is known, the prompt is a share of the limit and the name of its
    ending. ``again`` ends the id of a request that sends an earlier prompt again.
    """
    ending = Kind.CONTINUE if kind is Kind.SAMPLED else kind
    body: dict[str, JSON] = {
        "prompt": LimitShare(share=LIMIT_PARTS[part], ending=ending.value).as_json,
        "max_tokens": _ANSWER,
        "temperature": 0.8 if kind is Kind.SAMPLED else 0.0,
        "top_p": 1.0,
        "ignore_eos": True,
    }
    return Request(id=f"{part}/{kind}{again}", route=Route.COMPLETIONS, body=body)


_WAVES = (
    tuple(_long_request("eighth", kind) for kind in Kind),
    tuple(_long_request("quarter", kind) for kind in Kind),
    *((_long_request("half", kind),) for kind in (Kind.COPY, Kind.CONTINUE, Kind.SAMPLED)),
    tuple(_long_request("eighth", kind, "-again") for kind in (Kind.COPY, Kind.REPEAT)),
    *((_long_request("whole", kind),) for kind in (Kind.COPY, Kind.CONTINUE, Kind.SAMPLED)),
    (_long_request("half", Kind.COPY, "-again"),),
    tuple(_long_request("eighth", kind, "-at-last") for kind in (Kind.COPY, Kind.REPEAT)),
)
"""What is in flight together: the longest are alone. Earlier prompts are asked again after longer ones."""
LONG_CONTEXTS = Workload(
    name="long-contexts",
    version=1,
    requests=(fill_request("short", prompt_tokens=8), *(request for wave in _WAVES for request in wave)),
    take={Depth.SMOKE: 5, Depth.STANDARD: 14},
    waves=(1, *map(len, _WAVES)),
    concurrency=4,
    stream=True,
    top_tokens=2,
    scored_to=MOST_SCORED,
    deadline_s=900.0,
    needs=Need.LONG_CONTEXT,
)
"""At smoke depth an eighth, at standard depth up to a half, at deep the whole; the shortest are asked again after longer ones."""


def limit_part(request_id: str) -> str:
    """Return the part of the limit that a request fills: ``half`` for ``half/copy``."""
    return request_id.partition("/")[0]


def kind_of(request_id: str) -> str:
    """Return the kind of a request by its id: ``copy`` for ``half/copy``."""
    return request_id.partition("/")[2]


def write_prompts(workload: Workload, text: str, ids_of: Callable[[Request], tuple[int, ...]]) -> Workload:
    """Return ``workload`` with text in place of numbers of tokens.

    Such a number is an open prompt, a TextLength. ``text`` is cut to it, or repeated up to it. ``ids_of`` returns a prompt's ids on the
    server; where it returns none, prompts are texts of about their length. Prompts that are written already, or whose length is unknown,
    stay as they are.
    """
    lengths = {request.id: length for request in workload.requests if isinstance(length := read_open_prompt(request), TextLength)}
    if not lengths:
        return workload
    ids = _token_ids(text, max(length.tokens for length in lengths.values()), ids_of)
    requests = (_write(request, lengths[request.id], text, ids) if request.id in lengths else request for request in workload.requests)
    return replace(workload, requests=tuple(requests))


def _token_ids(text: str, least: int, ids_of: Callable[[Request], tuple[int, ...]]) -> tuple[int, ...]:
    """Return token ids of ``text`` from its start, at least ``least``.

    The text is sent to the server in pieces. There are fewer ids if the text ends, or if the server gives none for a
    piece. If all of several pieces begin with the same id, it is taken for a beginning of sequence, and stays before the
    first piece alone.
    """
    pieces: list[tuple[int, ...]] = []
    for start in range(0, len(text), _PIECE):
        body = {"prompt": text[start : start + _PIECE]}
        ids = ids_of(Request(id=f"text-{start}", route=Route.COMPLETIONS, body=body))
        if not ids:
            break
        pieces.append(ids)
        # Enough for a prompt and the passage to copy, if each piece loses an id, its beginning of sequence.
        if sum(map(len, pieces)) > least + _PASSAGE + len(pieces):
            break
    if not pieces:
        return ()
    has_beginning = len(pieces) > 1 and len({piece[0] for piece in pieces}) == 1
    first, *others = pieces
    # A slice from True leaves out the first id.
    return (*first, *(token for piece in others for token in piece[has_beginning:]))


def _write(request: Request, length: TextLength, text: str, ids: Sequence[int]) -> Request:
    """Return ``request`` with a prompt of the stated length and ending.

    The prompt is exactly so many token ids, taken from ``ids``, those of ``text``. If ``ids`` is empty, since the server gives none, it is
    a text, composed of characters in the same way: ``_CHARACTERS`` of them count as a token.
    """
    kind = Kind(length.ending)
    if ids:
        ending = _end_prompt(ids, kind, repeated=_RUN, items_per_token=1)
        return replace(request, body={**request.body, "prompt": _compose(ids, length.tokens, ending)})
    ending = _end_prompt([*text], kind, repeated=[*_RUN_TEXT], items_per_token=_CHARACTERS)
    characters = _compose([*text], length.tokens * _CHARACTERS, ending)
    return replace(request, body={**request.body, "prompt": "".join(map(str, characters))})


def _end_prompt(text: Sequence[JSON], kind: Kind, *, repeated: Sequence[JSON], items_per_token: int) -> Sequence[JSON]:
    """Return the end of a prompt, which decides what the answer does.

    ``text`` is what passages are taken from, ``repeated`` what an answer is to repeat; the items of both are token ids or characters.
    Empty for the other kinds, whose answers just go on with the text.
    """
    passage, begun = text[: _PASSAGE * items_per_token], text[: _BEGUN * items_per_token]
    if kind is Kind.COPY:
        return [*passage, *passage, *begun]
    if kind is Kind.REPEAT:
        return [*islice(cycle(repeated), (2 * _PASSAGE + _BEGUN) * items_per_token)]  # as long as an ending to copy from
    return []


def _compose(text: Sequence[JSON], length: int, ending: Sequence[JSON]) -> list[JSON]:
    """Return a prompt of ``length`` items that ends with ``ending``.

    Of a longer ending only the last items are used. The text before it begins elsewhere at each length, so that no
    prompt finds that of a shorter one in a prefix cache.
    """
    tail = ending[-length:] if ending else []
    return [*(text[place % len(text)] for place in range(length, 2 * length - len(tail))), *tail]


def copied_text(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the ``count`` tokens of an answer that copies from its prompt.

    The prompt ends with a passage begun again, so that its last ``_MATCHED`` tokens also stand earlier in it. A copy goes on with what
    follows them there. A judge compares answers with it, to see how far they copy. Empty if those tokens stand nowhere earlier.
    """
    tail = tuple(prompt[-_MATCHED:])
    for start in range(len(prompt) - _MATCHED - 1, -1, -1):
        if prompt[start] == tail[0] and tuple(prompt[start : start + _MATCHED]) == tail:
            return tuple(islice(cycle(prompt[start + _MATCHED :]), count))  # at the prompt's end the copy reaches itself, and repeats
    return ()
