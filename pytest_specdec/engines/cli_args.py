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

__all__ = ["filled", "flags", "merged", "single_precision"]


def merged(*layers: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the layers laid over each other, later ones on top; null takes an argument out."""
    result: dict[str, JSON] = {}
    for layer in layers:
        result.update(layer)
    return {name: value for name, value in result.items() if value is not None}


def filled(config: Config, overlay: Overlay | VariantSettings, environ: Mapping[str, str]) -> dict[str, JSON]:
    """Return what a server with ``overlay`` is started with, ``${VAR}`` replaced where it is set: the rest is asked for at launch."""
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


def single_precision(config: Config) -> bool:
    """Whether every arm computes in float32 with nothing quantised, by its own arguments; the reference engine knows nothing else.

    An argument that is not given tells nothing: vLLM computes float32 checkpoints in half precision unless it is told otherwise.
    """
    if config.engine.kind == "reference":
        return True
    layers = [merged(config.engine.args, layer) for layer in (config.baseline.args, *(variant.args for variant in config.variants))]
    return all(_is_single({name.lstrip("-").replace("_", "-"): value for name, value in layer.items()}) for layer in layers)


def _is_single(args: Mapping[str, JSON]) -> bool:
    cached = args.get("kv-cache-dtype") in {None, "auto", "float32"}
    return args.get("dtype") in {"float32", "float"} and args.get("quantization") is None and cached
