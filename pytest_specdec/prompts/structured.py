"""Structured workloads: documents of graded schemas, and answers bound to regular expressions, choices and grammars.

Prompts pull away from the grammar: an engine that enforces it answers a document all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Unpack

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts import schemas
from pytest_specdec.prompts.graded_schemas import GRADED, Grade
from pytest_specdec.prompts.prompts import make_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import PassesFields

__all__ = ["CHOICES", "GRAMMARS", "REGEXES", "constrained", "graded", "graded_draws", "uncompilable"]

_PULLS = (
    "",
    "Explain your answer first, then give it.",
    "Put the answer into a ```json fenced block.",
    "Answer in one plain English sentence.",
    'Begin with "Sure!" and end with a joke.',
)
"""Wishes that a grammar does not grant."""
_OBJECT_EVERY = 8
"""One draw of so many is bound to no schema: any object will do."""

REGEXES: Mapping[str, tuple[str, str]] = {
    "person": (
        "Give me a JSON object for Guido who lives in Madrid and is 35.",
        '\\{"name": "[A-Z][a-z]{1,9}", "age": [0-9]{1,2}, "city": "[A-Z][a-z]{1,9}"\\}',
    ),
    "laugh": ("Laugh at a joke.", "(ha){2,6}!"),
    "plate": ("Invent a number plate.", "[A-Z]{2}-[0-9]{3}"),
    "votes": ("Answer two questions about the moon.", "(yes|no|maybe)(, (yes|no|maybe)){1,3}"),
    "date": ("When did the first people walk on the moon?", "(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]"),
    "hex": ("Which colour is the sea?", "#[0-9a-f]{6}"),
    "release": ("Which release of Python is the newest?", "v[0-9]\\.[0-9]{1,2}"),
}
"""Prompts and patterns by name, in the syntax that Python, Rust and the engines' own parsers share.

