"""Requests with LoRA adapters and without: alone, mixed in one batch, the same prompt under each of them, and again in another order.

The names of adapters are known from the config alone. Until :func:`fill` puts them in, a place stands for each: ``base`` for no adapter,
``first`` and ``second`` for the server's first two. A wave is the requests that are sent at once; the last ``drawn`` of them are sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Depth, Need, Request, Workload
from pytest_specdec.prompts import CODE, COPY, EDIT, QA, REPEAT, SUMMARY, Prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts import Prompt

__all__ = ["LEAST", "Adapter", "Adapters", "fill", "mixed_batches"]

LEAST: Final = 2
"""Adapters that the requests take turns with, besides the model without one."""
_BASE, _FIRST, _SECOND = "base", "first", "second"
"""Places for adapters: none, and the first and the second one of a server, until a plan fills in its names. Ids end with them."""
_ORDERS: Final = ((_BASE, _FIRST, _SECOND), (_FIRST, _SECOND, _BASE), (_SECOND, _BASE, _FIRST))
"""By prompt in turn, the order in which it is asked: each adapter is once the first to see a prompt."""
_FOUR: Final = (_BASE, _FIRST, _SECOND, _FIRST)
_EIGHTS: Final = (
    (_BASE, _FIRST, _SECOND, _BASE, _FIRST, _SECOND, _FIRST, _SECOND),
    (_SECOND, _BASE, _FIRST, _BASE, _SECOND, _FIRST, _SECOND, _FIRST),
)
"""The last four of each are sampled."""
_DRAWN: Final = 4
_TEMPERATURE: Final = 0.3
"""Of sampled requests: near the best token, so that few draws tell one adapter's weights from another's."""
_PROMPTS: Final = Prompts.interleaved("adapters", (CODE, REPEAT, COPY, EDIT, SUMMARY, QA))
"""Prompts of more than a cache block, most of them such that prompt lookup drafts too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter of a server, and the fields of requests for it."""

    name: str
    fields: Mapping[str, JSON]
    """Of a request's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters of a server, in the order of its arguments."""

    named: tuple[Adapter, ...] = ()
    without: Mapping[str, JSON] = field(default_factory=dict)
    """Fields by which a request asks for the model without any, where leaving them out does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """Requests that are sent at once."""

    phase: str
    """How their ids begin."""
    members: tuple[tuple[Prompt, str], ...]
    """A prompt and the adapter's place for each."""
    drawn: int = 0
    """Number of sampled requests, the last of the wave."""


def mixed_batches(*, max_tokens: int = 24, name: str = "adapters", take: Mapping[Depth, int] | None = None) -> Workload:
    """Return requests under two adapters and none, in waves of one, four and eight.

    An id has a phase, a prompt and an adapter's place: ``alone/code-01/first``. In ``alone`` a prompt is sent under both adapters and
    none, one after the other; ``again`` sends the same in another order; ``mixed`` has a prompt of its own for each place, and ``same``
    one prompt under both and none at once. All run to their limit. They are greedy but for the last four of a wave of eight, which are
    sampled with a seed each. ``take`` has the number of requests sent at each depth; without it all are sent.
    """
    waves = tuple(_plan_waves())
    seeds = count(1)
    requests = tuple(chain.from_iterable(_wave_requests(wave, max_tokens, seeds) for wave in waves))
    return Workload(
        name=name,
        version=1,
        requests=requests,
        waves=tuple(len(wave.members) for wave in waves),
        take=take or {},
        top_tokens=20,
        needs=Need.ADAPTERS,
    )


