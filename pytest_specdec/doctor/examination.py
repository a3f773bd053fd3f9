"""The examination: every check on one config, in the order in which a run would stumble; slow programs are asked side by side."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks
from pytest_specdec.config import load
from pytest_specdec.config.variables import filled
from pytest_specdec.doctor import arm_commands, config_checks, machine, models, probe
from pytest_specdec.doctor import engine as engines
from pytest_specdec.doctor.check import Check, Level, failed, ok, warn
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arm_commands import ArmCommand
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.model.workload import Depth

__all__ = ["CheckedConfig", "admitted", "examine"]

_QUICK_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedConfig:
    """A config whose schema is sound, and what the doctor was asked about it."""

    config: Config
    depth: Depth
    baselines: Path
    here: Path
    """Where pytest would be started."""

    @property
    def secrets(self) -> Secrets:
        """What must not be printed."""
        return arm_commands.secrets(self.config, os.environ)


def admitted(path: Path, depth: Depth, baselines: Path, here: Path) -> CheckedConfig | Check:
    """Return the config at ``path``, or the check that tells all of its problems."""
    try:
        return CheckedConfig(config=load.load(path), depth=depth, baselines=baselines, here=here)
    except ConfigError as error:
        return failed("config", error)


def examine(patient: CheckedConfig) -> Iterator[Check]:
    """Give every check as soon as it is known."""
    config = patient.config
    yield config_checks.schema(config)
    yield from config_checks.pair(config)
    variables = config_checks.variables(config, os.environ)
    yield from variables
    if not any(check.level is Level.FAIL for check in variables):
        config = filled(config, os.environ)
        patient = replace(patient, config=config)
    try:
        engine = engine_of(config.engine.kind)
    except EngineError as error:
        yield failed("engine", error)
        return
    arms = arm_commands.arms(config, engine, os.environ)
    with ThreadPoolExecutor() as pool:
        plan = pool.submit(_plan, patient)
        version = yield from _engine(config, engine, arms, pool)
        yield from _models(config, arms)
        yield from machine.ports(arms)
        yield machine.disk(patient.here / ".specdec")
        yield from _devices(config, arms, version)
        yield machine.leases(locks.folder())
        yield from config_checks.check(config, patient.baselines, environment.environment(config, ""))
        yield plan.result()


def _engine(config: Config, engine: Engine, arms: tuple[ArmCommand, ...], pool: ThreadPoolExecutor) -> Generator[Check, None, str]:
    """Give the engine's checks; return what it says of its version."""
    found = engines.commands(config, engine, arms)
    if isinstance(found, Check):
        yield found
        yield warn("flags", "not checked: there is no engine to ask")
        return ""
    if config.engine.image:
        yield engines.image(config.engine.image, probe.run(("docker", "image", "inspect", config.engine.image), {}, _QUICK_S))
        yield warn("flags", "not checked: the engine is in an image")
        return config.engine.image
    asked = probe.tool(config.engine.kind, found.first)
    if asked is None:
        yield ok("engine", found.first[0])
        yield warn("flags", f"not checked: how {config.engine.kind} lists its flags is not known")
        return ""
    return (yield from _asked(config, found, asked, arms[0], pool))


def _asked(
    config: Config, found: engines.Commands, asked: probe.EngineProgram, baseline: ArmCommand, pool: ThreadPoolExecutor
) -> Generator[Check, None, str]:
    ran: Future[probe.ProgramResult] = pool.submit(probe.run, asked.version, baseline.env)
    listed = pool.submit(probe.listing, asked.help, engines.arguments(found), baseline.env)
    version = engines.version(config.engine.kind, asked, ran.result())
    yield version
    yield from engines.flags_of(config, found, listed.result(), abbreviates=asked.abbreviates)
    return version.said


def _models(config: Config, arms: tuple[ArmCommand, ...]) -> Iterator[Check]:
    if config.engine.kind == "reference":
        return  # its adapter has looked for every checkpoint by now
    hub = models.ModelHub.of({**os.environ, **arms[0].env})
    named = models.named(arms)
    checks = [models.check(config, arm, model, hub) for arm, model in named]
    yield from checks
    missing = [model for _, model in named if models.on_hub(config, model) and not hub.holds(model)]
    if missing and not hub.offline:
        yield machine.download(hub.cache, missing)


def _devices(config: Config, arms: tuple[ArmCommand, ...], version: str) -> Iterator[Check]:
    needed = config.engine.kind != "reference" and "cpu" not in version
    yield from machine.accelerators(machine.devices(probe.run(machine.QUERY, {}, _QUICK_S)), arms, needed=needed)


def _plan(patient: CheckedConfig) -> Check:
    """Return the suites' plan, or that of the boots where there are no suites or the config has no plan at all."""
    boots = config_checks.boots(patient.config, patient.depth)
    folder = config_checks.suites(patient.config, patient.here)
    if folder is None or boots.level is Level.FAIL:
        return boots
    return config_checks.collection(probe.run(config_checks.collecting(patient.config, folder, patient.depth), {}), folder)
