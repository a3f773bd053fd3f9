"""A config's data held against its schema, and every problem reported with its place and remedy.

An error is one of the package jsonschema. It has the schema's keyword that failed (``validator``), the keyword's value, and the wrong value
(``instance``). It becomes a problem for users: what was found at which place, and what was expected.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jsonschema import Draft202012Validator

from pytest_specdec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_specdec.files.yaml import KeyPath, YamlDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error or warning about a config file: where, found, expected, remedy."""

    source: str
    """The file."""
    line: int
    """From 1."""
    path: str
    """Dotted: ``variants.eagle3-k3.args``."""
    found: str
    expected: str
    suggestion: str = ""
    """The nearest name, or what to do."""
    refused: bool = True
    """Whether such a config is refused; False for a warning of the lint."""

    def __str__(self) -> str:
        suggestion = f"; {self.suggestion}" if self.suggestion else ""
        return f"{self.source}:{self.line}  {self.path}: found {self.found}, expected {self.expected}{suggestion}"


def error(problems: Sequence[Problem], what: str = "the config") -> ConfigError:
    """Return one error with all of ``problems`` of ``what``, in file order."""
    ordered = sorted(problems, key=lambda problem: (problem.line, problem.path))
    count = "a problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    lines = "\n".join(f"  {problem}" for problem in ordered)
    return ConfigError(f"{what} has {count}\n{lines}", remedy=f"edit {ordered[0].source}")


def dotted_path(path: KeyPath) -> str:
    """Return ``path`` in dotted form: ``engine.args``, ``require[1]``, or ``the file`` for the root."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".") or "the file"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'variants'?``; empty if no name is similar."""
    closest = _closest_name(name, names)
    return "" if closest is None else f"did you mean '{closest}'?"


def _closest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of ``names``; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a mapping",
    "string": "a string",
}
_PATTERNS = {
    "^[a-z0-9][a-z0-9-]*$": "lower-case letters, digits and dashes, such as eagle3-k3",
    "^[a-z0-9]+(-[a-z0-9]+)*$": "lower-case letters and digits with single dashes between, such as fp8-e5m2",
    "^[a-z][a-z0-9_-]*$": "the name of an engine: lower-case letters, digits, - and _",
    "^[a-z][a-z0-9_]*$": "the name of a feature, such as json_schema",
    "^[a-z][a-z0-9_-]*(\\.[a-z][a-z0-9_-]*)+$": "the dotted name of another package's family, such as acme.tone",
    "^(https?://|\\$\\{)": "an address, such as http://10.0.0.7:8000",
    "^[A-Za-z0-9][A-Za-z0-9._-]*$": "a name of letters, digits and ._- that begins with a letter or digit, such as refund-01",
    (
        "^(chat-template|tokenizer|numerics|weights|model|some-prompts|some-positions|noise|defaults|draws|answers|repeats|ends"
        "|slower-baseline|slower-drafter|slower-step|slower-variant|(refuses|ignores|fails-on)-.+)$"
    ): "the name of a change, such as chat-template, slower-drafter or refuses-min_p; the comparison lists them",
    "^/": "a path from the server's address on, such as /collective_rpc",
    "^[A-Za-z_][A-Za-z0-9_]*$": "the name of a variable, such as OMP_NUM_THREADS",
}
_PLACES = ("executable", "venv", "image")
"""Settings that name an engine's program, of which a config may have one."""
_LONGEST = 60
_VARIABLES = (
    "write it out: variables stand in the texts of engine, engines, stack, scorer, variants, baseline, draft and speed, "
    "and in bodies and commands under between"
)


class _Error(Protocol):
    """What is read of a jsonschema ValidationError."""

    validator: Any
    validator_value: Any
    instance: Any
    schema: Any
    absolute_path: Any
    absolute_schema_path: Any


class _Words(NamedTuple):
    """The texts of a problem, without its place."""

    found: str
    expected: str
    suggestion: str = ""


def problems(document: YamlDocument, schema: str = "schema.json") -> tuple[Problem, ...]:
    """Return every violation of ``schema`` in ``document``, each once.

    ``schema`` is the name of a file of this package.
    """
    errors = list(_validator(schema).iter_errors(document.data))
    # A key that was only misspelt is not missing too.
    intended = {path for error in errors if error.validator == "additionalProperties" for path in _intended_keys(error)}
    return tuple(dict.fromkeys(problem for error in errors for problem in _problems_of_error(document, error, intended)))


def problem(document: YamlDocument, path: KeyPath, found: str, expected: str, suggestion: str = "") -> Problem:
    """Return a problem at ``path``, with that path's line in the file."""
    return Problem(
        source=document.source, line=document.line(path), path=dotted_path(path), found=found, expected=expected, suggestion=suggestion
    )


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = resources.files("pytest_specdec.config").joinpath(name).read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(schema))


