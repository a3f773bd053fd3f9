"""Credentials: the secrets that a config states, as ``${VAR}`` whose values reach no artifact; one that is written out is a problem."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.config import expand, validate
from pytest_specdec.files import secrets, yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.problems import Problem
    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.files.yaml import Document, Path
    from pytest_specdec.model.workload import JSON

__all__ = ["of", "written_out"]


def of(config: str, environ: Mapping[str, str] = os.environ) -> Secrets:
    """Return the secrets of the environment and those that the text of a config takes from it, by the names of keys and of variables."""
    return secrets.Secrets.of(environ, also=_values(yaml.load(config, "config.yaml").data, environ))


def written_out(document: Document) -> Iterator[Problem]:
    """Give a problem for every secret that stands in the config itself, without showing it: the file is kept with the run."""
    for path, text in _texts(document.data, ()):
        if text and not expand.names(text) and (_is_secret(path) or secrets.is_literal(text)):
            expected = "a variable of the environment, such as ${MY_API_KEY}"
            yield validate.problem(document, path, "a secret that is written out", expected, "the config is kept with every run")


def _values(data: JSON, environ: Mapping[str, str]) -> Iterator[str]:
    for path, text in _texts(data, ()):
        named = [name for name in expand.names(text) if name in environ]
        yield from (environ[name] for name in named if _is_secret(path) or secrets.is_secret(name, variable=True))
        if _is_secret(path) and len(named) == len(expand.names(text)):
            yield str(expand.expand(text, environ))


def _texts(data: JSON, path: Path) -> Iterator[tuple[Path, str]]:
    """Give every plain value with its path, also inside of arguments that are JSON in a string."""
    if isinstance(data, str) and path[-1:] == ("args",):
        data = _parsed(data)
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _texts(value, (*path, str(name)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*path, index))
    elif isinstance(data, str) or (isinstance(data, (int, float)) and not isinstance(data, bool)):
        yield path, str(data)


def _parsed(text: str) -> JSON:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError:
        return text


def _is_secret(path: Path) -> bool:
    """Return whether the last name in ``path`` says so; one under ``env`` is a variable's."""
    names = [step for step in path if isinstance(step, str)]
    return bool(names) and (secrets.is_secret(names[-1]) or (names[-2:-1] == ["env"] and secrets.is_secret(names[-1], variable=True)))
