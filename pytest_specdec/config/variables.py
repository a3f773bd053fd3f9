"""``${VAR}`` in a config: filled in at launch and nowhere before, the secrets among the values, and their salted digests.

``environ`` has the variables of the environment, by name. A layer is the settings of the engine, or of an arm, laid over those. A path is
the place of a value in the config: its keys and indices. A private section, ``headers``, ``body``, ``env`` or ``command``, may have a
secret in any variable. Secrets are masked in all that a run writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

from pytest_specdec.config import validate
from pytest_specdec.config.validate import dotted_path, nearest
from pytest_specdec.errors import ConfigError
from pytest_specdec.files import secrets, yaml
from pytest_specdec.model.baseline import Variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config, DockerSettings, EngineSettings, Overlay, Reasoning, StackProcess, VariantSettings
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SHELL = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?![A-Za-z0-9_}])[^}]*\}?")
"""A shell's ``${NAME:-default}`` and its like."""
_MODEL_AND_PROGRAM = ("model", "executable", "venv", "image")
_NAMED = {("variants",), ("engines",), ("stack",)}
"""Sections of a config with several arms or processes, each under a name or a number."""
_PRIVATE = frozenset({"headers", "body", "env", "command"})
"""Parts of an arm, a process or an event in which every ``${VAR}`` is taken for a secret: keys of gateways have many names."""
_PATHS = ("/", "~", "./")
"""Beginnings of an environment variable's value that is a path."""
_Layer = TypeVar("_Layer", "EngineSettings", "Overlay", "VariantSettings")


