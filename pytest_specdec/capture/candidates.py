"""Candidates: the prompts of a pool, each of which a survey asks of the baseline once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON, Request, Workload

__all__ = ["TOKENS", "survey"]

TOKENS = 16
"""Of each short answer: enough to tell a prompt that leaves a choice from one that leaves none."""


def survey(pool: Workload) -> Workload:
    """Return one short request per prompt of ``pool``, each under a seed that the pool does not have.

    Its answers and scores are kept under the pool's name and ``.survey``.
    """
    taken = {request.body.get("seed") for request in pool.requests}
    requests = tuple(_short(prompt, taken) for prompt in pool.prompts)
    return replace(pool, name=f"{pool.name}.survey", requests=requests, take={}, passes=1, timed=False, stream=False, survey=False)


def _short(prompt: Request, taken: set[JSON]) -> Request:
    asked = prompt.body.get("max_tokens")
    most = min(asked, TOKENS) if isinstance(asked, int) else TOKENS
    return replace(prompt, body={**prompt.body, "max_tokens": most, "seed": _seed(prompt.id, taken)})


def _seed(id_: str, taken: set[JSON]) -> int:
    seed = int.from_bytes(hashlib.sha256(f"survey of {id_}".encode()).digest()[:4], "big") >> 1
    while seed in taken:
        seed += 1
    return seed
