"""Traffic of every kind: the same few prompts plain, with log-probabilities, a grammar, penalties, at a temperature, after a long text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Request, Route, Workload
from pytest_specdec.prompts import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["kinds"]

_DOCUMENTS = (
    '{"host": "alpha", "port": 80, "open": true}, {"host": "beta", "port": 80, "open": true}',
    '{"name": "red", "count": 1}, {"name": "blue", "count": 1}, {"name": "green", "count": 1}',
    '{"day": "Monday", "rain": false}, {"day": "Tuesday", "rain": false}, {"day": "Friday", "rain": false}',
    '{"file": "a.txt", "lines": 10}, {"file": "b.txt", "lines": 10}, {"file": "c.txt", "lines": 10}',
    '{"step": 1, "done": true, "next": 2}, {"step": 2, "done": true, "next": 3}, {"step": 3, "done": true, "next": 4}',
)
"""To be given back word by word: what every drafter is good at, a copying one too, and what a grammar of JSON allows."""
_ASKED = 'Repeat the following JSON document exactly, without any comment:\n\n{{"entries": [{}]}}'
_UNRELATED = "Notes that do not matter here.\n" + "".join(
    f"Note {number}: the meeting in room {number} was moved.\n" for number in range(1, 33)
)
_KINDS: Mapping[str, Mapping[str, JSON]] = {
    "plain": {},
    "logprobs": {"logprobs": True, "top_logprobs": 1},
    "grammar": {"response_format": schemas.ANY_OBJECT},
    "penalty": {"presence_penalty": 0.1},
    "seeded": {"temperature": 0.3, "seed": 7},
    "drawn": {"temperature": 0.3},
    "long": {},
}


def kinds(*, max_tokens: int = 32, concurrency: int = 8) -> Workload:
    """Return streamed requests of seven kinds for each prompt.

    A kind is a set of parameters (``_KINDS``), or a long text before the prompt; it is named at the end of a request's id,
    after ``#``. A prompt asks to copy one of ``_DOCUMENTS``, which every drafter drafts well. Every depth sends all requests,
    since fewer could not show that a kind is served without drafts.
    """
    requests = tuple(_traffic_request(number, kind, max_tokens) for number in range(len(_DOCUMENTS)) for kind in _KINDS)
    return Workload(
        name="kinds-of-traffic",
        version=1,
        requests=requests,
        concurrency=concurrency,
        stream=True,
        scored=False,
    )


def _traffic_request(number: int, kind: str, max_tokens: int) -> Request:
    """Return the request of one kind for document ``number``, from 0."""
    text = _ASKED.format(_DOCUMENTS[number])
    content = f"{_UNRELATED}\n{text}" if kind == "long" else text
    body: dict[str, JSON] = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0}
    return Request(id=f"copy-json-{number + 1:02}#{kind}", route=Route.CHAT, body={**body, **_KINDS[kind]})