def _plan_waves() -> Iterable[_Wave]:
    """Return the waves of requests in their order.

    Each depth sends a first part of them; comments mark the ends of smoke and standard depth. Of each kind, prompts alone and batches,
    smoke depth has the first. Later waves are of the same kinds, with other prompts, other places or another order of them.
    """
    prompts = iter(_PROMPTS.items)
    alone = [next(prompts) for _ in range(6)]
    return (
        *_ask_alone(alone[:3], "alone"),
        _mix(prompts, _FOUR),
        _mix(prompts, _EIGHTS[0], drawn=_DRAWN),
        # From here on not at smoke depth.
        *_ask_alone(alone[:3], "again", shift=1),  # a shift: the adapters in another order than in ``alone``
        *_ask_alone(alone[3:], "alone"),
        _mix(prompts, (_FIRST, _SECOND)),
        _mix(prompts, (_BASE, _FIRST)),
        _same_prompt(next(prompts)),
        _mix(prompts, _EIGHTS[1], drawn=_DRAWN),
        _mix(prompts, (_SECOND, _FIRST, _SECOND, _FIRST)),
        # From here on at deep depth only.
        *_ask_alone(alone[3:], "again", shift=2),
        _same_prompt(next(prompts)),
        *(_mix(prompts, order, drawn=_DRAWN) for order in (*_EIGHTS, _EIGHTS[0])),
    )


def _ask_alone(prompts: Sequence[Prompt], phase: str, *, shift: int = 0) -> list[_Wave]:
    """Return waves of one: each prompt under every adapter and none.

    The orders are those of ``_ORDERS``, three orders of the places, in turn. With a ``shift`` a prompt gets the order that many further on,
    reversed, so that it is asked in another order than without.
    """
    orders = [_ORDERS[(index + shift) % len(_ORDERS)][:: -1 if shift else 1] for index in range(len(prompts))]
    pairs = [(prompt, place) for prompt, order in zip(prompts, orders, strict=True) for place in order]
    return [_Wave(phase=phase, members=(pair,)) for pair in pairs]


def _mix(prompts: Iterator[Prompt], places: Sequence[str], *, drawn: int = 0) -> _Wave:
    """Return a wave with the next of ``prompts`` for each place.

    The last ``drawn`` requests are sampled.
    """
    # Places come first: otherwise zip would take one prompt too many.
    return _Wave(phase="mixed", members=tuple((prompt, place) for place, prompt in zip(places, prompts, strict=False)), drawn=drawn)


def _same_prompt(prompt: Prompt) -> _Wave:
    """Return a wave with one prompt under every adapter and none."""
    return _Wave(phase="same", members=tuple((prompt, place) for place in _ORDERS[0]))


def _wave_requests(wave: _Wave, max_tokens: int, seeds: Iterator[int]) -> Iterable[Request]:
    """Yield a wave's requests; the last ``wave.drawn`` are sampled with the next ``seeds``."""
    greedy_count = len(wave.members) - wave.drawn
    for index, (prompt, place) in enumerate(wave.members):
        sampling: dict[str, JSON] = {"temperature": 0.0} if index < greedy_count else {"temperature": _TEMPERATURE, "seed": next(seeds)}
        body: dict[str, JSON] = {**prompt.content, "max_tokens": max_tokens, "top_p": 1.0, "ignore_eos": True, **sampling}
        request_id = f"{wave.phase}/{prompt.id}/{place}"
        yield Request(id=request_id, route=prompt.route, body=body, adapter="" if place == _BASE else place)


def fill(workload: Workload, adapters: Adapters) -> Workload:
    """Return ``workload`` with its places ``first`` and ``second`` taken by adapters.

    The adapters are the server's first two. The workload is unchanged if there are fewer, or if it needs none.
    """
    if workload.needs is not Need.ADAPTERS or len(adapters.named) < LEAST:
        return workload
    by_place = dict(zip((_FIRST, _SECOND), adapters.named, strict=False))
    return replace(workload, requests=tuple(_ask_for(request, by_place.get(request.adapter), adapters) for request in workload.requests))


def _ask_for(request: Request, adapter: Adapter | None, adapters: Adapters) -> Request:
    """Return ``request`` with an adapter's fields; None asks for the model without one."""
    if adapter is None:
        return replace(request, body={**request.body, **adapters.without})
    return replace(request, body={**request.body, **adapter.fields}, adapter=adapter.name)