def _problems_of_error(document: YamlDocument, error: _Error, intended: set[KeyPath]) -> Iterator[Problem]:
    """Yield the problems behind one error of the JSON Schema.

    An error about unknown or missing keys is a problem for each key, any other error one problem. Keys in ``intended`` are not reported as
    missing, since they were only misspelt. The problem of a value with ``${`` in it advises to write the value out.
    """
    path: KeyPath = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        known_keys = _schema_properties(error)
        for name in _unknown_keys(error):
            yield problem(document, (*path, name), "an unknown key", _join_names(known_keys, "or"), nearest(name, known_keys))
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance and (*path, name) not in intended:
                yield problem(document, (*path, name), "nothing", "a value: it must be given")
    # An error about the name of a key; the name is the instance. _NAMES and _WORDS make the texts, by the keyword that failed.
    elif "propertyNames" in error.absolute_schema_path:
        yield problem(document, (*path, str(error.instance)), *_NAMES[str(error.validator)](error))
    # The keyword "not" stands for mappings. Any other value fails "type" too, and that error is the one to report.
    elif error.validator != "not" or isinstance(error.instance, Mapping):
        words = _WORDS[str(error.validator)](error)
        suggestion = _VARIABLES if isinstance(error.instance, str) and "${" in error.instance else words.suggestion
        yield problem(document, path, words.found, words.expected, suggestion)


def _intended_keys(error: _Error) -> Iterator[KeyPath]:
    """Yield the paths of the keys probably meant by misspelt ones.

    ``error`` is one about unknown keys; such a key's nearest known name is the one meant.
    """
    known_keys = _schema_properties(error)
    for name in _unknown_keys(error):
        if (key := _closest_name(name, known_keys)) is not None:
            yield (*error.absolute_path, key)


def _schema_properties(error: _Error) -> Mapping[str, Any]:
    return dict(error.schema["properties"])


def _unknown_keys(error: _Error) -> list[str]:
    known_keys = _schema_properties(error)
    return [name for name in error.instance if name not in known_keys]


def _type_words(error: _Error) -> _Words:
    """Return the words for a value of the wrong type.

    For a number in place of a text they advise to quote it.
    """
    types = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
    quoting = "quote it" if "string" in types and isinstance(error.instance, (bool, int, float)) else ""
    return _Words(_describe_value(error.instance), _join_names([_TYPES[name] for name in types], "or"), quoting)


def _enum_words(error: _Error) -> _Words:
    """Return the words for a value outside a closed list."""
    names = [str(name) for name in error.validator_value]
    return _Words(_describe_value(error.instance), _join_names(names, "or"), nearest(str(error.instance), names))


def _family_words(error: _Error) -> _Words:
    """Return the words for a name of no known family of judgements.

    The schema allows a family of this package, by an ``enum`` of names, or one of another package, by a ``pattern`` for dotted names.
    """
    bundled, outside = error.validator_value  # these two schemas, in this order
    names = bundled["enum"]
    dotted_name = _PATTERNS[outside["pattern"]]  # the pattern in words
    return _Words(_describe_value(error.instance), _join_names([*names, dotted_name], "or"), nearest(str(error.instance), names))


def _exclusive_words(error: _Error) -> _Words:
    """Return the words for an engine with several programs."""
    return _Words(_join_names([name for name in _PLACES if name in error.instance], "and"), f"at most one of {_join_names(_PLACES, 'and')}")


def _pattern_words(error: _Error) -> _Words:
    return _Words(_describe_value(error.instance), _PATTERNS[error.validator_value])


def _reserved_name_words(error: _Error) -> _Words:
    """Return the words for a variant with a reserved name, such as ``baseline``."""
    return _Words("a name that means another arm", f"a name other than {_join_names(error.validator_value['enum'], 'and')}")


_WORDS: Mapping[str, Callable[[_Error], _Words]] = {
    "type": _type_words,
    "enum": _enum_words,
    "anyOf": _family_words,
    "not": _exclusive_words,
    "pattern": _pattern_words,
    "minLength": lambda _: _Words("an empty string", "at least one character"),
    "minItems": lambda _: _Words("none", "at least one"),
    "minProperties": lambda _: _Words("none", "at least one"),
    "uniqueItems": lambda error: _Words(f"{_join_names(_repeated_items(error.instance), 'and')} twice", "each once"),
    "exclusiveMinimum": lambda error: _Words(_describe_value(error.instance), f"more than {error.validator_value}"),
    "maximum": lambda error: _Words(_describe_value(error.instance), f"at most {error.validator_value}"),
}
"""Every keyword of the schemas that an error can come from; a test reads them and says so."""
_NAMES: Mapping[str, Callable[[_Error], _Words]] = {
    "pattern": lambda error: _Words("this name", _PATTERNS[str(error.validator_value)]),
    "not": _reserved_name_words,
}
"""Likewise, every keyword for the name of a key (``propertyNames``)."""


def _repeated_items(items: Sequence[object]) -> list[str]:
    return [str(item) for index, item in enumerate(items) if item in items[:index]]


def _describe_value(value: object) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _join_names(names: Iterable[str], word: str) -> str:
    items = list(names)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
