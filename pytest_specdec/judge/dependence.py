"""Dependence: which of the judged answers share a prompt, and which tokens end an answer; both known before the tokens are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.stats import duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.duplicates import Repeats
    from pytest_specdec.stats.laws import Bools, Floats, Ints, Law

__all__ = ["SEED_AGAIN", "copies", "ends", "fresh", "law_of", "repeats"]

SEED_AGAIN = "its seed was asked for before"
"""Why an answer is no draw of its own."""
_UNSAID = {"seed", "logprobs", "top_logprobs"}
"""Fields in which two requests may differ and still ask for draws from one law."""


def ends(captured: Captured, ids: Ints) -> Bools | None:
    """Return which outcomes [N, K+1] end an answer, from how the baseline's own answers ended; None where none shows it.

    Of the arm under judgement nothing is read: a bet may not hang on what it is on. Stop strings end answers at any token.
    """
    free = {request.id for request in captured.workload.requests if not request.body.get("stop")}
    last = {
        answer.choice.token_ids[-1]
        for answer in captured.baseline.answers
        if answer.ok and answer.request_id in free and answer.choice.finish_reason == "stop" and answer.choice.token_ids
    }
    if not last or captured.arm == BASELINE:
        return None
    marked = np.isin(ids, sorted(last))
    return np.asarray(np.column_stack([marked, np.zeros(len(ids), dtype=np.bool_)]))


def copies(captured: Captured, answers: Sequence[Answer], law: Law, ids: Ints) -> Floats | None:
    """Return the law [N, K+1] of a server that may give an answer again; None where no prompt is asked twice."""
    prompts = _prompts(captured, answers)
    if len(set(prompts)) == len(prompts):
        return None
    return duplicates.again(law, ids, _tokens(answers), prompts)


def repeats(captured: Captured, answers: Sequence[Answer], law: Law) -> Repeats:
    """Return how often answers to one prompt began alike."""
    return duplicates.repeats(law, _tokens(answers), _prompts(captured, answers))


def fresh(captured: Captured, answers: Sequence[Answer]) -> Bools:
    """Return which answers are draws of their own, [answers]: not those to a seed that an earlier answer was drawn with.

    A generator of the request's own gives the same noise to all that is asked with one seed, whatever the prompt, the limit or the pass.
    """
    asked = {request.id: request.body.get("seed") for request in captured.workload.requests}
    seen: set[object] = set()
    own = []
    for answer in answers:
        seed = asked.get(answer.request_id) if answer.ok else None
        own.append(seed is None or seed not in seen)
        seen.add(seed)
    return np.array(own, dtype=np.bool_)


def _tokens(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [answer.choice.token_ids for answer in answers]


def _prompts(captured: Captured, answers: Sequence[Answer]) -> list[object]:
    """Return what each answer is to: equal where two requests ask for independent draws from one law, and unique where not.

    A seed asked for twice is to give the same answer twice.
    """
    asked = {request.id: request for request in captured.workload.requests}
    seen: set[tuple[object, object]] = set()
    prompts: list[object] = []
    for answer in answers:
        request = asked.get(answer.request_id)
        key: object = answer.key if request is None else law_of(request)
        seed = None if request is None else request.body.get("seed")
        if seed is not None and (key, seed) in seen:
            key = answer.key
        seen.add((key, seed))
        prompts.append(key)
    return prompts


def law_of(request: Request) -> str:
    """Return what is equal for requests that ask for draws from one law: the body without seed and reported log-probabilities."""
    return json.dumps({name: value for name, value in request.body.items() if name not in _UNSAID}, sort_keys=True)
