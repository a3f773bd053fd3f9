"""Server arguments: a mapping in the config, flags on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.config.variables import expand
from pytest_specdec.errors import ConfigError

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config, Overlay, VariantSettings
    from pytest_specdec.model.workload import JSON

__all__ = ["filled", "flags", "merged"]


def merged(*layers: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the layers laid over each other, later ones on top; null takes an argument out."""
    result: dict[str, JSON] = {}
    for layer in layers:
        result.update(layer)
    return {name: value for name, value in result.items() if value is not None}


def filled(config: Config, overlay: Overlay | VariantSettings, environ: Mapping[str, str]) -> dict[str, JSON]:
    """Return the arguments of a server with ``overlay``, ``${VAR}`` replaced where it is set and left as written elsewhere."""
    return {name: _filled(value, environ) for name, value in merged(config.engine.args, overlay.args).items()}


def _filled(value: JSON, environ: Mapping[str, str]) -> JSON:
    try:
        return expand(value, environ)
    except ConfigError:
        return value


def flags(args: Mapping[str, JSON]) -> list[str]:
    """Return ``args`` as ``--name value``; true and false are ``--name`` and ``--no-name``, mappings and nested lists JSON."""
    argv: list[str] = []
    for name, value in args.items():
        argv += _flag(name.lstrip("-"), value)
    return argv


def _flag(name: str, value: JSON) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value, separators=(",", ":"))]
    if isinstance(value, str):
        return [f"--{name}", value]
    if isinstance(value, (list, tuple)) and not any(isinstance(item, (list, tuple, Mapping)) for item in value):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", json.dumps(value, separators=(",", ":"))]