def expand(value: JSON, environ: Mapping[str, str], path: KeyPath = ()) -> JSON:
    """Return ``value`` with every ``${VAR}`` in its strings replaced from ``environ``.

    A ``${VAR}`` in a variable's own value is not replaced again. Raises ConfigError if a variable is not set, with
    ``path`` as its place.
    """
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _look_up(match[1], environ, path), value)
    if isinstance(value, Mapping):
        return {key: expand(item, environ, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [expand(item, environ, (*path, index)) for index, item in enumerate(value)]
    return value


def fill(config: Config, environ: Mapping[str, str]) -> Config:
    """Return ``config`` with the ``${VAR}`` of its plain settings replaced.

    Those of API keys, headers, ``env``, ``environment`` and the steps under ``between`` stay until these are used. Raises
    ConfigError for the first variable that is not set, even if it is one of those.
    """
    if unset := find_unset(config.text, environ):
        raise unset[0]
    return replace(
        config,
        engine=_expand_engine(config.engine, environ, "engine"),
        # Its settings are those of `engine` with `engines.old` laid over; the place is for errors only.
        old=_expand_engine(config.old, environ, "engine") if config.old else None,
        scorer=_expand_engine(config.scorer, environ, "scorer") if config.scorer else None,
        variants=tuple(_expand_layer(variant, environ, ("variants", variant.name)) for variant in config.variants),
        baseline=_expand_layer(config.baseline, environ, ("baseline",)),
        draft=_expand_layer(config.draft, environ, ("draft",)),
        speed=_expand_layer(config.speed, environ, ("speed",)) if config.speed else None,
        stack=tuple(_expand_process(process, environ, ("stack", at)) for at, process in enumerate(config.stack)),
        prompts=_expand_text(config.prompts, environ, "prompts"),
        reasoning=_expand_reasoning(config.reasoning, environ),
    )


def _expand_engine(engine: EngineSettings, environ: Mapping[str, str], name: str) -> EngineSettings:
    places = {key: _expand_text(value, environ, name, key) for key in _MODEL_AND_PROGRAM if (value := getattr(engine, key)) is not None}
    return replace(_expand_layer(engine, environ, (name,)), docker=_expand_docker(engine.docker, environ, name), **places)  # type: ignore[arg-type]  # all texts


def _expand_process(process: StackProcess, environ: Mapping[str, str], path: KeyPath) -> StackProcess:
    """Return ``process`` with the variables in its command and arguments replaced.

    Those in ``env`` stay until it is launched. ``path`` is its place, for errors.
    """
    command = tuple(_expand_text(word, environ, *path, "command", at) for at, word in enumerate(process.command))
    args = {name: expand(value, environ, (*path, "args", name)) for name, value in process.args.items()}
    return replace(process, command=command, args=args)


def _expand_layer(layer: _Layer, environ: Mapping[str, str], path: KeyPath) -> _Layer:
    """Return ``layer`` with the variables in its values replaced.

    Those in headers and ``env`` stay until a server is launched. ``path`` is the layer's place, for errors.
    """
    args = {name: expand(value, environ, (*path, "args", name)) for name, value in layer.args.items()}
    body = {name: expand(value, environ, (*path, "body", name)) for name, value in layer.body.items()}
    url = None if layer.url is None else _expand_text(layer.url, environ, *path, "url")
    metrics_url = tuple(_expand_text(address, environ, *path, "metrics_url") for address in layer.metrics_url)
    served_as = None if layer.served_as is None else _expand_text(layer.served_as, environ, *path, "served_as")
    return replace(layer, args=args, body=body, url=url, metrics_url=metrics_url, served_as=served_as)


def _expand_reasoning(settings: Reasoning, environ: Mapping[str, str]) -> Reasoning:
    """Return reasoning settings with the variables in their texts replaced."""
    template = tuple(
        {name: expand(value, environ, ("reasoning", "template", name)) for name, value in setting.items()} for setting in settings.template
    )
    return replace(
        settings, effort=tuple(_expand_text(setting, environ, "reasoning", "effort") for setting in settings.effort), template=template
    )


def _expand_docker(settings: DockerSettings, environ: Mapping[str, str], name: str) -> DockerSettings:
    """Return docker settings with all variables replaced.

    ``name`` is the section that has them, for errors.
    """

    def text(value: str) -> str:
        return _expand_text(value, environ, name, "docker")

    return replace(
        settings,
        options=tuple(map(text, settings.options)),
        volumes={text(host): text(path) for host, path in settings.volumes.items()},
        gpus=text(settings.gpus),
        entrypoint=text(settings.entrypoint) if settings.entrypoint else None,
    )


def _expand_text(value: str, environ: Mapping[str, str], *path: str | int) -> str:
    return str(expand(value, environ, path))


def names(value: JSON) -> tuple[str, ...]:
    """Return the names of the variables in the strings of ``value``, each once."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(match[1] for match in _VARIABLE.finditer(value)))
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return tuple(dict.fromkeys(name for item in items for name in names(item)))


def find_unset(config: str, environ: Mapping[str, str]) -> tuple[ConfigError, ...]:
    """Return an error for every unset variable of a config's text.

    Each error has the first place that uses the variable.
    """
    errors: dict[str, ConfigError] = {}
    for path, text in _plain_values(yaml.load(config, "config.yaml").data, ()):
        for name in names(text):
            try:
                _look_up(name, environ, path)
            except ConfigError as error:
                errors.setdefault(name, error)
    return tuple(errors.values())


def _look_up(name: str, environ: Mapping[str, str], path: KeyPath) -> str:
    """Return the value of a variable; raise ConfigError if it is not set."""
    if name not in environ:
        what, hint = f"the environment variable {name} is not set", nearest(name, environ)
        remedy = f"export {name}=…" + (f"; {hint}" if hint else "")
        raise ConfigError(what, where=dotted_path(path), found=f"${{{name}}}", expected="a variable that is set", remedy=remedy)
    return environ[name]


def secrets_of(config: str, environ: Mapping[str, str] = os.environ) -> Secrets:
    """Return the secrets to mask, of environment and config.

    They are the values of all environment variables with names such as ``HF_TOKEN``, and further values that the config's text takes from
    the environment (:func:`_values_to_mask`).
    """
    return secrets.Secrets.of(environ, also=_values_to_mask(yaml.load(config, "config.yaml").data, environ))


def find_written_secrets(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for every written-out secret or header.

    A header may hold a gateway's key, unless it is among ``HARMLESS_HEADERS``, and the config is copied into every run. The
    problem does not quote the text.
    """
    for path, text in _plain_values(document.data, ()):
        if not text or names(text):
            continue
        if _marks_secret(path) or secrets.is_literal(text):
            expected = "a variable of the environment, such as ${MY_API_KEY}"
            yield validate.problem(document, path, "a secret that is written out", expected, "the config is kept with every run")
        elif _private_part(path) == "headers" and str(path[-1]).lower() not in secrets.HARMLESS_HEADERS:
            expected = "a variable of the environment, such as ${MY_HEADER}"
            hint = "it may be a gateway's key, and the config is kept with every run; `public: [MY_HEADER]` leaves it readable"
            yield validate.problem(document, path, "a header that is written out", expected, hint)


def find_unused(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for every name under ``public`` that nothing takes.

    It is probably misspelt, and the variable that was meant would stay masked.
    """
    used_names = names(document.data)
    for index, name in enumerate(_public_names(document.data)):
        if name not in used_names:
            hint = nearest(name, used_names)
            yield validate.problem(document, ("public", index), f"{name}, which nothing in the config takes", "a variable of it", hint)


def find_misplaced(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for every ``${…}`` that would not be replaced.

    It would reach a server as written, since it stands in a key or has more than a name in its braces. Only the keys of
    ``docker.volumes`` are filled in too.
    """
    for path, text in _plain_values(document.data, ()):
        if match := _SHELL.search(text):
            yield validate.problem(
                document, path, match[0], "${NAME} with nothing else in the braces", "write the value into the environment"
            )
    for path in _key_paths(document.data, ()):
        if names(path[-1]) and path[-3:-1] != ("docker", "volumes"):
            yield validate.problem(document, path, f"a variable in the name {path[-1]}", "a name; variables are filled into values")


def _key_paths(data: JSON, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of every key of a mapping, at any depth."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield (*path, str(name))
            yield from _key_paths(value, (*path, str(name)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _key_paths(value, (*path, index))


def _values_to_mask(data: JSON, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of a config's variables to be masked.

    These are secrets by the name of the variable or of the key at which it stands, and most values in private sections. Variables that are
    not set are left out.
    """
    readable = {environ[name] for name in _public_names(data) if name in environ} | set(_readable_values(data, environ))
    for path, text in _plain_values(data, ()):
        set_names = [name for name in names(text) if name in environ]
        yield from (environ[name] for name in set_names if _marks_secret(path) or secrets.is_secret(name, variable=True))
        # In a private section any value may be a secret, unless it is in the open elsewhere, too short, or a path in `env`.
        if part := _private_part(path):
            values = {environ[name] for name in set_names} - readable
            yield from (value for value in values if secrets.is_maskable(value) and not (part == "env" and value.startswith(_PATHS)))
        # The whole text at a secret's key is a secret too. With an unset variable it cannot be filled in.
        if _marks_secret(path) and len(set_names) == len(names(text)):
            yield str(expand(text, environ))


def _public_names(data: JSON) -> tuple[str, ...]:
    public = data.get("public") if isinstance(data, Mapping) else None
    return tuple(map(str, public)) if isinstance(public, list) else ()


def _readable_values(data: JSON, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts shown by the config or a report, not to be masked.

    These are all texts without a variable, as every run keeps the config itself, and the names of models, programs and images. Such a name
    is left out if a variable in it is not set: it has no value then.
    """
    for path, text in _plain_values(data, ()):
        is_reported = path[-1] in _MODEL_AND_PROGRAM and not _private_part(path)
        if is_reported and environ.keys() >= set(names(text)):
            yield str(expand(text, environ))
        elif not names(text):
            yield text


def _private_part(path: KeyPath) -> str:
    """Return the name of the private section around the value at ``path``.

    It is ``headers``, ``body`` or ``env`` of an arm, ``command`` or ``env`` of a process of a stack, and ``body`` or
    ``command`` of an event. Every variable in such a section is taken for a secret. Empty if the value stands elsewhere.
    """
    if path[:1] == ("between",):
        path_inside = path[3:]  # after between.NAME.INDEX
    elif path[:1] in _NAMED:
        path_inside = path[2:]  # after variants.NAME and its like
    else:
        path_inside = path[1:]  # after engine and its like
    return str(path_inside[0]) if path_inside and path_inside[0] in _PRIVATE else ""


def _plain_values(data: JSON, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield every string and number with its path.

    Those within ``args`` given as a string of JSON are included.
    """
    if isinstance(data, str) and path[-1:] == ("args",):
        data = _parse_json(data)
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _plain_values(value, (*path, str(name)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _plain_values(value, (*path, index))
    elif isinstance(data, str) or (isinstance(data, (int, float)) and not isinstance(data, bool)):
        yield path, str(data)


def _parse_json(text: str) -> JSON:
    """Return the value of a string of JSON.

    Any other string is returned unchanged.
    """
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError:
        return text


def _marks_secret(path: KeyPath) -> bool:
    """Return True if the last key in ``path`` names a secret.

    Directly under ``env`` the key is a variable's name, for which other patterns hold.
    """
    keys = [step for step in path if isinstance(step, str)]
    return bool(keys) and (secrets.is_secret(keys[-1]) or (keys[-2:-1] == ["env"] and secrets.is_secret(keys[-1], variable=True)))


_SALT_BYTES = 16
_COST = 2**14
"""Of scrypt: it makes guessing a short secret from its digest slow."""


def digests(config: str, environ: Mapping[str, str]) -> Variables:
    """Return the salted digests of the variables in a config's text.

    They show whether a value has changed without storing it.
    """
    salt = token_hex(_SALT_BYTES)
    return Variables(salt=salt, digests=_digest_variables(config, environ, salt))


def find_changed(then: Variables, config: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of variables changed, set or unset since ``then``."""
    current_digests = _digest_variables(config, environ, then.salt)
    return tuple(name for name in dict.fromkeys([*then.digests, *current_digests]) if then.digests.get(name) != current_digests.get(name))


def _digest_variables(config: str, environ: Mapping[str, str], salt: str) -> dict[str, str]:
    variable_names = names(yaml.load(config, "config.yaml").data)
    return {name: _digest_value(environ[name], salt) for name in variable_names if name in environ}


def _digest_value(value: str, salt: str) -> str:
    text = value.encode(errors="surrogateescape")
    return hashlib.scrypt(text, salt=bytes.fromhex(salt), n=_COST, r=8, p=1, dklen=_SALT_BYTES).hex()


@contextmanager
def set_in_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment until the block ends.

    They then have their earlier values again, or are unset.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
