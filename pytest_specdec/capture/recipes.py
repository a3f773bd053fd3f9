"""Recipes: from a config and a boot to the command that serves it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.arm import Recipe
from pytest_specdec.capture.engines.arguments import merged
from pytest_specdec.capture.engines.protocol import Setup
from pytest_specdec.capture.launch import port
from pytest_specdec.config import credentials
from pytest_specdec.config.expand import expand
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from pytest_specdec.capture.engines.protocol import Engine
    from pytest_specdec.config.config import Config, Overlay, VariantSettings
    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import JSON

__all__ = ["Recipes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """How the boots of one plan are started."""

    config: Config
    plan: Plan
    directory: RunDirectory
    engine: Engine

    @property
    def secrets(self) -> Secrets:
        """What must reach no artifact: of the environment, and what the config takes from it."""
        return credentials.of(self.config.text)

    def check(self) -> None:
        """Raise ConfigError when a variable that some boot needs is not set, before the first one starts."""
        for boot in self.plan.boots:
            self._setup(boot)

    def of(self, boot: Boot) -> Recipe:
        """Return how ``boot`` is started, on a port that is free now."""
        config, setup = self.config, self._setup(boot)
        pinned = setup.args.get("port")
        setup = replace(setup, port=port.pinned(pinned) if isinstance(pinned, int) else port.free())
        return Recipe(
            engine=self.engine,
            setup=setup,
            command=self.engine.command(config, setup),
            draft_tokens=self.plan.pair(boot.arm).variant.draft.tokens if boot.role is Role.VARIANT else 0,
            log=self.directory.server_log(boot.index, boot.arm),
            boot_s=config.limits.boot_s,
            stop_s=config.limits.stop_s,
        )

    def _setup(self, boot: Boot) -> Setup:
        """Return what ``boot`` serves, its port still open."""
        engine, overlay = self.config.engine, self._overlay(boot)
        env = {name: str(_expanded(value, "env", name)) for name, value in {**engine.env, **overlay.env}.items()}
        api_key = str(_expanded(engine.api_key, "engine", "api_key")) if engine.api_key else None
        return Setup(
            model=boot.arm if boot.role is Role.DRAFT else engine.model,
            port=0,
            args={name: _expanded(value, "args", name) for name, value in merged(engine.args, overlay.args).items()},
            env=env,
            api_key=api_key,
            speculative=boot.role is Role.VARIANT,
            secrets=Secrets.of(os.environ, env, also=(api_key, *self.secrets.values)),
        )

    def _overlay(self, boot: Boot) -> Overlay | VariantSettings:
        if boot.role is Role.VARIANT:
            return self.config.variant(boot.arm)
        return self.config.draft if boot.role is Role.DRAFT else self.config.baseline


def _expanded(value: JSON, *path: str) -> JSON:
    return expand(value, os.environ, path)
