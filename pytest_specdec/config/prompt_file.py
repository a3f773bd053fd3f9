"""A prompts file: one JSON object per line, read with all of its problems at once.

A line is a prompt of the user's own, sent beside those of the suites: ``messages`` of a chat, or ``prompt``, the beginning of a text. A
``schema`` is what its answer must follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for

from pytest_specdec.config import validate
from pytest_specdec.config.validate import Problem
from pytest_specdec.errors import ConfigError
from pytest_specdec.files import yaml
from pytest_specdec.prompts.own import OwnPrompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import JSON

_LINE_SCHEMA = "prompt.schema.json"
_EXAMPLE = '{"id": "refund-01", "messages": [{"role": "user", "content": "..."}]}'


def read(config: Config) -> tuple[OwnPrompt, ...]:
    """Return the prompts of the config's prompts file, in order.

    Empty if ``config`` names no file. Raises ConfigError with all problems of the file and their lines, or if it has no prompt.
    """
    if not config.prompts:
        return ()
    path = Path(config.resolve(config.prompts))
    lines = _parse_lines(path, _read_prompts_text(config, path))
    problems = (*lines.problems, *_duplicate_ids(path, lines.parsed))
    if not lines.parsed and not problems:
        problems = (_problem(path, 1, "the file", "no line with a prompt", f"a prompt per line, such as {_EXAMPLE}"),)
    if problems:
        raise validate.error(problems, "the prompts file")
    return tuple(_own_prompt(data) for _, data in lines.parsed)


def _read_prompts_text(config: Config, path: Path) -> str:
    """Return the text of the prompts file.

    Raises ConfigError if it cannot be read; for a missing file the error suggests one with a similar name.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        line = config.document().line(("prompts",))
        prompt_files = [file.name for file in config.path.parent.glob("*.jsonl")] if isinstance(error, FileNotFoundError) else []
        hint = validate.nearest(path.name, prompt_files)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            "the prompts file cannot be read" + (f"; {hint}" if hint else ""),
            where=f"{config.path}:{line}  prompts",
            found=f"{config.prompts}: {reason}",
            expected="a JSONL file in UTF-8, by its path beside the config",
        ) from None


class _Lines:
    """The lines of a file that are JSON objects, and the problems of all lines."""

    def __init__(self) -> None:
        self.parsed: list[tuple[int, Mapping[str, JSON]]] = []
        """The number of each line, from 1, and its object."""
        self.problems: list[Problem] = []


def _parse_lines(path: Path, text: str) -> _Lines:
    """Return the JSON objects in a text, and all problems.

    An object with problems is returned too, since its id may be repeated in another line. Empty lines are skipped.
    """
    lines = _Lines()
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a JSON string may hold U+2028
        if not line.strip():
            continue
        try:
            data = json.loads(line, object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            lines.problems.append(_problem(path, number, "the line", f"no JSON ({error})", f"a JSON object, such as {_EXAMPLE}"))
            continue
        problems = tuple(_line_problems(path, number, data))
        lines.problems.extend(problems)
        if isinstance(data, Mapping):
            lines.parsed.append((number, data))
    return lines


def _line_problems(path: Path, number: int, data: JSON) -> Iterator[Problem]:
    """Yield the problems of one line, those of the line's own JSON Schema first.

    ``data`` is the value in the line, and ``number`` the line's number from 1.
    """
    document = yaml.YamlDocument(data=data, source=str(path), lines={})
    for problem in validate.problems(document, _LINE_SCHEMA):
        # `validate` takes this document of one line for the whole file.
        yield replace(problem, line=number, path="the line" if problem.path == "the file" else problem.path)
    if isinstance(data, Mapping):
        yield from _content_problems(path, number, data)
        yield from _answer_schema_problems(path, number, data)


def _content_problems(path: Path, number: int, data: Mapping[str, JSON]) -> Iterator[Problem]:
    """Yield the problems of ``prompt`` and ``messages``.

    A line needs exactly one of the two, and ``messages`` if it has a schema.
    """
    content_fields = [name for name in ("prompt", "messages") if name in data]
    if len(content_fields) != 1:
        actual = "prompt and messages" if content_fields else "neither prompt nor messages"
        yield _problem(path, number, "the line", actual, "one of the two")
    if "schema" in data and content_fields == ["prompt"]:
        expected = "messages: answers are bound to a schema on the chat route"
        yield _problem(path, number, "schema", "a schema beside prompt", expected)


def _answer_schema_problems(path: Path, number: int, data: Mapping[str, JSON]) -> Iterator[Problem]:
    """Yield the problem of a line's ``schema`` of answers if it is no JSON Schema.

    One that is no mapping is left to ``_LINE_SCHEMA``.
    """
    schema = data.get("schema")
    if not isinstance(schema, dict):
        return
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        place = "schema" + "".join(f".{step}" for step in error.absolute_path)
        yield _problem(path, number, place, f"no JSON Schema: {str(error.message)[:120]}", "a JSON Schema")


def _duplicate_ids(path: Path, parsed: Sequence[tuple[int, Mapping[str, JSON]]]) -> Iterator[Problem]:
    """Yield a problem for every id that an earlier line has too."""
    line_of_id: dict[str, int] = {}
    for number, data in parsed:
        name = data.get("id")
        if isinstance(name, str) and line_of_id.setdefault(name, number) != number:
            yield _problem(
                path, number, "id", f"{json.dumps(name)}, the id of line {line_of_id[name]} too", "an id of its own for each line"
            )


def _own_prompt(data: Mapping[str, JSON]) -> OwnPrompt:
    """Return the prompt of a line without problems."""
    schema, max_tokens = data.get("schema"), data.get("max_tokens")
    return OwnPrompt(
        id=str(data["id"]),
        content={name: data[name] for name in ("messages", "prompt") if name in data},
        schema=schema if isinstance(schema, Mapping) else None,
        max_tokens=max_tokens if isinstance(max_tokens, int) else None,
    )


def _problem(path: Path, line: int, place: str, found: str, expected: str) -> Problem:
    return Problem(source=str(path), line=line, path=place, found=found, expected=expected)


def _refuse_repeated_keys(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """Return a mapping of ``pairs``; raise ValueError if a key is repeated."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        msg = f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice"
        raise ValueError(msg)
    return data


def _refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and infinities.

    Python accepts them, but JSON does not have them.
    """
    msg = f"{name} is no number of JSON"
    raise ValueError(msg)
