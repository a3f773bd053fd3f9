"""Candidates: the prompts of a pool, each of which a survey asks of the baseline once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.selection import survey_of
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_specdec.model.workload import JSON, Request, Workload

__all__ = ["TOKENS", "survey"]

TOKENS = 16
"""Of each short answer: enough to tell a prompt that leaves a choice from one that leaves none."""
_REPORTED: Mapping[Route, Mapping[str, JSON]] = {
    Route.COMPLETIONS: {"logprobs": 1},
    Route.CHAT: {"logprobs": True, "top_logprobs": 1},
}


def survey(pool: Workload, *, reported: Collection[Route]) -> Workload:
    """Return one short request per prompt of ``pool``, each under a seed that the pool does not have.

    On routes where log-probabilities are ``reported`` it asks for them: they calibrate the scores, and the baseline alone answers.
    """
    taken = {request.body.get("seed") for request in pool.requests}
    requests = tuple(_short(prompt, taken, reported=prompt.route in reported) for prompt in pool.prompts)
    return replace(pool, name=survey_of(pool.name), requests=requests, take={}, passes=1, timed=False, stream=False, survey=False)


def _short(prompt: Request, taken: set[JSON], *, reported: bool) -> Request:
    asked = prompt.body.get("max_tokens")
    most = min(asked, TOKENS) if isinstance(asked, int) else TOKENS
    more = _REPORTED[prompt.route] if reported else {}
    return replace(prompt, body={**prompt.body, **more, "max_tokens": most, "seed": _seed(prompt.id, taken)})


def _seed(id_: str, taken: set[JSON]) -> int:
    seed = int.from_bytes(hashlib.sha256(f"survey of {id_}".encode()).digest()[:4], "big") >> 1
    while seed in taken:
        seed += 1
    return seed
