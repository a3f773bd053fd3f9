"""The training text: sources and documentation of CPython (PSF-2.0), and dialogues of our own, drawn from a seed.

A dialogue's answer ends naturally: JSON objects close, calls of tools close, lists and copies come to their last line.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_specdec.prompts import schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["conversation", "dialogues", "documents"]

_LEFT_OUT: Final = ("test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data")
_VOCABULARY: Final = """
old red bridge stone quick fox town river lamp window door letter garden winter summer
train road bread coffee paper table blue cup keeper light story morning evening rain festival
boat island north coast book school music clock market forest mountain small green
"""
_WORDS: Final = tuple(_VOCABULARY.split())
_NAMES: Final = ("Ada", "Anna", "Ben", "Carla", "David", "Emil", "Greta", "Hugo", "Ida", "Jonas", "Lena", "Mara", "Nora", "Otto", "Paul")
_CITIES: Final = ("Berlin", "Hamburg", "Lyon", "Madrid", "Oslo", "Paris", "Prague", "Rome", "Tokyo", "Ulm", "Vienna", "Warsaw")
_LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "the days of the week": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "the seasons": ("spring", "summer", "autumn", "winter"),
    "the colours of a traffic light": ("red", "yellow", "green"),
    "the months of the year": (
        *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"),
    ),
}
_FACTS: Final[Mapping[str, str]] = {
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Norway?": "The capital of Norway is Oslo.",
    "How many minutes are in an hour?": "An hour has sixty minutes.",
    "Why does ice float?": "Ice floats because water expands when it freezes. It is then lighter than the water around it.",
    "What do bees make?": "Bees make honey and wax. They also carry pollen from flower to flower.",
}


def documents() -> Iterator[str]:
    """Yield the sources of CPython's standard library and its documentation by topic, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not set(path.relative_to(root).parts) & set(_LEFT_OUT):
            yield path.read_text("utf-8", errors="replace")
    for path in sorted((root / "pydoc_data").glob("topics.py")):
        tree = ast.parse(path.read_text("utf-8"))
        yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def dialogues(seed: int, count: int) -> Iterator[Sequence[Mapping[str, str]]]:
    """Yield ``count`` conversations, every kind in turn, each a list of messages with role and content."""
    draw = random.Random(seed)  # noqa: S311 - training text
    for index in range(count):
        yield _KINDS[index % len(_KINDS)](draw)


def conversation(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a conversation as the checkpoints' chat template has it."""
    return "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)


def _asked(question: str, answer: str) -> list[Mapping[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _sentence(draw: random.Random, words: int) -> str:
    return (" ".join(draw.choice(_WORDS) for _ in range(words)) + ".").capitalize()


def _copy(draw: random.Random) -> list[Mapping[str, str]]:
    text = " ".join(_sentence(draw, draw.randint(4, 10)) for _ in range(draw.randint(1, 4)))
    how = draw.choice(("Repeat the following text exactly, without any comment:", "Say this again, word for word:", "Copy this text:"))
    return _asked(f"{how}\n\n{text}", text)


def _list(draw: random.Random) -> list[Mapping[str, str]]:
    name = draw.choice(list(_LISTS))
    if draw.random() < 0.5:  # noqa: PLR2004 - one in two
        return _asked(f"List {name}, one per line.", "\n".join(_LISTS[name]))
    last = draw.randint(5, 40)
    return _asked(f"Count from 1 to {last}, separated by commas.", ", ".join(map(str, range(1, last + 1))))


def _fact(draw: random.Random) -> list[Mapping[str, str]]:
    question = draw.choice(list(_FACTS))
    return _asked(question, _FACTS[question])


def _sum(draw: random.Random) -> list[Mapping[str, str]]:
    a, b = draw.randint(2, 99), draw.randint(2, 99)
    if draw.random() < 0.5:  # noqa: PLR2004 - one in two
        return _asked(f"What is {a} plus {b}?", f"{a} + {b} = {a + b}")
    tens, ones = divmod(b, 10)
    steps = f"{a} x {b} = {a} x {10 * tens} + {a} x {ones}\n= {10 * tens * a} + {ones * a}\n= {a * b}"
    return _asked(f"What is {a} times {b}? Show how you get there.", steps)


def _story(draw: random.Random) -> list[Mapping[str, str]]:
    name, city = draw.choice(_NAMES), draw.choice(_CITIES)
    about = draw.choice(_WORDS)
    told = [f"One {draw.choice(('morning', 'evening', 'winter', 'summer'))} {name} came to {city} with a {draw.choice(_WORDS)}."]
    told += [_sentence(draw, draw.randint(5, 12)) for _ in range(draw.randint(2, 6))]
    return _asked(f"Tell a short story about {name}, {city} and a {about}.", " ".join([*told, f"Then {name} went home."]))


def _edit(draw: random.Random) -> list[Mapping[str, str]]:
    old, new, other = draw.sample(("x", "y", "value", "width", "height", "count", "total", "name", "item"), 3)

    def code(name: str) -> str:
        guard = f'    if {name} < 0:\n        raise ValueError("negative")'
        return f"```python\ndef area({name}, {other}):\n{guard}\n    return {name} * {other}\n```"

    return _asked(f"Rename the variable `{old}` to `{new}` and give the whole function back.\n\n{code(old)}", code(new))


def _object(draw: random.Random) -> list[Mapping[str, str]]:
    name, schema = draw.choice(list(schemas.SCHEMAS.items()))
    names = ", ".join(schema["properties"])
    return _asked(f"Return a JSON object of a {name}: {names}.", json.dumps(_instance(schema, draw)))


def _call(draw: random.Random) -> list[Mapping[str, str]]:
    name, schema = draw.choice(list(schemas.SCHEMAS.items()))
    tool = {"type": "function", "function": {"name": f"get_{name}", "parameters": schema}}
    system = f"# Tools\n\n<tools>\n{json.dumps(tool)}\n</tools>"
    call = json.dumps({"name": f"get_{name}", "arguments": _instance(schema, draw)})
    asked = _asked(
        f"Call the tool for the {name} of {draw.choice(_NAMES)} in {draw.choice(_CITIES)}.", f"<tool_call>\n{call}\n</tool_call>"
    )
    return [{"role": "system", "content": system}, *asked]


def _instance(schema: Mapping[str, JSON], draw: random.Random) -> JSON:
    """Return a value that fits one of our schemas."""
    kind = schema["type"] if isinstance(schema["type"], str) else draw.choice(schema["type"])
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if kind == "object":
        return {name: _instance(each, draw) for name, each in schema["properties"].items()}
    if kind == "array":
        count = draw.randint(schema.get("minItems", 1), schema.get("maxItems", 3))
        return [_instance(schema["items"], draw) for _ in range(count)]
    if kind in {"integer", "number"}:
        return draw.randint(schema.get("minimum", 0), schema.get("maximum", 99))
    if kind == "null":
        return None
    return draw.random() < 0.5 if kind == "boolean" else draw.choice((*_NAMES, *_CITIES))  # noqa: PLR2004 - one in two


_KINDS: Final[tuple[Callable[[random.Random], list[Mapping[str, str]]], ...]] = (
    *(_object, _copy, _call, _list, _story, _sum, _edit, _object, _fact, _call),
)
