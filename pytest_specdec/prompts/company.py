"""Concurrent requests: many kinds alone, then in groups of one to 32, and together with clients that leave.

A kind is a set of sampling parameters and formats, such as ``grammar`` or ``seeded``. A wave is the requests that are sent at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts import schemas
from pytest_specdec.prompts.prompts import reporting_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import Prompt, Prompts

__all__ = ["CompanyWave", "company", "marker"]

_WORDS: Final = (
    *("quorvex", "blintag", "zumdroy", "fiskelm", "wopjarn", "throzin", "gelbuxy", "navqort"),
    *("sprulmo", "hydrake", "jexpond", "cralvim", "ombrisk", "dulfenz", "yarvolt", "pikzant"),
)
_ENDINGS: Final = ("ano", "ith", "ull", "okt", "emi", "ard", "usk", "ype")
_LEAVES_AFTER: Final = (2, 4)
"""Chunks that a client reads which leaves before the end."""

_KINDS: Mapping[str, Mapping[str, JSON]] = {
    "plain": {"temperature": 0.0, "max_tokens": 32},
    "short": {"temperature": 0.0, "max_tokens": 8},
    "long": {"temperature": 0.0, "max_tokens": 64},
    "penalised": {"temperature": 0.0, "max_tokens": 32, "presence_penalty": 1.5, "frequency_penalty": 1.0},
    "logprobs": {"temperature": 0.0, "max_tokens": 24},
    "grammar": {"temperature": 0.0, "max_tokens": 32, "response_format": schemas.ANY_OBJECT},
    "sampled": {"temperature": 1.5, "max_tokens": 32},
    "seeded": {"temperature": 1.5, "max_tokens": 32, "seed": 0},
    "leaving": {"temperature": 0.0, "max_tokens": 64},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyWave:
    """Requests that are sent at once."""

    kinds: tuple[str, ...]
    """One per request, as _KINDS has them."""


def _wave(*kinds: str) -> CompanyWave:
    return CompanyWave(kinds=kinds)


_EVERY: Final = ("plain", "penalised", "plain", "seeded", "logprobs", "grammar", "short", "long")
_UNSEEDED: Final = tuple("sampled" if kind == "seeded" else kind for kind in _EVERY)
"""So that a grammar does not always run together with a seed: errors with the one can be separated from errors with the other."""
_ALONE: Final = ("plain", "long", "penalised", "plain")

_WAVES: Final = (
    *(_wave(kind) for kind in _ALONE),
    _wave("plain", "plain", "long"),
    _wave(*_EVERY),
    # From here on not at smoke depth.
    _wave("plain", "plain"),
    _wave("plain", "short", "logprobs", "long"),
    _wave("sampled", "short", "sampled", "plain", "sampled"),  # whichever is first in the batch, it is soon one that is sampled
    _wave("plain", "penalised", "plain", "penalised", "plain"),
    _wave(*_UNSEEDED, *_UNSEEDED),
    _wave("plain", "leaving", "long", "leaving", "plain", "long"),
    _wave("plain", "long", "plain"),
    _wave(*["plain"] * 12),  # all of one length: a larger group with ends at several lengths is seldom of twelve to fifteen
    # From here on at deep depth only.
    *(_wave(*(("plain", "long", "short") * size)[:size]) for size in (5, 6, 7)),
    _wave("long", "leaving", "leaving", "plain", "leaving", "long"),
    _wave("plain", "long", "plain"),
    _wave(*_EVERY * 4),
)
_SMOKE, _STANDARD = 15, 68
"""Requests of the waves up to the two comments above."""


def marker(index: int) -> str:
    """Return the marker word of request ``index``, unique in the workload.

    The request's prompt begins with it. It is an invented word, which no answer has unless its own prompt or a mixed-up request brings it.
    Empty if ``index`` is beyond the last pair of a word and an ending.
    """
    if index >= len(_WORDS) * len(_ENDINGS):
        return ""
    return _WORDS[index % len(_WORDS)] + _ENDINGS[index // len(_WORDS)]


def company(prompts: Prompts, *, name: str = "", take: Mapping[Depth, int] | None = None) -> Workload:
    """Return requests of many kinds, sent alone and in groups.

    ``_WAVES`` has the kinds of each wave's requests. Each prompt begins with a marker word of its own, so that an answer
    with another request's word shows mixed-up requests. ``take`` has the number of requests sent at each depth; by
    default ``_SMOKE`` and ``_STANDARD``, and at deep depth all.
    """
    requests, number = [], 0
    for place, wave in enumerate(_WAVES):
        for kind in wave.kinds:
            requests.append(_concurrent_request(prompts.items, number, place, kind))
            number += 1
    sizes = tuple(len(wave.kinds) for wave in _WAVES)
    return Workload(
        name=name or f"{prompts.name}-company",
        version=4,
        requests=tuple(requests),
        take=take or {Depth.SMOKE: _SMOKE, Depth.STANDARD: _STANDARD},
        waves=sizes,
        concurrency=max(sizes),
        top_tokens=5,
    )


def _concurrent_request(prompts: Sequence[Prompt], number: int, place: int, kind: str) -> Request:
    """Return request ``number``, of one kind, in the wave ``place``.

    Both count from 0. The number chooses the prompt and its marker word, and is the seed of a ``seeded`` request. A grammar is asked for on
    the chat route, whatever the prompt's. A request of the kind ``leaving`` is aborted by the client after 2 or 4 chunks.
    """
    prompt = prompts[number % len(prompts)]
    body = dict(_KINDS[kind])
    if kind == "seeded":
        body["seed"] = number
    if kind == "logprobs":
        body |= reporting_fields(prompt.route, 2)
    route = Route.CHAT if kind == "grammar" else prompt.route
    chunks_read = _LEAVES_AFTER[number % len(_LEAVES_AFTER)] if kind == "leaving" else None
    content = _content(prompt, route, marker(number))
    return Request(
        id=f"wave{place + 1:02}-{kind}-{number:03}", route=route, body={**content, **body, "top_p": 1.0}, abort_after=chunks_read
    )


def _content(prompt: Prompt, route: Route, word: str) -> dict[str, JSON]:
    """Return the field of the body with a prompt after its marker word."""
    if route is Route.COMPLETIONS:
        return {"prompt": f"# {word}\n{prompt.text}"}
    return {"messages": [{"role": "user", "content": f"[{word}] {prompt.text}"}]}
