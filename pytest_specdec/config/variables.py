"""``${VAR}`` in a config: filled in at launch and nowhere before, the secrets among the values, and their salted digests."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING

from pytest_specdec.config import validate
from pytest_specdec.config.validate import dotted, nearest
from pytest_specdec.errors import ConfigError
from pytest_specdec.files import secrets, yaml
from pytest_specdec.model.baseline import Variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

__all__ = ["changed", "digests", "expand", "filled", "names", "secrets_of", "unset", "written_out"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand(value: JSON, environ: Mapping[str, str], path: KeyPath = ()) -> JSON:
    """Return ``value`` with every ``${VAR}`` in its strings replaced from ``environ``, once.

    ``path`` is where the value stands, for the error. Raises ConfigError naming a variable that is not set.
    """
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _lookup(match[1], environ, path), value)
    if isinstance(value, Mapping):
        return {key: expand(item, environ, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [expand(item, environ, (*path, index)) for index, item in enumerate(value)]
    return value


def filled(config: Config, environ: Mapping[str, str]) -> Config:
    """Return ``config`` with the ``${VAR}`` of what is needed before a launch replaced: model, engine's place, prompts, reasoning.

    Raises ConfigError naming a variable that is not set.
    """
    engine = config.engine

    def text(name: str, value: str | None) -> str | None:
        return None if value is None else str(expand(value, environ, ("engine", name)))

    places = replace(
        engine,
        model=str(text("model", engine.model)),
        executable=text("executable", engine.executable),
        venv=text("venv", engine.venv),
        image=text("image", engine.image),
    )
    reasoning = replace(
        config.reasoning,
        effort=str(expand(config.reasoning.effort, environ, ("reasoning", "effort"))),
        template=_mapping(expand(config.reasoning.template, environ, ("reasoning", "template"))),
    )
    return replace(config, engine=places, prompts=str(expand(config.prompts, environ, ("prompts",))), reasoning=reasoning)


def _mapping(value: JSON) -> Mapping[str, JSON]:
    assert isinstance(value, Mapping), "what it was made of is one"
    return value


def names(value: JSON) -> tuple[str, ...]:
    """Return the variables that the strings of ``value`` name, each once."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(match[1] for match in _VARIABLE.finditer(value)))
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return tuple(dict.fromkeys(name for part in parts for name in names(part)))


def unset(config: str, environ: Mapping[str, str]) -> tuple[ConfigError, ...]:
    """Return an error for every variable that is not set, naming the first place in the text of a config that takes it."""
    errors: dict[str, ConfigError] = {}
    for path, text in _texts(yaml.load(config, "config.yaml").data, ()):
        for name in names(text):
            try:
                _lookup(name, environ, path)
            except ConfigError as error:
                errors.setdefault(name, error)
    return tuple(errors.values())


def _lookup(name: str, environ: Mapping[str, str], path: KeyPath) -> str:
    if name not in environ:
        what, near = f"the environment variable {name} is not set", nearest(name, environ)
        remedy = f"export {name}=…" + (f"; {near}" if near else "")
        raise ConfigError(what, where=dotted(path), found=f"${{{name}}}", expected="a variable that is set", remedy=remedy)
    return environ[name]


def secrets_of(config: str, environ: Mapping[str, str] = os.environ) -> Secrets:
    """Return the secrets of the environment and those that the text of a config takes from it, by the names of keys and of variables."""
    return secrets.Secrets.of(environ, also=_values(yaml.load(config, "config.yaml").data, environ))


def written_out(document: YamlDocument) -> Iterator[Problem]:
    """Give a problem for every secret that stands in the config itself, without showing it: the file is kept with the run."""
    for path, text in _texts(document.data, ()):
        if text and not names(text) and (_is_secret(path) or secrets.is_literal(text)):
            expected = "a variable of the environment, such as ${MY_API_KEY}"
            yield validate.problem(document, path, "a secret that is written out", expected, "the config is kept with every run")


def _values(data: JSON, environ: Mapping[str, str]) -> Iterator[str]:
    for path, text in _texts(data, ()):
        named = [name for name in names(text) if name in environ]
        yield from (environ[name] for name in named if _is_secret(path) or secrets.is_secret(name, variable=True))
        if _is_secret(path) and len(named) == len(names(text)):
            yield str(expand(text, environ))


def _texts(data: JSON, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
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


def _is_secret(path: KeyPath) -> bool:
    """Return whether the last name in ``path`` says so; one under ``env`` is a variable's."""
    names = [step for step in path if isinstance(step, str)]
    return bool(names) and (secrets.is_secret(names[-1]) or (names[-2:-1] == ["env"] and secrets.is_secret(names[-1], variable=True)))


_SALT_BYTES = 16
_COST = 2**14
"""Of scrypt: it makes guessing a short secret from its digest slow."""


def digests(config: str, environ: Mapping[str, str]) -> Variables:
    """Return the digests of the variables that the text of a config names."""
    salt = token_hex(_SALT_BYTES)
    return Variables(salt=salt, digests=_digests(config, environ, salt))


def changed(then: Variables, config: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables whose value is another than ``then``, or that are set or unset since."""
    now = _digests(config, environ, then.salt)
    return tuple(name for name in dict.fromkeys([*then.digests, *now]) if then.digests.get(name) != now.get(name))


def _digests(config: str, environ: Mapping[str, str], salt: str) -> dict[str, str]:
    named = names(yaml.load(config, "config.yaml").data)
    return {name: _digest(environ[name], salt) for name in named if name in environ}


def _digest(value: str, salt: str) -> str:
    text = value.encode(errors="surrogateescape")
    return hashlib.scrypt(text, salt=bytes.fromhex(salt), n=_COST, r=8, p=1, dklen=_SALT_BYTES).hex()
