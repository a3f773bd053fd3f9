"""Chats with small pictures of our own: alone, the same again, another one, two at once, in a later turn, and beside texts in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Need, Request, Route, Workload
from pytest_specdec.prompts import png

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["PICTURES", "conversations"]

_SIDE = 48
"""Pixels: models with larger patches enlarge it."""
_PALETTE = ((255, 255, 255), (0, 0, 0), (214, 40, 40), (32, 84, 200), (40, 150, 70), (245, 200, 30))
_BLACK, _RED, _BLUE, _GREEN, _YELLOW = range(1, 6)
_DIGITS: Mapping[str, tuple[str, ...]] = {
    "3": ("###", "..#", ".##", "..#", "###"),
    "7": ("###", "..#", ".#.", ".#.", ".#."),
    "4": ("#.#", "#.#", "###", "..#", "..#"),
}
_DOT, _MARGIN = 8, 8
"""Pixels: the side of a dot of a digit, and those around a shape."""


def _draw(colour_at: Callable[[int, int], int]) -> str:
    """Return the data URL of a picture.

    ``colour_at`` takes column and row of a pixel and returns an index of the palette.
    """
    lines = [bytes(colour_at(column, row) for column in range(_SIDE)) for row in range(_SIDE)]
    return png.data_url(png.encode(lines, _PALETTE))


def _disc(colour: int) -> str:
    centre, radius = _SIDE // 2, _SIDE // 2 - _MARGIN
    return _draw(lambda x, y: colour if (x - centre) ** 2 + (y - centre) ** 2 <= radius**2 else 0)


def _square(colour: int) -> str:
    return _draw(lambda x, y: colour if min(x, y) >= _MARGIN and max(x, y) < _SIDE - _MARGIN else 0)


def _triangle(colour: int) -> str:
    return _draw(lambda x, y: colour if y < _SIDE - _MARGIN and abs(2 * x - _SIDE) <= y - _MARGIN else 0)


def _stripes(colour: int, other: int) -> str:
    return _draw(lambda x, y: colour if (x + y) // _DOT % 2 else other)


def _digit(digit: str, colour: int) -> str:
    """Return the data URL of a digit's picture, three dots wide and five high, in the middle."""
    rows, left, top = _DIGITS[digit], (_SIDE - 3 * _DOT) // 2, (_SIDE - 5 * _DOT) // 2

    def is_inked(x: int, y: int) -> bool:
        column, row = (x - left) // _DOT, (y - top) // _DOT
        return 0 <= row < len(rows) and 0 <= column < len(rows[0]) and rows[row][column] == "#"

    return _draw(lambda x, y: colour if is_inked(x, y) else 0)


PICTURES: Mapping[str, str] = {
    "disc": _disc(_RED),
    "square": _square(_BLUE),
    "seven": _digit("7", _BLACK),
    "triangle": _triangle(_GREEN),
    "stripes": _stripes(_BLUE, _YELLOW),
    "three": _digit("3", _RED),
    "four": _digit("4", _BLUE),
}
"""Data URLs of some 3,300 characters, by name."""

_ASK = "What does the picture show? Answer with twelve words, and say the colour and the shape twice."
_COMPARE = "What do the pictures show? Answer with twelve words, and say the colours and the shapes twice."
_LATER = "What else does the picture show? Answer with twelve words, and say the colour and the shape twice."
_COPY = "What does a lamp show at night? Answer with twelve words, and say the colour and the lamp twice."
_LIST = "What does a boat carry on a river? Answer with twelve words, and say the boat and the river twice."
_STORY = "Who lives in a lighthouse? Answer with twelve words, and say the sea and the light twice."
_MAX_TOKENS = 32
_TOP = 5
"""Most probable tokens listed with each: they tell how near the first other token was."""


def _picture(name: str) -> dict[str, JSON]:
    return {"type": "image_url", "image_url": {"url": PICTURES[name]}}


