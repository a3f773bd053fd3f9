"""Load: the same prompts asked alone, by 4 clients at once and by up to 128, in one timed workload."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Request, Route, Workload

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import Prompts

__all__ = ["CLIENTS", "cut", "levels"]

CLIENTS = (1, 4, 8, 12, 32, 128)
"""Requests in flight, level by level: 4 and 12 lie between the batch sizes that servers are usually tuned for."""


_NUMBERED = 4
"""Prompts that the others of a level are made of, each with a number of its own."""


def levels(prompts: Prompts, *, max_tokens: int = 24, passes: int = 3, alone: int = 1, shared: int = 10) -> Workload:
    """Return a workload of 1 to 128 simultaneous requests.

    The first level is ``alone`` requests sent one by one, one by default, since other workloads time a single client. The further levels
    are 4, 8, 12, 32 and 128 requests at once. Every answer has ``max_tokens`` tokens. By default there are three passes, since the
    confidence interval of two is too wide for any but an extreme speed to fail: Student's t then has one degree of freedom.

    Every level begins with the same chats, the first of ``prompts``, at most ``shared``: the acceptance of their drafts can be compared
    between levels, and with :meth:`Prompts.speed`. ``prompts`` must have four chats at least.
    """
    level_sizes = (alone, *CLIENTS[1:])
    waves = (*[1] * alone, *CLIENTS[1:])  # the requests of the first level are a wave each
    shared_chats = [prompt for prompt in prompts.items if prompt.route is Route.CHAT][:shared]
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    numbers, requests = count(1), list[Request]()
    for level_size in level_sizes:
        for place in range(level_size):
            number, is_shared = next(numbers), place < len(shared_chats)
            # All others of a level are the first four chats again, with a number in front: equal prompts would have equal answers.
            prompt = shared_chats[place if is_shared else place % _NUMBERED]
            text = prompt.text if is_shared else f"Question {number}. {prompt.text}"
            request_body = {"messages": [{"role": "user", "content": text}], **body}
            requests.append(Request(id=f"{prompt.id}#{number}", route=prompt.route, body=request_body))
    return Workload(
        name="load",
        version=4,
        requests=tuple(requests),
        concurrency=max(waves),
        waves=waves,
        passes=passes,
        stream=True,
        timed=True,
        scored=False,
    )


def cut(workload: Workload, most: int) -> Workload:
    """Return the workload with at most ``most`` requests per wave.

    ``most`` is the number of requests that the server computes at once: any others would wait, which shows nothing about
    speculation. A wave, the requests sent at once, is left out if cutting it makes it no larger than the wave before it.
    """
    waves: list[tuple[Request, ...]] = []
    for wave in workload.in_waves:
        smaller = wave[:most]
        if len(smaller) == len(wave) or not waves or len(smaller) > len(waves[-1]):
            waves.append(smaller)
    return replace(
        workload,
        requests=tuple(request for wave in waves for request in wave),
        waves=tuple(map(len, waves)),
        concurrency=min(workload.concurrency, most),
    )
