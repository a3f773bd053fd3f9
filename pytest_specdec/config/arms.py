"""The arms as a config lays them out: what each server is started with, and where every setting was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config, EngineSettings, Overlay, VariantSettings
    from pytest_specdec.files.yaml import Path
    from pytest_specdec.model.workload import JSON

__all__ = ["Arm", "Setting", "baseline", "variants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and where it stands in the config."""

    value: JSON
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One server's settings, overlays applied; argument names in their one spelling, null ones gone."""

    where: Path
    """The overlay that makes it this arm."""
    args: Mapping[str, Setting]
    env: Mapping[str, Setting]

    def at(self, path: tuple[str, ...], *, env: bool = False) -> Setting | None:
        """Return the value at ``path`` into the arguments, JSON strings opened and dotted flags included; None where there is none."""
        if env:
            return self.env.get(path[0])
        if ".".join(path) in self.args:
            return self.args[".".join(path)]
        found = self.args.get(path[0])
        for name in path[1:]:
            found = _inside(found, name)
        return found


def baseline(config: Config) -> Arm:
    """Return the arm that must not speculate."""
    return _arm(config.engine, config.baseline, ("baseline",))


def variants(config: Config) -> Iterator[tuple[str, Arm]]:
    """Give every variant's name and arm."""
    for variant in config.variants:
        yield variant.name, _arm(config.engine, variant, ("variants", variant.name))


def _arm(engine: EngineSettings, overlay: Overlay | VariantSettings, where: Path) -> Arm:
    layers: tuple[tuple[Path, EngineSettings | Overlay | VariantSettings], ...] = ((("engine",), engine), (where, overlay))
    args: dict[str, Setting] = {}
    env: dict[str, Setting] = {}
    for path, layer in layers:
        args.update({plain(name): Setting(value=value, path=(*path, "args", name)) for name, value in layer.args.items()})
        env.update({name: Setting(value=value, path=(*path, "env", name)) for name, value in layer.env.items()})
    return Arm(where=where, args={name: setting for name, setting in args.items() if setting.value is not None}, env=env)


def _inside(setting: Setting | None, name: str) -> Setting | None:
    value = _opened(setting.value) if setting else None
    for key, item in value.items() if setting and isinstance(value, Mapping) else ():
        if plain(key) == name:
            return Setting(value=item, path=(*setting.path, key)) if setting else None
    return None


def _opened(value: JSON) -> JSON:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)  # type: ignore[no-any-return]
    except ValueError:
        return value
