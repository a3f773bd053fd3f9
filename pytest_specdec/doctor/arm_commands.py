"""What a run would start: every arm's arguments, variables and command, without starting it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.config.variables import expand
from pytest_specdec.engines.cli_args import merged
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.errors import ConfigError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import BASELINE, DraftKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.config.config import Config, EngineSettings, Overlay, VariantSettings
    from pytest_specdec.engines.protocol import Command, Engine
    from pytest_specdec.files.yaml import KeyPath
    from pytest_specdec.model.workload import JSON

__all__ = ["ArmCommand", "arms", "secrets", "unset"]

_ANY_PORT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCommand:
    """One server that a run would start."""

    name: str
    model: str
    places: Mapping[str, KeyPath]
    """Where in the config each argument stands, by its one spelling."""
    args: Mapping[str, JSON]
    """Overlays applied and ``${VAR}`` filled in; an argument with an unset variable is left out."""
    env: Mapping[str, str]
    speculative: bool = False

    def command(self, config: Config, engine: Engine) -> Command:
        """Return the command that would serve this arm. Raises EngineError when engine or model are not there."""
        args = {name: value for name, value in self.args.items() if name != "port"}
        setup = ServerSetup(
            model=self.model, port=_ANY_PORT, args=args, env=self.env, speculative=self.speculative, secrets=secrets(config, os.environ)
        )
        return engine.command(config, setup)


def arms(config: Config, engine: Engine, environ: Mapping[str, str]) -> tuple[ArmCommand, ...]:
    """Return the baseline, every variant, and every draft model that can be served alone."""
    found = [_arm(config, environ, BASELINE, ("baseline",), config.baseline)]
    drafts: dict[str, ArmCommand] = {}
    for variant in config.variants:
        arm = _arm(config, environ, variant.name, ("variants", variant.name), variant, speculative=True)
        draft = engine.draft(arm.args)
        if draft and draft.kind is DraftKind.MODEL and draft.model:
            drafts[draft.model] = _arm(config, environ, f"draft model {draft.model}", ("draft",), config.draft, model=draft.model)
        found.append(arm)
    return (*found, *drafts.values())


def unset(config: Config, environ: Mapping[str, str]) -> tuple[ConfigError, ...]:
    """Return an error for every variable that is not set, naming the first place in the config that wants it."""
    errors = (_filled(value, environ, path) for path, value in _values(config))
    found: dict[str, ConfigError] = {}
    for error in errors:
        if isinstance(error, ConfigError):
            found.setdefault(error.what, error)
    return tuple(found.values())


def secrets(config: Config, environ: Mapping[str, str]) -> Secrets:
    """Return what must not be printed: values named like secrets, and the API key."""
    key = _filled(config.engine.api_key, environ, ())
    stated = (config.engine.env, config.baseline.env, config.draft.env, *(variant.env for variant in config.variants))
    return Secrets.of(environ, *stated, also=(key if isinstance(key, str) else None,))


def _arm(
    config: Config,
    environ: Mapping[str, str],
    name: str,
    where: KeyPath,
    overlay: Overlay | VariantSettings,
    *,
    speculative: bool = False,
    model: str = "",
) -> ArmCommand:
    places: dict[str, KeyPath] = {plain(key): ("engine", "args", key) for key in config.engine.args}
    places.update({plain(key): (*where, "args", key) for key in overlay.args})
    return ArmCommand(
        name=name,
        model=model or config.engine.model,
        places=places,
        args=_all_filled(merged(config.engine.args, overlay.args), environ),
        env={key: str(value) for key, value in _all_filled({**config.engine.env, **overlay.env}, environ).items()},
        speculative=speculative,
    )


def _all_filled(values: Mapping[str, JSON], environ: Mapping[str, str]) -> dict[str, JSON]:
    filled = {name: _filled(value, environ, ()) for name, value in values.items()}
    return {name: value for name, value in filled.items() if not isinstance(value, ConfigError)}


def _filled(value: JSON, environ: Mapping[str, str], path: KeyPath) -> JSON | ConfigError:
    try:
        return expand(value, environ, path)
    except ConfigError as error:
        return error


def _values(config: Config) -> Iterator[tuple[KeyPath, JSON]]:
    for name in ("model", "executable", "venv", "image", "api_key"):
        yield ("engine", name), getattr(config.engine, name)
    yield from _overlaid(("engine",), config.engine)
    yield from _overlaid(("baseline",), config.baseline)
    yield from _overlaid(("draft",), config.draft)
    for variant in config.variants:
        yield from _overlaid(("variants", variant.name), variant)


def _overlaid(where: KeyPath, overlay: EngineSettings | Overlay | VariantSettings) -> Iterator[tuple[KeyPath, JSON]]:
    for name, value in overlay.args.items():
        yield (*where, "args", name), value
    for name, text in overlay.env.items():
        yield (*where, "env", name), text