def _say(*parts: str) -> list[JSON]:
    """Return the parts of a message: a picture for its name, a text for any other."""
    return [_picture(part) if part in PICTURES else {"type": "text", "text": part} for part in parts]


def _user(*parts: str) -> dict[str, JSON]:
    return {"role": "user", "content": parts[0] if len(parts) == 1 else _say(*parts)}


_SEEN: dict[str, JSON] = {
    "role": "assistant",
    "content": "A round shape in one colour: a colour, a shape, and the round shape again.",
}

_ALONE: Mapping[str, list[JSON]] = {
    "text/copy": [_user(_COPY)],
    "image/disc": [_user("disc", _ASK)],
    "other/square": [_user("square", _ASK)],
    "again/disc": [_user("disc", _ASK)],
    "two/disc-seven": [_user("disc", "seven", _COMPARE)],
    "turn/disc": [_user("disc", _ASK), _SEEN, _user(_LATER)],
    "turn/seven": [_user(_LIST), _SEEN, _user("seven", _ASK)],
}
"""Sent one at a time: a picture is asked for again only after another one in the same place."""
_BESIDE: Mapping[str, list[JSON]] = {
    "beside/copy": [_user(_COPY)],
    "mixed/disc": [_user("disc", _ASK)],
    "beside/list": [_user(_LIST)],
    "mixed/seven": [_user(_ASK, "seven")],
    "mixed/square": [_user("square", _COPY)],
    "beside/story": [_user(_STORY)],
}
"""Sent together: texts between pictures."""
_LOAD: Mapping[str, list[JSON]] = {
    "mixed/triangle": [_user("triangle", _ASK)],
    "mixed/stripes": [_user("stripes", _ASK)],
    "beside/copy-2": [_user(_COPY)],
    "mixed/three": [_user("three", _ASK)],
    "mixed/two": [_user("four", "three", _COMPARE)],
    "mixed/four": [_user(_COPY, "four")],
    "beside/list-2": [_user(_LIST)],
    "mixed/disc-2": [_user("disc", _ASK)],
}
"""Sent together after those, beyond smoke depth."""
_LAST: Mapping[str, list[JSON]] = {
    "text/copy-last": [_user(_COPY)],
    "again/square": [_user("square", _ASK)],
    "again/two": [_user("disc", "seven", _COMPARE)],
    "turn/stripes": [_user("stripes", _ASK), _SEEN, _user("disc", _ASK)],
}
"""Sent one at a time at the end, beyond smoke depth."""


def conversations() -> Workload:
    """Return greedy chats with pictures, and the texts that go beside them.

    Those of ``_ALONE`` are sent one at a time, then those of ``_BESIDE`` at once, those of ``_LOAD`` at once, and those of ``_LAST`` one at
    a time. An id has a phase and a name: pictures sent with others are ``mixed``, texts among them ``beside``.
    """
    together = {**_BESIDE, **_LOAD}
    is_streamed = {name: place % 2 == 1 for place, name in enumerate(together)}  # requests sent alone never are
    chats = {**_ALONE, **together, **_LAST}
    requests = tuple(_request(name, messages, stream=is_streamed.get(name)) for name, messages in chats.items())
    return Workload(
        name="images",
        version=1,
        requests=requests,
        take={Depth.SMOKE: len(_ALONE) + len(_BESIDE)},  # so that _LOAD is a wave of its own
        waves=(*(1 for _ in _ALONE), len(_BESIDE), len(_LOAD), *(1 for _ in _LAST)),
        scored=False,
        needs=Need.IMAGES,
    )


def _request(name: str, messages: list[JSON], *, stream: bool | None) -> Request:
    body: dict[str, JSON] = {"messages": messages, "temperature": 0.0, "max_tokens": _MAX_TOKENS, "logprobs": True, "top_logprobs": _TOP}
    return Request(id=name, route=Route.CHAT, body=body, stream=stream)