The first is an answer that a model may give anyway. An engine drops drafts that a pattern forbids, so that
elsewhere nothing may be drafted at all.
"""
CHOICES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "yes-no": ("Is the earth flat?", ("yes", "no")),
    "mood": ('How does "what a lovely day" sound?', ("positive", "negative", "neutral")),
    "letter": ("Which of A, B, C and D is the third letter?", ("A", "B", "C", "D")),
    "cities": ("Which city is the largest?", ("New York", "New Delhi", "Newcastle upon Tyne")),
    "unicode": ("Stimmst du dafür?", ("für", "gegen", "日本")),
}
GRAMMARS: Mapping[str, tuple[str, str]] = {
    "moves": ("How do I get to the station?", 'root ::= move ("; " move)* \nmove ::= ("left" | "right" | "on") " " [1-9]\n'),
    "colours": ("Name some colours.", 'root ::= colour (", " colour)* "."\ncolour ::= "red" | "green" | "blue"\n'),
    "sum": ("What is two and two?", 'root ::= digit " + " digit " = " digit digit?\ndigit ::= [0-9]\n'),
    "nested": ("Draw boxes, one in the other.", 'root ::= box\nbox ::= "[" (box | "x") "]"\n'),
}
"""Prompts and grammars by name, in GBNF, which most engines take as it is."""
_REPEATING = ("twelve-flags", "grid", "switches")
"""Schemas whose documents repeat themselves."""
_BROKEN = {"structured_outputs": {"regex": "([a-z"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FormatCase:
    """A subject, and the format of the document about it."""

    name: str
    subject: str
    response_format: Mapping[str, JSON]


def graded_draws(
    *,
    temperature: float = 1.0,
    max_tokens: int = 64,
    requests: int | None = None,
    name: str = "graded-structured-t1",
    take: Mapping[Depth, int] | None = None,
    **traffic: Unpack[PassesFields],
) -> Workload:
    """Return ``requests`` structured chat requests at a temperature above 0.

    The answers are constrained to every graded schema in turn, again and again, and some to any object; by default to each
    twice. Every second request has a seed, and the same schema comes with a seed one time and without the next. The answers
    are judged by validity alone, so that nothing is scored.
    """
    cases = _cases()
    count = 2 * len(cases) if requests is None else requests
    draws = [_draw(index, cases[index % len(cases)], repeat=index // len(cases)) for index in range(count)]
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": 1.0}
    settings: PassesFields = {"scored": False, "takes_prompts": True, **traffic}
    return make_workload(name, [_with_fields(request, body) for request in draws], take, settings)


def _cases() -> list[_FormatCase]:
    """Return a case for every graded schema, and some for any JSON object.

    Schemas with repetitive documents come first, since any drafter drafts them. Before every eighth schema a case with any
    JSON object is added.
    """
    cases: list[_FormatCase] = []
    for index, schema in enumerate(sorted(GRADED, key=lambda schema: schema.name not in _REPEATING)):
        if index % _OBJECT_EVERY == _OBJECT_EVERY - 1:
            cases.append(_FormatCase(name="object", subject=schema.about, response_format=schemas.ANY_OBJECT))
        cases.append(_FormatCase(name=schema.name, subject=schema.about, response_format=schema.bound))
    return cases


def _draw(index: int, case: _FormatCase, *, repeat: int) -> Request:
    """Return sampled request ``index`` with one format, seeded every second time.

    ``repeat`` is the number of earlier requests with this format.
    """
    # The formats are sent in turn and are even in number: by ``index`` alone, a format would always have a seed or never.
    has_seed = (index + repeat) % 2 == 0
    seed = {"seed": index + 1} if has_seed else {}
    body: dict[str, JSON] = {**seed, "response_format": case.response_format}
    return _chat_request(f"{case.name}-{index + 1}", _describe_subject(case.subject, index + repeat), body)


def graded(
    *,
    max_tokens: int = 64,
    name: str = "graded-structured",
    take: Mapping[Depth, int] | None = None,
    **traffic: Unpack[PassesFields],
) -> Workload:
    """Return a chat request per graded schema at temperature 0.

    Schemas with repetitive documents come first, since any drafter drafts them, then the others from hard to trivial.
    """
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0}
    grades = list(Grade)
    hardest = sorted(GRADED, key=lambda schema: (schema.name not in _REPEATING, -grades.index(schema.grade)))
    requests = [
        _chat_request(schema.name, _describe_subject(schema.about, index), {"response_format": schema.bound})
        for index, schema in enumerate(hardest)
    ]
    return make_workload(name, [_with_fields(request, body) for request in requests], take, {"scored": False, **traffic})


def constrained(
    *,
    max_tokens: int = 32,
    requests: int = 60,
    name: str = "constrained",
    take: Mapping[Depth, int] | None = None,
    **traffic: Unpack[PassesFields],
) -> Workload:
    """Return chat requests constrained to regular expressions, choices and grammars, in turn.

    Of each kind one request is greedy, the next is sampled with a seed and the next without one, again and again.
    """
    regexes = [(f"regex-{key}", text, {"regex": pattern}) for key, (text, pattern) in REGEXES.items()]
    choices = [(f"choice-{key}", text, {"choice": list(texts)}) for key, (text, texts) in CHOICES.items()]
    grammars = [(f"grammar-{key}", text, {"grammar": grammar}) for key, (text, grammar) in GRAMMARS.items()]
    kinds: Sequence[cycle[tuple[str, str, Mapping[str, JSON]]]] = (cycle(regexes), cycle(choices), cycle(grammars))
    in_turn = islice((next(kind) for kind in cycle(kinds)), requests)
    sent = [_constrained_request(index, *case, max_tokens=max_tokens) for index, case in enumerate(in_turn)]
    return make_workload(name, sent, take, {"scored": False, **traffic})


def _constrained_request(index: int, name: str, text: str, constraint: Mapping[str, JSON], *, max_tokens: int) -> Request:
    """Return request ``index`` with a constraint: greedy, seeded or unseeded in turn.

    Its prompt may ask for something that the grammar forbids.
    """
    # Three kinds of constraints take turns: each goes from greedy to seeded to unseeded.
    sampling_kind = index // 3 % 3
    sampling: dict[str, JSON] = {
        "temperature": float(sampling_kind > 0),
        "top_p": 1.0,
        **({"seed": index + 1} if sampling_kind == 1 else {}),
    }
    pull = _PULLS[index % len(_PULLS)]
    body: dict[str, JSON] = {"max_tokens": max_tokens, **sampling, "structured_outputs": constraint}
    return _chat_request(f"{name}-{index + 1}", f"{text} {pull}".strip(), body)


def uncompilable(*, max_tokens: int = 32, name: str = "structured-uncompilable", **traffic: Unpack[PassesFields]) -> Workload:
    """Return structured requests, one with an invalid regular expression.

    No engine can compile that one, the second. The server must survive it and answer the valid requests that follow.
    """
    body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0}
    valid = [schema for schema in GRADED if schema.name in (*_REPEATING, "lamp")]  # most are such that any drafter drafts them
    no_wish = _PULLS.index("")  # nothing in these prompts pulls away from the schema
    requests = [_chat_request(schema.name, _describe_subject(schema.about, no_wish), {"response_format": schema.bound}) for schema in valid]
    requests.insert(1, _chat_request("broken-regex", "Say hello.", _BROKEN))
    settings: PassesFields = {"version": 2, "concurrency": 1, "scored": False, "may_kill": True, **traffic}
    return make_workload(name, [_with_fields(request, body) for request in requests], None, settings)


def _describe_subject(subject: str, index: int) -> str:
    """Return the question for a document, with the wish of ``_PULLS`` for ``index``."""
    return f"Describe {subject} as a short JSON document. {_PULLS[index % len(_PULLS)]}".strip()


def _chat_request(id_: str, text: str, body: Mapping[str, JSON]) -> Request:
    return Request(id=id_, route=Route.CHAT, body={"messages": [{"role": "user", "content": text}], **body})


def _with_fields(request: Request, body: Mapping[str, JSON]) -> Request:
    return Request(id=request.id, route=request.route, body={**request.body, **body})
