"""Requests about how answers end: stop strings, stop token ids, ends of sequence and limits at every place of a verify window."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["LIMITS", "STOPS"]

_RUN = "import sys\n"
_PROMPTS = {
    "run": _RUN * 6,
    "copy": "        return self.data\n\n    def __repr__(self):\n        return self.data\n\n    def __str__(self):\n",
    "novel": "Once upon a time there was a",
}
"""``run`` goes on as it began, so that whole drafts are accepted and its stop strings fall at the places their lengths set."""
_RUN_STOPS = (_RUN * 4)[7:]
"""The answer from its second word on: its beginnings are complete after two words, three, four …"""
_OBJECT_STOPS = ("name", '": "', '", "age', '"age"', '": 6', '"city"')
"""Stop strings in a JSON object that the bundled model answers with certainty: elsewhere a near-tie may lead past the stop."""
_OBJECT = 24
"""Tokens; the object has 18 in the vocabulary of the bundled model."""
_LONG = 32
_CLASSES = 7
"""Remainders by which stop token ids are divided: each request stops at every seventh id."""
_STOP_IDS = 4000
"""Stop token ids lie below: the commonest tokens of every vocabulary."""


def _limited_request(prompt: str, what: str, **body: JSON) -> Request:
    request_body: dict[str, JSON] = {"prompt": _PROMPTS[prompt], "max_tokens": _LONG, "temperature": 0.0, "top_p": 1.0, **body}
    return Request(id=f"{prompt}-{what}", route=Route.COMPLETIONS, body=request_body)


def _stop_request(prompt: str, what: str, stop: str, **body: JSON) -> Request:
    return _limited_request(prompt, f"stop-{what}", stop=[stop], **body)


def _stop_at_length(length: int, what: str = "", **body: JSON) -> Request:
    """Return a request with a stop string of ``length`` characters.

    It is sent on the repetitive prompt. The stop string is the beginning of the expected answer from its second word
    on, so that its length decides after how many tokens it is complete. ``what`` ends the id; ``body`` has further
    fields.
    """
    return _stop_request("run", f"{length}{what}", _RUN_STOPS[:length], **body)


def _stop_at_ids(prompt: str, remainder: int, what: str = "", **body: JSON) -> Request:
    """Return a request to stop at every seventh token id.

    The ids are ``remainder``, ``remainder`` + 7 and so on below 4000: some common token is among so many ids, whatever
    the vocabulary. ``prompt`` is a key of ``_PROMPTS``, ``what`` ends the id, and ``body`` has further fields.
    """
    return _limited_request(prompt, f"ids-{remainder}{what}", stop_token_ids=list(range(remainder, _STOP_IDS, _CLASSES)), **body)


def _limit_request(prompt: str, most: int) -> Request:
    return _limited_request(prompt, f"max-{most}", max_tokens=most)


def _conversation(name: str, age: int, city: str) -> list[JSON]:
    """Return the messages of a conversation with a repeated question.

    It is answered twice and asked a third time. The answer stands in the prompt, so that even prompt lookup drafts the
    answer's end.
    """
    question: JSON = {"role": "user", "content": f"Give me a JSON object for {name} who lives in {city}."}
    answer: JSON = {"role": "assistant", "content": json.dumps({"name": name, "age": age, "city": city})}
    return [question, answer, question, answer, question]


_PEOPLE: Sequence[tuple[str, int, str]] = (
    ("Ann", 55, "Madrid"),
    ("Dennis", 31, "Oslo"),
    ("Grace", 68, "Oslo"),
    ("Guido", 73, "Madrid"),
    ("Ken", 18, "Berlin"),
    ("Grace", 41, "Paris"),
)


def _ending_request(person: int, what: str, **body: JSON) -> Request:
    return _conversation_request(person, f"end-{person}-{what}", 48, **body)


def _object_request(what: str, **body: JSON) -> Request:
    return _conversation_request(2, f"json-{what}", _OBJECT, **body)


def _conversation_request(person: int, request_id: str, answer_limit: int, **body: JSON) -> Request:
    """Return a greedy request with the conversation about one person.

    ``person`` is an index of ``_PEOPLE``. ``answer_limit`` is the most tokens of the answer, unless ``body``, further fields, has another.
    """
    request_body: dict[str, JSON] = {
        "messages": _conversation(*_PEOPLE[person]),
        "max_tokens": answer_limit,
        "temperature": 0.0,
        "top_p": 1.0,
        **body,
    }
    return Request(id=request_id, route=Route.CHAT, body=request_body)


STOPS = Workload(
    name="stops",
    version=2,
    requests=(
        _limited_request("run", "plain"),
        _stop_at_length(10),
        _stop_at_length(3),
        _stop_at_length(4, "-max-5", max_tokens=5),
        _stop_at_length(26),
        _stop_at_length(10, "-kept", include_stop_str_in_output=True),
        _stop_at_length(3, "-min-6", min_tokens=6),
        _limit_request("run", 6),
        _limited_request("copy", "plain"),
        _stop_at_ids("copy", 3),
        *map(_stop_at_length, (4, 14, 15, 21, 25)),
        _stop_at_length(3, "-max-3", max_tokens=3),
        _stop_at_length(10, "-max-4", max_tokens=4),
        _stop_at_length(10, "-max-5", max_tokens=5),
        _stop_at_length(4, "-kept", include_stop_str_in_output=True),
        _stop_at_length(21, "-kept", include_stop_str_in_output=True),
        _stop_at_length(3, "-min-4", min_tokens=4),
        _limit_request("run", 4),
        *(_stop_at_ids("run", remainder) for remainder in range(_CLASSES)),
        *(_stop_at_ids("copy", remainder) for remainder in (0, 5)),
        _stop_request("copy", "self", "self"),
        _stop_request("copy", "data", "data\n"),
        _stop_request("copy", "def", "def __"),
        _limited_request("novel", "plain"),
        _stop_request("novel", "the", " the"),
        _stop_request("novel", "comma", ","),
        _object_request("plain"),
        *(_object_request(f"stop-{number}", stop=[stop]) for number, stop in enumerate(_OBJECT_STOPS)),
        *(_object_request(f"stop-{number}-kept", stop=[_OBJECT_STOPS[number]], include_stop_str_in_output=True) for number in (3, 5)),
        _object_request("min-6", stop=['"'], min_tokens=6),
        _object_request("max-6", max_tokens=6),
    ),
    take={Depth.SMOKE: 10},
    concurrency=16,
    stream=True,
    scored=False,
)
"""Streamed, since a stop string that is complete within a window may have left the server by then."""


LIMITS = Workload(
    name="limits",
    version=1,
    requests=(
        _limit_request("run", 3),
        _ending_request(0, "plain"),
        _ending_request(1, "plain"),
        _ending_request(2, "plain"),
        _ending_request(0, "ignored", ignore_eos=True),
        _ending_request(2, "min-28", min_tokens=28),
        *(_limit_request("run", most) for most in (1, 2, 4, 5, 6, 7, 8, 9)),
        *(_limit_request("copy", most) for most in (2, 5, 8)),
        *(_limit_request("novel", most) for most in (3, 6)),
        *(_ending_request(person, "plain") for person in (3, 4, 5)),
        *(_ending_request(person, "ignored", ignore_eos=True) for person in (1, 2)),
        *(_ending_request(person, "min-28", min_tokens=28) for person in (0, 1)),
        *(_ending_request(person, "min-40-ignored", min_tokens=40, ignore_eos=True) for person in (0, 2)),
    ),
    take={Depth.SMOKE: 6},
    concurrency=16,
    scored=False,
)
"""Limits of one token to two windows and one token, and ends of sequence within a run of accepted drafts."""
