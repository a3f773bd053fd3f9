"""``${VAR}`` in a config's values, filled in at launch and nowhere before, so that secrets reach no artifact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.config.problems import dotted, nearest
from pytest_specdec.errors import ConfigError

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.files.yaml import Path
    from pytest_specdec.model.workload import JSON

__all__ = ["expand", "filled", "names"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand(value: JSON, environ: Mapping[str, str], path: Path = ()) -> JSON:
    """Return ``value`` with every ``${VAR}`` in its strings replaced from ``environ``; what is filled in is not looked at again.

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
    """Return ``config`` with the ``${VAR}`` of its model and of where the engine stands replaced; arguments follow at launch.

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
    return replace(config, engine=places)


def names(value: JSON) -> tuple[str, ...]:
    """Return the variables that the strings of ``value`` name, each once."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(match[1] for match in _VARIABLE.finditer(value)))
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return tuple(dict.fromkeys(name for part in parts for name in names(part)))


def _lookup(name: str, environ: Mapping[str, str], path: Path) -> str:
    if name not in environ:
        what, near = f"the environment variable {name} is not set", nearest(name, environ)
        remedy = f"export {name}=…" + (f"; {near}" if near else "")
        raise ConfigError(what, where=dotted(path), found=f"${{{name}}}", expected="a variable that is set", remedy=remedy)
    return environ[name]
