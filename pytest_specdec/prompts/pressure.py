"""Requests that run together until the key-value cache of a small server runs out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Workload
from pytest_specdec.prompts import ALL, JSON_TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import Request

__all__ = ["together"]


def together(*, max_tokens: int = 64, name: str = "together", take: Mapping[Depth, int] | None = None) -> Workload:
    """Return streamed requests at temperature 0, sixteen at once.

    They are for servers with a small cache. Of eight requests four are plain, three have penalties and one is
    constrained to a schema: such state must survive if the server preempts a request. All but the constrained ones
    ignore the end of sequence and run to their limit. ``take`` has the number of requests sent at each depth; without it all are sent.
    """
    plain = [_run_to_limit(request) for request in ALL.greedy(max_tokens=max_tokens).requests]
    penalised = [_run_to_limit(r) for r in ALL.greedy(max_tokens=max_tokens, presence_penalty=1.2, frequency_penalty=0.8).requests]
    # Of the two requests for each prompt the first is bound to a schema; the second, left out here, to any JSON object.
    schema_bound = JSON_TASKS.structured(max_tokens=max_tokens).requests[::2]
    requests: list[Request] = []
    for index in range(min(len(schema_bound), len(plain) // 8)):
        first = 8 * index
        requests += plain[first : first + 4]
        requests += [_rename(request, "penalised") for request in penalised[first + 4 : first + 7]]
        requests.append(_rename(schema_bound[index], "bound"))
    return Workload(
        name=name,
        version=1,
        requests=tuple(requests),
        take=take or {},
        concurrency=16,
        stream=True,
        small_cache=True,
    )


def _run_to_limit(request: Request) -> Request:
    return replace(request, body={**request.body, "ignore_eos": True})


def _rename(request: Request, kind: str) -> Request:
    return replace(request, id=f"{request.id}#{kind}")
