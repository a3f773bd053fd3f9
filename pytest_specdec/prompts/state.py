"""Prompts that share beginnings: the same again, common prefixes of every length, heads and tails crossed, after abandoned streams.

They are for faults of what a server keeps of earlier requests, such as its prefix cache. An id has a phase and a prompt: ``warm/code``
sends the prompt of ``cold/code`` again. ``one`` and ``other`` are heads, ``same`` and ``notes`` tails; ``alike`` repeats one word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Depth, Request, Route, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["in_order", "words"]

_NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea kid body information back parent face "
    "others level office door health person art war history party result change morning reason research girl guy moment air "
    "teacher force education"
)
_WORDS = _NOUNS.split()
"""Common nouns, a token each after a space in most vocabularies: so many words are about as many tokens."""
_TOKENS = 24
_STORY = (
    "The lighthouse keeper of Skerry Rock wrote one line into his log every evening. On Monday he wrote that the wind had turned and the "
    "supply boat would be late. On Tuesday he wrote that the boat had come with flour, oil and a letter from his sister in the town. "
    "On Wednesday he wrote that"
)
_CODE = (
    "# inventory.py: parts of a bicycle shop\n\n\nclass Part:\n    def __init__(self, name, price, count):\n        self.name = name\n"
    "        self.price = price\n        self.count = count\n\n    def total(self):\n        return self.price * self.count\n\n\n"
    "class Inventory:\n    def __init__(self):\n        self.parts = []\n\n    def add(self, part):\n"
)
_TALK = (
    "A ferry leaves the island of Lund every forty minutes from six in the morning, takes twenty-five minutes to the mainland and waits "
    "there for ten minutes. Tell a visitor in two sentences when the third ferry of the day is back on the island."
)
_THINGS = "kettle lamp chair clock mirror basket hammer candle bottle ladder carpet barrel violin bucket saddle"
_ITEMS = _THINGS.split()
_HEADS = tuple(f"The list of the first room: {', '.join(items)}." for items in (_ITEMS, _ITEMS[::-1]))
"""The same words in two orders, so that the text after either one stands at the same place."""
_TAILS = (
    "\nThe list of the second room has the same things in the same order, and then one more. It reads:",
    "\nA visitor walked past them from the last one to the first one and wrote down what she saw. Her notes:",
)
_ALIKE, _ALIKE_TOO = "Count them:" + " the" * 110 + " and then", "Count them:" + " ab" * 110
"""Texts of one word repeated: most cache blocks of one are equal, whatever a block's length, and differ in what comes before."""
_SHARED = (15, 16, 17, 31, 32, 33, 47, 48, 49)
"""Words: around one, two and three blocks of 16 tokens, whatever a tokenizer puts in front.

One to three others follow: a cache entry that is lost at the end of a block is then near the answer, and changes it.
"""
_PATTERN = "red green blue yellow black white "
_TURNS = (
    "Name a bird that cannot fly, and say in one sentence where it lives.",
    "The kiwi cannot fly. It lives in the forests of New Zealand.",
    "Name another one, and say in one sentence where it lives.",
)

_LEAVES_AFTER = 4
"""Chunks of a sampled stream that its client reads before it leaves."""


def in_order(*, max_tokens: int = _TOKENS, name: str = "in-order", take: Mapping[Depth, int] | None = None) -> Workload:
    """Return greedy requests with shared beginnings, sent one by one.

    Each prompt is new, repeats an earlier one or begins like it, so that a wrong answer shows what the server kept wrongly. The last ones
    follow sampled streams whose client disconnects early. ``take`` has the number of requests sent at each depth; without it all are sent.
    """
    contents = {**_beginning_contents(), **_middle_contents(), **_end_contents()}
    # The prompt of pattern/6 is six words six times, which its answer probably repeats; that of pattern/14 is the same 14 times. With twice
    # the tokens, 48 by default, the answer has these eight repeats more: pattern/14 may then reuse what the server kept of an answer.
    token_limits = {"pattern/6": 2 * max_tokens}
    requests = (
        *(_repeated_request(key, content, token_limits.get(key, max_tokens)) for key, content in contents.items()),
        *_abandoned_streams(max_tokens),
    )
    return Workload(name=name, version=3, requests=requests, concurrency=1, top_tokens=5, take=take or {})


