"""The processes of a server that is a stack: each with its command, its port, and the sign that it is ready.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
With a ``stack`` in the config, each arm is several processes together, such as a router and two engines.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_specdec.config import stack
from pytest_specdec.config.config import ARGS
from pytest_specdec.config.variables import expand
from pytest_specdec.engines.arguments import flags, merge
from pytest_specdec.engines.protocol import HOST, Command, CounterSource

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config, StackProcess
    from pytest_specdec.engines.protocol import Engine, Footprint, ServerSetup
    from pytest_specdec.model.workload import JSON

__all__ = ["ProcessRecipe", "StackCommands", "footprint"]

_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecipe:
    """How one process of a stack is started, and when it is ready."""

    name: str
    command: Command
    port: int
    """Where it listens, if it does."""
    ready: str = ""
    """A path of it that answers 200, or a text in its log; empty where it is ready as soon as it listens, or runs."""
    listens: bool = True
    """Whether it takes its port: the engine's own command does, any other if a word or variable of it has the port."""
    is_engine: bool = False
    """Whether the engine's own command starts it."""
    is_asked: bool = False
    """Whether requests go to it."""


@dataclass(frozen=True, kw_only=True)
class StackCommands:
    """The commands of one arm's processes."""

    config: Config
    engine: Engine
    setup: ServerSetup
    """The arm's, as a server of one process would have it."""
    ports: Mapping[str, int]
    """The ports chosen for the processes, by the names of :func:`stack.port_names`."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Fills the variables of the processes' ``env``."""

    def recipes(self) -> tuple[ProcessRecipe, ...]:
        """Return the recipes of all processes, in the order of their start.

        Raises EngineError if the engine or a model is missing, and ConfigError for a variable that is not set.
        """
        return tuple(self.recipe(at, process) for at, process in enumerate(self.config.stack))

    def asked_setup(self) -> ServerSetup:
        """Return the setup of the process that gets the requests, with all counters' addresses."""
        name = next(process.name for process in self.config.stack if process.is_asked)
        return replace(self.setup, port=self.ports[name], counted=self._sources())

    def process_setup(self, at: int, process: StackProcess) -> ServerSetup:
        """Return the setup of ``process``, at index ``at`` in the config's stack.

        Its arguments and variables are laid over the arm's. A process without ``takes_args``, such as a router, gets its own variables
        alone; its command passes no arguments on. The process speculates if the arm does and its arguments have draft settings.
        ``counted``, the places to read counters from, is empty: the setup of the whole server has it. Raises ConfigError for a
        variable that is not set, and EngineError if an argument has ``{program}`` and the engine is missing.
        """
        filled = self._fill(process.args)
        args = merge(self.setup.args, filled if isinstance(filled, Mapping) else {})
        process_env = {
            name: self._fill_text(str(expand(value, self.environ, ("stack", at, "env", name)))) for name, value in process.env.items()
        }
        speculative = self.setup.speculative and self.engine.draft(args) is not None
        env = {**(self.setup.env if process.takes_args else {}), **process_env}
        return replace(self.setup, port=self.ports[process.name], args=args, env=env, speculative=speculative, counted=())

    def recipe(self, at: int, process: StackProcess) -> ProcessRecipe:
        """Return the recipe of ``process``, at index ``at`` in the config's stack.

        The sign that it is ready is its ``ready`` in the config, or else, if it runs the engine, the engine's health path. In the
        command of another program the word ``{args}`` stands for all arguments. ``is_asked`` marks the process that requests go to.
        Raises ConfigError for a variable that is not set, and EngineError if the engine or a model is missing.
        """
        setup = self.process_setup(at, process)
        if process.is_engine:
            command, health = self.engine.command(self.config, setup), self.engine.dialect(self.config, setup).health_path
        else:
            words = [word for text in process.command for word in (flags(setup.args) if text == ARGS else [self._fill_text(text)])]
            command, health = Command(argv=tuple(words), env=setup.env, secrets=setup.secrets), None
        return ProcessRecipe(
            name=process.name,
            command=command,
            port=setup.port,
            ready=self._fill_text(process.ready) or health or "",
            # A program that is not given its port cannot be waited for there: it counts as ready while it runs.
            listens=process.is_engine or stack.uses_port(process.name, process.command, process.args, process.env),
            is_engine=process.is_engine,
            is_asked=process.is_asked,
        )

    def _sources(self) -> tuple[CounterSource, ...]:
        """Return the addresses of the arm's counters.

        They are those that the config states, with placeholders filled in, or else those of the processes that it says to count.
        Empty without either: the counters are then read from the process that gets the requests.
        """
        if self.setup.counted:
            return tuple(
                replace(source, name=self._fill_text(source.name), url=self._fill_text(source.url)) for source in self.setup.counted
            )
        counted = [process.name for process in self.config.stack if process.is_counted]
        return tuple(CounterSource(name=name, url=f"http://{HOST}:{self.ports[name]}") for name in counted)

    def _fill(self, value: JSON) -> JSON:
        """Return ``value`` with its placeholders replaced.

        They are ``{host}``, ``{model}``, ``{program}`` and the processes' ports. The engine's program is looked for only if
        ``{program}`` is among them, since it may be missing.
        """
        values = {"host": HOST, "model": self.config.resolve(self.config.engine.model)}
        program = {"program": self._program} if "{program}" in stack.placeholders(value) else {}
        return stack.fill(value, {**values, **program}, self.ports)

    def _fill_text(self, text: str) -> str:
        return str(self._fill(text))

    @cached_property
    def _program(self) -> str:
        """The first word of the engine's own command.

        Empty for an image, which has no program on this machine.
        """
        return "" if self.config.engine.image else self.engine.command(self.config, self.setup).argv[0]


def footprint(config: Config, engine: Engine, *, accelerated: bool) -> Footprint:
    """Return the memory and accelerators of one server with all its processes.

    Every process with the arm's arguments is an engine, and takes what the engine estimates for one server. Any other, such as a router,
    takes nothing. A process may name its devices in its variables. The share is that of the device with most engines on it; if no engine
    names a device, all count as on the same ones. The number of devices is that of all names, and at least the engine's estimate.
    """
    process_footprint = engine.footprint(config, accelerated=accelerated)
    engine_processes = [process for process in config.stack if process.takes_args]
    memory_gib = None if process_footprint.memory_gib is None else max(1, len(engine_processes)) * process_footprint.memory_gib
    all_names = {device for process in config.stack for device in _named_devices(process)}
    engines_by_device = Counter(device for process in engine_processes for device in _named_devices(process))
    most_engines = max(1, max(engines_by_device.values(), default=len(engine_processes)))
    share = None if process_footprint.device_share is None else most_engines * process_footprint.device_share
    return replace(process_footprint, memory_gib=memory_gib, device_share=share, devices=max(process_footprint.devices, len(all_names)))


def _named_devices(process: StackProcess) -> frozenset[str]:
    """Return the devices that a process names in its variables; empty if it sees all."""
    words = (word.strip() for name in _DEVICES for word in process.env.get(name, "").split(","))
    return frozenset(word for word in words if word)
