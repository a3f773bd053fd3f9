"""Server recipes: how each boot of a plan is started, or where its attached server is found.

An attached server runs already and belongs to somebody else. A recipe has the server's setup (model, arguments, environment, address), the
command that starts it, and its dialect: how its engine is asked. An overlay is the config's settings for one arm alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.attached import AttachedArm, dialect_of
from pytest_specdec.capture.server.counters import check_sources, sources
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.config import stack, variables
from pytest_specdec.config.config import Overlay
from pytest_specdec.config.variables import expand
from pytest_specdec.engines.arguments import merge
from pytest_specdec.engines.optional import SmallCache
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.stack import StackCommands
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import arm_of
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.config.config import Config, VariantSettings
    from pytest_specdec.engines.protocol import Command
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecipes:
    """How the boots of one plan are started."""

    config: Config
    plan: Plan
    directory: RunDirectory

    @property
    def secrets(self) -> Secrets:
        """Secrets of the environment, to be kept out of every artifact.

        They include those that the config takes from the environment.
        """
        return variables.secrets_of(self.config.text)

    def check(self) -> None:
        """Raise ConfigError if a variable needed by a boot is unset.

        Called before the first boot starts.
        """
        for boot in self.plan.boots:
            self._setup(boot)

    def server(self, boot: Boot, heartbeat: Callable[[], None], left_s: Callable[[], float]) -> ArmServer:
        """Return the server of ``boot``, not started or visited yet.

        ``heartbeat`` is called while it is waited for, and ``left_s`` returns the seconds that the capture has left. An attached server's
        dialect is chosen when it is reached. Its recipe has the attached baseline as a peer, if there is one (:meth:`_peer`).
        """
        recipe = self.recipe_of(boot)
        if recipe.setup.attached is None:
            return ArmServer(recipe, heartbeat=heartbeat, left_s=left_s)
        config, recipe = self.config_of(boot), replace(recipe, peer=self._peer(boot, recipe.setup))
        return AttachedArm(recipe, lambda setup: dialect_of(engine_of(config.engine.kind), config, setup), heartbeat, left_s)

    def _peer(self, boot: Boot, setup: ServerSetup) -> ServerSetup | None:
        """Return the setup of the attached baseline beside an attached variant.

        Its counters show whether a load balancer sends the variant's requests to the baseline's server. Returns None for another boot than
        a variant's, and unless the baseline is attached at another address. ``setup`` is that of ``boot``.
        """
        baselines = (self._setup(other) for other in self.plan.boots if other.role in {Role.BASELINE, Role.CONTROL} and other.attached)
        baseline = next(baselines, None) if boot.role is Role.VARIANT else None
        return None if baseline is None or baseline.url == setup.url else baseline

    def recipe_of(self, boot: Boot) -> ServerRecipe:
        """Return the recipe to start or reach the server of ``boot``.

        A server to start gets the config's port, or one that is free now. An attached server has an address and no command.
        """
        config, setup = self.config_of(boot), self._setup(boot)
        if setup.attached is not None:
            return self._recipe(boot, setup, command=None)
        if config.stack and boot.role not in {Role.DRAFT, Role.SCORER}:
            return self._stack_recipe(boot, config, setup)
        pinned = str(setup.args.get("port", ""))
        setup = replace(setup, port=ports.require_port(int(pinned)) if pinned.isdecimal() else ports.free())
        return self._recipe(boot, setup, command=engine_of(config.engine.kind).command(config, setup))

    def _stack_recipe(self, boot: Boot, config: Config, setup: ServerSetup) -> ServerRecipe:
        """Return the recipe of a stack: a server of several processes.

        Each process gets a port that is free now, and a recipe of its own, with its command. ``setup`` is that of all processes; the whole
        server has the port of the process that requests are sent to.
        """
        free = {name: ports.free() for name in stack.port_names(config.stack)}
        commands = StackCommands(config=config, engine=engine_of(config.engine.kind), setup=setup, ports=free)
        whole_server = self._recipe(boot, commands.asked_setup(), command=None)  # its processes have commands
        return replace(whole_server, processes=commands.recipes())

    def _recipe(self, boot: Boot, setup: ServerSetup, command: Command | None) -> ServerRecipe:
        """Return the recipe of a server, with the config's limits.

        ``command`` starts it; None for an attached server, and for a stack, whose processes have commands of their own. Raises SetupError
        as :func:`check_sources`.
        """
        config = self.config_of(boot)
        dialect = engine_of(config.engine.kind).dialect(config, setup)
        check_sources(setup, dialect)
        return ServerRecipe(
            dialect=dialect,
            setup=setup,
            command=command,
            draft_tokens=self.plan.pair(arm_of(boot.arm)).variant.draft.tokens if boot.role.speculates else 0,
            log=self.directory.server_log(boot.index, boot.arm),
            boot_s=config.limits.boot_s,
            stop_s=config.limits.stop_s,
            concurrency=config.concurrency(attached=setup.attached is not None),
            may_kill=config.may_kill,
            judged=boot.role is Role.VARIANT,
        )

    def _setup(self, boot: Boot) -> ServerSetup:
        """Return the arguments, variables and address of a boot's server.

        The port is left at 0, to be chosen later. Over the engine's settings are laid those for speed boots (arguments, variables), those
        for the arm (its overlay), and arguments for a small cache. A draft model has its own name and address, none of the engine's.
        """
        engine, overlay = self.config_of(boot).engine, self._overlay(boot)
        speed = (self.config.speed if boot.timed else None) or Overlay()
        is_draft = boot.role is Role.DRAFT
        env = {name: _expand_variables(value, "env", name) for name, value in {**engine.env, **speed.env, **overlay.env}.items()}
        api_key = _expand_variables(engine.api_key, "engine", "api_key") if engine.api_key else None
        return ServerSetup(
            model=boot.arm if is_draft else engine.model,
            port=0,
            args=merge(engine.args, speed.args, overlay.args, _small_cache_args(self.config_of(boot)) if boot.small_cache else {}),
            env=env,
            api_key=api_key,
            speculative=boot.role.speculates,
            headers={**_expand_values(engine.headers, "headers"), **_expand_values(overlay.headers, "headers")},
            body={**engine.body, **overlay.body},
            served_as=overlay.served_as or ("" if is_draft else engine.served_as or ""),
            any_model=is_draft and boot.arm == _UNNAMED_DRAFT,  # whatever model its server lists
            counted=sources(overlay.metrics_url or (() if is_draft else engine.metrics_url)),  # where counters are read
            attached=_base_url(overlay.url or (None if is_draft else engine.url)),
            folder=self.directory.server_log(boot.index, boot.arm).parent,
            secrets=Secrets.of(os.environ, env, also=(api_key, *self.secrets.values)),  # to be struck out of logs and errors
        )

    def config_of(self, boot: Boot) -> Config:
        """Return the config for the engine started by ``boot``.

        The scorer may have an engine of its own, and so has an arm of the old engine, the one in use.
        """
        if boot.role is Role.SCORER:
            return self.config.scorer_config()
        return self.config.old_engine_config() if boot.role.is_old else self.config

    def _overlay(self, boot: Boot) -> Overlay | VariantSettings:
        """Return the config's settings for this boot's arm alone."""
        if boot.role.speculates:
            return self.config.variant(arm_of(boot.arm))
        if boot.role is Role.SCORER:
            return Overlay()
        return self.config.draft if boot.role is Role.DRAFT else self.config.baseline


_UNNAMED_DRAFT = Role.DRAFT.value
"""The arm of a draft model that the config gives an address and no name."""


def _small_cache_args(config: Config) -> Mapping[str, JSON]:
    """Return the engine's arguments for a small key-value cache.

    Returns an empty mapping if the engine has no setting for one.
    """
    engine = engine_of(config.engine.kind)
    return (engine.small_cache(config) or {}) if isinstance(engine, SmallCache) else {}


def _expand_variables(value: str, *path: str) -> str:
    return str(expand(value, os.environ, path))


def _expand_values(values: Mapping[str, str], *path: str) -> dict[str, str]:
    return {name: _expand_variables(value, *path, name) for name, value in values.items()}


def _base_url(url: str | None) -> str | None:
    """Return the address of an attached server, without ``/v1``.

    Requests add their own path. Returns None without an address.
    """
    return None if url is None else url.rstrip("/").removesuffix("/v1")
