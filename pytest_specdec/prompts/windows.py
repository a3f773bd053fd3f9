"""Requests at the edges of speculation: prompts as short as a verify window, and answers in which drafts stop and start again."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["WINDOWS"]

_LONGEST = 10
"""Tokens: a verify window of eight draft tokens and its last token, and one more."""
_WORDS = (307, 451, 389, 512, 640, 333, 478, 395)
"""Token ids of every vocabulary."""
_FIELDS = (("name", "str"), ("size", "int"), ("data", "bytes"))
_LISTS = {
    "constants": "".join(f"ERROR_{name} = {number}\n" for number, name in enumerate(("NAME", "TYPE", "VALUE", "INDEX", "KEY"), 1)),
    "checks": "".join(
        f"def check_{name}({name}):\n    if not isinstance({name}, {kind}):\n        raise TypeError('{name} must be {kind}')\n\n\n"
        for name, kind in _FIELDS
    ),
    "asserts": "class TestPoint(unittest.TestCase):\n"
    + "".join(
        f"    def test_{name}(self):\n        self.assertEqual(Point(1, 2).{name}, {value})\n\n"
        for name, value in (("x", 1), ("y", 2), ("sum", 3))
    ),
    "people": "".join(
        f'{{"name": "{name}", "age": {age}, "city": "{city}"}}\n'
        for name, age, city in (("Ann", 31, "Oslo"), ("Guido", 45, "Rome"), ("Grace", 27, "Paris"), ("Ken", 52, "Berlin"))
    ),
}
"""Each goes on with another entry: its frame can be copied, its words cannot, so that drafts stop and start again."""


def _short_request(length: int, first: int) -> Request:
    """Return a request with a prompt of ``length`` token ids.

    They are those of ``_WORDS`` in turn, from index ``first`` on. Successive requests need another ``first``: no prompt then begins
    with the same tokens as the one before it, and a server that wrongly reuses the state of the previous prompt gives a wrong answer.
    """
    return _greedy_request(f"prompt-{length}-{first}", list(islice(cycle(_WORDS), first, first + length)), max_tokens=16)


def _greedy_request(what: str, prompt: JSON, *, max_tokens: int) -> Request:
    body: dict[str, JSON] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
    return Request(id=what, route=Route.COMPLETIONS, body=body)


WINDOWS = Workload(
    name="windows",
    version=1,
    requests=(
        *(_short_request(length, first) for length in range(1, _LONGEST + 1) for first in (0, 3)),
        *(_greedy_request(f"list-{name}", text, max_tokens=96) for name, text in _LISTS.items()),
    ),
    take={Depth.SMOKE: 0},
    concurrency=1,
)
"""One at a time: beside others, a step is seldom that of a short prompt alone, or without any draft."""
