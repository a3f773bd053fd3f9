"""The checks of everything that would end a server at boot: the doctor says them, and a run makes them before its first boot.

The doctor is the command that checks a config on this machine. An arm is one server of a run; an attached one runs already and is not
started. A scorer is a further server that scores the arms' tokens. A stack is several processes that are one server.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec import __version__
from pytest_specdec.capture import locks
from pytest_specdec.doctor import engine as engine_checks
from pytest_specdec.doctor import machine, memory, models, probe, stack
from pytest_specdec.doctor.arms import arms, scorer
from pytest_specdec.doctor.check import Level, error_check
from pytest_specdec.engines.protocol import Footprint
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.stack import footprint as stack_footprint
from pytest_specdec.errors import BootError, EngineError, SpecdecError
from pytest_specdec.model.pair import SCORER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.engines.protocol import Engine

_QUERY_S = 15.0
_PLACE = re.compile(r"^(where: .*?)\bengine\.")
"""A place in an engine's error: every engine takes its settings to stand under ``engine``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Servers:
    """The servers of one engine that a run would start."""

    config: Config
    engine: Engine
    arms: tuple[Arm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParserChecks:
    """The checks of arguments by the engine's parser."""

    results: tuple[Check, ...] = ()
    """Empty if the parser is not asked."""
    marker: Path | None = None
    """The marker file to make for command lines that the parser has accepted now; None if nothing is to be remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineChecks:
    """The checks of a machine's ports, devices and memory."""

    ports: tuple[Check, ...] = ()
    """Checks of ports; another process may free a taken one."""
    free_memory: tuple[Check, ...] = ()
    """Checks of each device's free memory; other processes may free more."""
    permanent: tuple[Check, ...] = ()
    """Checks of the number of devices and of the weights' size: no retry changes them."""


def checks(config: Config, engine: Engine, servers: Sequence[Arm], pool: Executor) -> Iterator[Check]:
    """Yield every check of the servers to be started.

    Each group is yielded as soon as it is known. Attached servers among ``servers`` are left out. Slow calls of the engine's
    program run in ``pool``. A scorer is checked too; it is not among ``servers``, since its engine may be another.
    """
    started = _servers_to_start(servers)
    if started:
        yield from engine_checks.checks(config, engine, started, pool)
    yield from _check_scorer(config)
    yield from _check_without_program(config, engine, started)


def _check_scorer(config: Config) -> Iterator[Check]:
    """Yield the checks of a scorer that a run would start.

    They are of its flags, renamed to ``scorer``; an unknown or missing engine is a failed check. Yields nothing without a
    scorer, or for an attached one.
    """
    try:
        servers = _scorer_to_start(config)
    except EngineError as error:
        yield error_check(SCORER, error)
        return
    if servers:
        yield from _rename_to_scorer(engine_checks.flags(servers.config, servers.engine, servers.arms))


def _servers_to_start(servers: Sequence[Arm]) -> list[Arm]:
    return [arm for arm in servers if arm.attached is None]


def _scorer_to_start(config: Config) -> _Servers | None:
    """Return the scorer with its engine, if a run would start it.

    Returns None if the config has no scorer, or if it is attached. Raises EngineError for an unknown engine.
    """
    arm = scorer(config, os.environ)
    if config.scorer is None or arm is None or arm.attached:
        return None
    return _Servers(config=config.scorer_config(), engine=engine_of(config.scorer.kind), arms=(arm,))


def _rename_to_scorer(results: Iterable[Check]) -> Iterator[Check]:
    """Yield checks of the scorer's engine and flags, renamed to ``SCORER``.

    Places in the config are changed from ``engine.`` to ``scorer.``, since every engine reports its settings as under
    ``engine``.
    """
    for check in results:
        line = f"its flags: {check.line}" if check.name == "flags" else check.line
        details = tuple(_PLACE.sub(rf"\1{SCORER}.", detail) for detail in check.details)
        yield replace(check, name=SCORER, line=line, details=details)


def _check_without_program(config: Config, engine: Engine, servers: Sequence[Arm]) -> Iterator[Check]:
    """Yield the checks that need no program of the engine.

    They are of a stack's other programs, models, ports, free device memory, and what no retry changes: the number of devices, and
    weights larger than a server's share of them.
    """
    yield from stack.checks(config, engine, os.environ)
    yield from _check_models(config, engine, servers)
    machine_checks = _check_machine(config, engine, servers)
    yield from (*machine_checks.ports, *machine_checks.free_memory, *machine_checks.permanent)


def _check_models(config: Config, engine: Engine, servers: Sequence[Arm]) -> Iterator[Check]:
    """Yield the checks of the models; nothing without a server to start."""
    if servers:
        yield from models.checks(config, engine, servers, models.ModelHub.of({**os.environ, **servers[0].env}))


def _check_machine(config: Config, engine: Engine, servers: Sequence[Arm]) -> _MachineChecks:
    """Return the checks of ports, devices and memory.

    There are none without a server to start. In a stack, ``servers`` are its processes that run the engine.
    """
    if not servers:
        return _MachineChecks()
    # As the servers will have it: the config's variables replace those of this process.
    visible = {**os.environ, **config.engine.env}.get("CUDA_VISIBLE_DEVICES")
    devices = machine.select_visible(machine.devices(probe.run(machine.QUERY, {}, _QUERY_S)), visible)
    footprint = _footprint(config, engine)  # of a stack: that of all its processes together
    # The weights of one process go into its own share of the devices.
    process_footprint = _footprint(replace(config, stack=()), engine)
    weight_checks = memory.checks(config, engine, servers, devices, process_footprint)
    return _MachineChecks(
        ports=machine.ports(servers),
        free_memory=machine.free_memory(devices, footprint),
        permanent=(*machine.device_count(devices, footprint), *weight_checks),
    )


def _footprint(config: Config, engine: Engine) -> Footprint:
    """Return the share of the machine that a server on accelerators takes.

    Empty if the model is missing, since another check has reported that.
    """
    try:
        return stack_footprint(config, engine, accelerated=True)
    except EngineError:
        return Footprint()


def require(config: Config) -> None:
    """Raise EngineError if a server would fail at boot.

    The error lists the failed checks, permanent ones first. If the only failures are taken ports and occupied device memory, it is a
    BootError: a retry may succeed. An unknown engine of the config or of its scorer is an EngineError of its own.

    A command line that the engine's parser has accepted before is not checked again, since the parser imports the
    whole framework to answer. A marker file remembers it, and is written only if no check has failed.
    """
    engine = engine_of(config.engine.kind)
    servers = _Servers(config=config, engine=engine, arms=tuple(_servers_to_start(arms(config, engine, os.environ))))
    argument_checks = _check_arguments(servers)
    scorer_servers = _scorer_to_start(config)
    scorer_checks = _check_arguments(scorer_servers) if scorer_servers else _ParserChecks()
    machine_checks = _check_machine(config, engine, servers.arms)
    permanent_failures = _select_failed(
        *argument_checks.results,
        *stack.checks(config, engine, os.environ),
        *_rename_to_scorer(scorer_checks.results),
        *_check_models(config, engine, servers.arms),
        *machine_checks.permanent,
    )
    temporary_failures = _select_failed(*machine_checks.ports, *_select_memory_failures(machine_checks.free_memory))
    if permanent_failures or temporary_failures:
        raise _boot_error(config, (*permanent_failures, *temporary_failures), EngineError if permanent_failures else BootError)
    for path in filter(None, (argument_checks.marker, scorer_checks.marker)):
        path.touch()


def _check_arguments(servers: _Servers) -> _ParserChecks:
    """Check the servers' arguments with the engine's parser.

    The parser is not asked if there is no server, or if a marker file shows that it has accepted the same command lines before. The
    result is empty then: no failure, and no marker for the caller to make.
    """
    if not servers.arms:
        return _ParserChecks()
    marker = _accepted_marker(servers.config, servers.engine, servers.arms)
    if marker and marker.is_file():
        return _ParserChecks()
    results = engine_checks.flags(servers.config, servers.engine, servers.arms)
    is_accepted = all(check.level is Level.OK for check in results)
    return _ParserChecks(results=results, marker=marker if is_accepted else None)


def _select_failed(*results: Check) -> tuple[Check, ...]:
    """Return the failed ones of several checks."""
    return tuple(check for check in results if check.level is Level.FAIL)


def _select_memory_failures(results: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the failed checks of free memory that stop a run.

    None of them stops it while another capture runs: that one may have freed the memory when this run gets the devices.
    """
    failures = _select_failed(*results)
    # The check of leases is OK if no other capture holds a lock.
    return failures if failures and machine.leases(locks.folder()).level is Level.OK else ()


def _boot_error(config: Config, failures: Iterable[Check], kind: type[EngineError]) -> EngineError:
    """Return an error of ``kind`` with all failed checks."""
    lines = [text for check in failures for text in (f"{check.name}: {check.line}", *(f"  {detail}" for detail in check.details))]
    what, remedy = "a server would die at boot", f"python -m pytest_specdec doctor {config.path}"
    return kind(what, where=str(config.path), found="\n".join(lines), expected="servers that come up", remedy=remedy)


def _accepted_marker(config: Config, engine: Engine, servers: Sequence[Arm]) -> Path | None:
    """Return the path of the marker for accepted command lines.

    The marker file shows that the engine's parser has accepted them. Its name is a hash of the command lines, of the
    program's time and size, and of this package's version; the file is empty. Returns None if a command cannot be
    built, if its program is missing, or if the engine is in an image, whose program is not on this machine.
    """
    try:
        engine.check(config)
        argvs = [arm.command(config, engine).argv for arm in servers]
        program = Path(argvs[0][0]).stat()
    except (SpecdecError, OSError):
        return None
    if config.engine.image:
        return None
    text = repr((__version__, program.st_mtime_ns, program.st_size, argvs)).encode()
    return locks.folder() / f"flags-{hashlib.sha256(text).hexdigest()[:32]}"