def _beginning_contents() -> dict[str, JSON]:
    """Return the prompts of smoke depth's ten requests, by id."""
    story, code, (one, other), (same, notes) = _STORY, _CODE, _HEADS, _TAILS
    return {
        "cold/story": story,
        "cold/code": code,
        "cold/one-same": one + same,
        "warm/story": story,
        "warm/code": code,
        "cold/other-notes": other + notes,
        "crossed/one-notes": one + notes,
        "crossed/other-same": other + same,
        "cold/alike": _ALIKE,
        "warm/alike": _ALIKE,
    }


def _middle_contents() -> dict[str, JSON]:
    """Return the prompts in the middle of the workload, by id.

    A ``shared`` prompt begins as ``cold/words`` does, up to about the end of a cache block (``_SHARED``), and
    ends with one to three other words.
    """
    shared_prompts: dict[str, JSON] = {}
    for index, count in enumerate(_SHARED):
        # From the 70th noun on there are none of the 64 of cold/words. A step of three gives each prompt others.
        other_words = words(1 + index % 3, start=70 + 3 * index)
        shared_prompts[f"shared/{count}"] = f"{words(count)} {other_words}"
    return {
        "again/story": _STORY,
        "again/code": _CODE,
        "cold/words": words(64),  # before the prompts that begin like it
        **shared_prompts,
        "cold/alike-too": _ALIKE_TOO,
        "cold/talk": _messages(_TALK),
        "warm/talk": _messages(_TALK),
    }


def _end_contents() -> dict[str, JSON]:
    """Return the last prompts of the workload, by id."""
    story, code, pattern = _STORY, _CODE, _PATTERN
    first, reply, second = _TURNS
    return {
        # Earlier prompts after a long one.
        "long/words": words(300, start=7, stride=5),
        "after-long/story": story,
        "after-long/code": code,
        # A pattern that answers repeat: pattern/14 may begin with the prompt and the answer of pattern/6.
        "cold/pattern": pattern * 3,
        "pattern/6": pattern * 6,
        "pattern/14": pattern * 14,
        "warm/pattern": pattern * 3,
        # A conversation that grows, and its first turn again in between.
        "cold/turn": _messages(first),
        "turn/second": _messages(first, reply, second),
        "turn/first": _messages(first),
        "turn/third": _messages(first, reply, second, reply, second),
        # Earlier prompts once more, after all others.
        "again/talk": _messages(_TALK),
        "last/story": story,
        "last/code": code,
        "last/alike-too": _ALIKE_TOO,
    }


def _abandoned_streams(max_tokens: int) -> tuple[Request, ...]:
    """Return sampled streams that their client leaves, each followed by an earlier prompt."""
    later = {"story": _STORY, "code": _CODE, "alike": _ALIKE, "talk": _messages(_TALK)}
    pairs = (
        (_left_request(f"left/{key}", number, max_tokens), _repeated_request(f"after-left/{key}", content, max_tokens))
        for number, (key, content) in enumerate(later.items())
    )
    return tuple(request for pair in pairs for request in pair)


def _left_request(key: str, number: int, max_tokens: int) -> Request:
    """Return a sampled request whose client leaves the stream.

    It has a seed: requests that sample without one are sent after all others.
    """
    body: dict[str, JSON] = {"prompt": words(24, start=11 * number, stride=7), "max_tokens": 4 * max_tokens, "ignore_eos": True}
    sampled: dict[str, JSON] = {"temperature": 1.5, "top_p": 1.0, "seed": number}
    return Request(id=key, route=Route.COMPLETIONS, body={**body, **sampled}, abort_after=_LEAVES_AFTER)


def words(count: int, *, start: int = 0, stride: int = 1) -> str:
    """Return a text of ``count`` common nouns.

    They are every ``stride``-th noun of a list from index ``start`` on, round and round.
    """
    return " ".join(_WORDS[(start + stride * index) % len(_WORDS)] for index in range(count))


def _messages(*turns: str) -> JSON:
    """Return the messages of a conversation, the user's and the assistant's in turn."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(turns)]


def _repeated_request(key: str, content: JSON, max_tokens: int) -> Request:
    """Return a greedy request: a completion of a text, or a chat."""
    is_chat = not isinstance(content, str)
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0}
    return Request(
        id=key,
        route=Route.CHAT if is_chat else Route.COMPLETIONS,
        body={"messages" if is_chat else "prompt": content, **body},
    )
