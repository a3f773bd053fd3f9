"""Prompts that are asked again when so many others came between that their cache has left the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Need, Request, Route, Workload
from pytest_specdec.prompts.state import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON, Depth

__all__ = ["out_and_back"]

_WORDS = 90
"""Of a prompt: some 130 tokens, seven cache blocks of 16 or more."""
_RETURNING, _BETWEEN = 4, 12
"""Prompts that come back, and others sent in between."""
_STRIDE, _PERIOD = 7, 5
"""Least step through the list of nouns, and least number of words before they repeat: one more for each next prompt."""


def out_and_back(*, max_tokens: int = 32, name: str = "out-and-back", take: Mapping[Depth, int] | None = None) -> Workload:
    """Return greedy requests for prompts that come back after others.

    They are sent one at a time: some prompts, others that fill a small key-value cache and push out what the first left there, and the
    first ones again. The first ones repeat a few words, so that an answer is drafted from what its prompt left in the drafter's cache.
    Ids have the phases of
    :mod:`~pytest_specdec.prompts.state`: ``warm/0`` sends the prompt of ``cold/0`` again. Between the two are more than the thousand
    tokens of a small cache. ``take`` has the number of requests sent at each depth; without it all are sent.
    """
    contents = [_pattern(number) for number in range(_RETURNING)]
    others = [words(_WORDS, start=11 * number, stride=_STRIDE + number) for number in range(_BETWEEN)]
    requests = (
        *(_request(f"cold/{number}", content, max_tokens) for number, content in enumerate(contents)),
        *(_request(f"cold/between-{number}", content, max_tokens) for number, content in enumerate(others)),
        *(_request(f"warm/{number}", content, max_tokens) for number, content in enumerate(contents)),
    )
    return Workload(
        name=name,
        version=1,
        requests=requests,
        take=take or {},
        concurrency=1,
        top_tokens=5,
        small_cache=True,
        needs=Need.OFFLOAD,
    )


def _pattern(number: int) -> str:
    """Return a text of a few words again and again.

    Another ``number`` gives other words, and more of them before they repeat.
    """
    period = _PERIOD + number
    return " ".join([words(period, start=13 * number)] * (_WORDS // period))


def _request(key: str, content: str, max_tokens: int) -> Request:
    body: dict[str, JSON] = {"prompt": content, "max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    return Request(id=key, route=Route.COMPLETIONS, body=body)
