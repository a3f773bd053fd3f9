"""Prompts around events: the same ones before the first event and after each, one at a time and a few together.

An event is something done to a running server, such as putting it to sleep and waking it. A phase is the requests between two events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.event import BEFORE, Event
from pytest_specdec.model.workload import Need, Request, Workload
from pytest_specdec.prompts import EXTRACT, RAG, REPEAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.workload import JSON

__all__ = ["around_events", "with_events"]

_TOKENS = 32
"""Of an answer: one event then has the 200 scored tokens that a pass needs."""
_PROMPTS = (REPEAT.items[-2], RAG.items[-1], EXTRACT.items[-1])
"""A sequence that goes on as it began, so that prompt lookup drafts too, and two of several blocks of any prefix cache.

They stand at the end of their lists: other workloads send the first ones.
"""


def around_events(*, max_tokens: int = _TOKENS, name: str = "around-events") -> Workload:
    """Return greedy requests, each sent alone and then all together.

    All are sent before the first event, in the phase ``BEFORE``; :func:`with_events` adds the same after each event. An id has
    a phase and a prompt: ``sleep-1/rag-06`` sends the prompt of ``before/rag-06`` after the event ``sleep-1``, and
    ``sleep-1/rag-06+`` sends it together with the others.
    """
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    requests = tuple(
        Request(id=f"{BEFORE}/{prompt.id}{mark}", route=prompt.route, body={**prompt.content, **body})
        for mark in ("", "+")
        for prompt in _PROMPTS
    )
    waves = (*(1 for _ in _PROMPTS), len(_PROMPTS))
    return Workload(name=name, version=2, requests=requests, concurrency=len(_PROMPTS), waves=waves, top_tokens=5, needs=Need.EVENTS)


def with_events(workload: Workload, events: Mapping[str, Sequence[EventStep]]) -> Workload:
    """Return ``workload`` with its requests again after each event.

    ``events`` has the steps of each event by name, in order. The workload is unchanged unless it needs events and there
    are any.
    """
    if workload.needs is not Need.EVENTS or not events:
        return workload
    requests = {name: _requests_after(workload, name) for name in events}
    return replace(
        workload,
        requests=tuple(request for phase in (workload.requests, *requests.values()) for request in phase),
        waves=workload.waves * (1 + len(events)),
        events=tuple(Event(name=name, steps=tuple(steps), before=requests[name][0].id) for name, steps in events.items()),
    )


def _requests_after(workload: Workload, event: str) -> tuple[Request, ...]:
    return tuple(replace(request, id=f"{event}/{request.id.partition('/')[2]}") for request in workload.requests)
