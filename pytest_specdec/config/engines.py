"""``engines`` of a config: two builds of one engine, each laid over ``engine``, whose upgrade one run judges.

``engines.old`` is in use, and ``engines.new`` may replace it. An engine's program is its ``executable``, its ``venv`` or its ``image``, at
most one of the three. A server that runs already has an address, ``url``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import validate
from pytest_specdec.files import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import EngineSettings
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

__all__ = [
    "EngineName",
    "arguments_by_place",
    "describe",
    "drop_program",
    "list_addresses",
    "mapping_of",
    "problems",
    "restrict_to_engine",
    "restricted_text",
]

_PROGRAMS = ("executable", "venv", "image")
"""Of these an engine has one: that of ``engines`` replaces that of ``engine``, whichever it is."""


class EngineName(StrEnum):
    """Which of a config's two engines is meant."""

    OLD = "old"
    """The engine in use."""
    NEW = "new"
    """The one that may replace it."""


def restrict_to_engine(data: Mapping[str, Any], name: EngineName) -> dict[str, Any]:
    """Return a config's data restricted to one of its ``engines``.

    It has no ``engines``, and its ``engine`` is that engine: ``args`` and ``env`` are laid over those of ``engine`` entry by entry, and
    every other setting replaces that of ``engine``. A program replaces the program of ``engine``, whichever key names it. Data without
    ``engines`` is returned unchanged.
    """
    rest = {key: value for key, value in data.items() if key != "engines"}
    if "engines" not in data:
        return rest
    overlay = data["engines"][name.value]
    engine = drop_program(data["engine"], overlay)
    merged = {key: {**mapping_of(engine.get(key)), **mapping_of(overlay[key])} for key in ("args", "env") if key in overlay}
    return {**rest, "engine": {**engine, **overlay, **merged}}


def drop_program(engine: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's settings without the program that ``overlay`` replaces.

    Docker settings are left out too, unless the new program is an image. All settings stay if ``overlay`` names no program.
    """
    programs = [program for program in _PROGRAMS if overlay.get(program) is not None]
    engine = {key: value for key, value in engine.items() if not programs or key not in _PROGRAMS}
    # `docker` says how an image is run, and is nothing to a program that runs in none.
    if programs and "image" not in programs:
        engine.pop("docker", None)
    return engine


def restricted_text(text: str, name: EngineName) -> str:
    """Return the text of a config restricted to one of its ``engines``.

    A run of that engine alone keeps this text as its config.
    """
    data: Any = yaml.load(text, "config.yaml").data
    return f"# Written by pytest-specdec: the config as engines.{name.value} has it.\n{yaml.dump(restrict_to_engine(data, name))}"


def describe(engine: EngineSettings, other: EngineSettings) -> str:
    """Return in words, for reports, how an engine differs from the other engine.

    Arguments and variables are named without their values, since these may be secrets. An engine that states nothing different is
    described as the one that ``engine`` names.
    """
    names = (name for name in (*_PROGRAMS, "model") if getattr(engine, name) != getattr(other, name))
    parts = [f"{name} {value}" for name in names if (value := getattr(engine, name))]
    for kind, settings, other_settings in (("args", engine.args, other.args), ("env", engine.env, other.env)):
        changed = [name for name in dict.fromkeys((*settings, *other_settings)) if settings.get(name) != other_settings.get(name)]
        stated = [name for name in changed if name in settings]
        unstated = [name for name in changed if name not in settings]
        parts += [f"{kind} {', '.join(stated)}"] if stated else []
        parts += [f"no {kind} {', '.join(unstated)}"] if unstated else []
    parts += ["docker settings of its own"] if engine.docker != other.docker and engine.image else []
    return "; ".join(parts) or f"{engine.kind} as `engine` names it"


def problems(document: YamlDocument) -> Iterator[Problem]:
    """Yield the problems of ``engines`` that the JSON Schema cannot express.

    These are two engines without a difference, and servers that run already, since a config cannot choose their build.
    """
    data = document.data
    engines = data.get("engines") if isinstance(data, Mapping) else None
    if not (isinstance(data, Mapping) and isinstance(engines, Mapping) and isinstance(data.get("engine"), Mapping)):
        return
    if not all(isinstance(engines.get(name.value), Mapping) for name in EngineName):
        return  # the schema says so
    for path in list_addresses(data):
        hint = "capture the engine in use first, and give that run as --specdec-against"
        yield validate.problem(document, path, "a server that runs already, beside `engines`", "servers that are started here", hint)
    if restrict_to_engine(data, EngineName.OLD)["engine"] == restrict_to_engine(data, EngineName.NEW)["engine"]:
        expected = "old and new to differ: in venv, executable, image, args, env or model"
        yield validate.problem(document, ("engines",), "two identical engines", expected)


def arguments_by_place(data: Mapping[str, JSON]) -> Iterator[tuple[KeyPath, JSON]]:
    """Yield the ``args`` of each of the ``engines`` with its path."""
    engines = data.get("engines")
    for name, engine in engines.items() if isinstance(engines, Mapping) else ():
        if isinstance(engine, Mapping):
            yield ("engines", name, "args"), engine.get("args")


def list_addresses(data: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the place of each address of a running server.

    Addresses of the scorer are left out, since it is neither of the two engines.
    """
    variants = data.get("variants")
    sections: dict[KeyPath, Any] = {(key,): data.get(key) for key in ("engine", "baseline", "draft")}
    sections |= {("variants", name): variant for name, variant in variants.items()} if isinstance(variants, Mapping) else {}
    for path, section in sections.items():
        if isinstance(section, Mapping) and "url" in section:
            yield (*path, "url")


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return arguments or variables, which may be a string of JSON, as a mapping.

    Empty for anything else.
    """
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}
