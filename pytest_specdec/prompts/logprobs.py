"""Log-probability workloads: lists of every length on both routes, and prompts whose lengths lie at the borders of cache blocks."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Unpack

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts.prompts import make_workload, reporting_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import PassesFields, Prompts

__all__ = ["prompt_lengths", "top_lists"]

_LISTS = (5, 1, 20, 2, 0)
"""Most probable tokens asked for in turn; 20 is the most that OpenAI's API lists."""
_TEXT = "so he can do it if the man is on time and we do so on the way to the day of no an or by as at up one all for that in"
"""Words that are one token each in most vocabularies."""
_LENGTHS = tuple(range(40, 56)) + tuple(range(120, 136)) + tuple(range(504, 520))
"""Words of a prompt: 16 lengths in a row, of which one fills whole blocks of 16 tokens whatever stands before them."""

_ECHOED = 4
"""One request of so many has its prompt echoed."""


def top_lists(
    prompts: Prompts,
    *,
    max_tokens: int = 32,
    requests: int = 40,
    name: str = "top-lists",
    take: Mapping[Depth, int] | None = None,
    **traffic: Unpack[PassesFields],
) -> Workload:
    """Return requests for lists of the most probable tokens.

    The lists have 5, 1, 20, 2 and 0 tokens in turn. Three of four requests are at temperature 0, where baseline and
    variant emit the same tokens, so that their reports can be compared. Every fourth is sampled with a seed. ``take``
    has the number of requests sent at each depth.
    """
    sent: list[Request] = []
    for index, prompt in enumerate(islice(cycle(prompts.items), requests)):
        is_drawn = (index + 1) % 4 == 0
        sampling: dict[str, JSON] = {"temperature": 1.0, "seed": index + 1} if is_drawn else {"temperature": 0.0}
        top = _LISTS[index % len(_LISTS)]
        body = {**prompt.content, "max_tokens": max_tokens, "top_p": 1.0, **sampling, **reporting_fields(prompt.route, top)}
        sent.append(Request(id=f"{prompt.id}#top{top}-{index + 1}", route=prompt.route, body=body))
    return make_workload(name, sent, take, {"scored": False, **traffic})


def prompt_lengths(
    *,
    max_tokens: int = 32,
    name: str = "prompt-logprobs",
    take: Mapping[Depth, int] | None = None,
    **traffic: Unpack[PassesFields],
) -> Workload:
    """Return completions at temperature 0 that report their prompts' log-probabilities.

    Prompt lengths, in words of a token each (``_LENGTHS``), lie around the borders of cache blocks. Three of four requests
    use the field ``prompt_logprobs``, the other (one in ``_ECHOED``) an echo of the prompt; of the echoes every second has
    an answer of one token.
    """
    requests: list[Request] = []
    for number, words in enumerate(_LENGTHS):
        is_echoed = number % _ECHOED == 1
        text = " ".join(islice(cycle(_TEXT.split()), words))
        token_limit = 1 if number % (2 * _ECHOED) == 1 + _ECHOED else max_tokens
        logprob_fields: dict[str, JSON] = {"echo": True, "logprobs": 1} if is_echoed else {"prompt_logprobs": 0}
        body: dict[str, JSON] = {"prompt": text, "max_tokens": token_limit, "temperature": 0.0, "top_p": 1.0, **logprob_fields}
        requests.append(Request(id=f"words-{words:03}{'#echo' if is_echoed else ''}", route=Route.COMPLETIONS, body=body))
    return make_workload(name, requests, take, {"version": 2, "scored": False, **traffic})
