"""The processes of a stack (several that are one server) that are not the engine's own: whether the program of each is on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config import stack
from pytest_specdec.config.validate import dotted_path
from pytest_specdec.doctor.arms import are_variables_set
from pytest_specdec.doctor.check import error_check, fail, ok
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.stack import StackCommands
from pytest_specdec.errors import SpecdecError
from pytest_specdec.files.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.engines.protocol import Command, Engine

_NAME = "stack"


def checks(config: Config, engine: Engine, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield a check of every process with a command of its own.

    A process with a variable that is not set is left out, since another check reports that.
    """
    setup = ServerSetup(model=config.engine.model, port=0, args=config.engine.args, env=config.engine.env, secrets=Secrets())
    ports = dict.fromkeys(stack.port_names(config.stack), 0)  # the real ones are chosen at boot
    commands = StackCommands(config=config, engine=engine, setup=setup, ports=ports, environ=environ)
    for at, process in enumerate(config.stack):
        if not process.is_engine and are_variables_set(process, environ):
            try:
                yield _check_program(config, process.name, at, commands.recipe(at, process).command)
            except SpecdecError as error:
                yield error_check(_NAME, error)


def _check_program(config: Config, name: str, at: int, command: Command) -> Check:
    """Check that the program of a command can be executed.

    The command is that of the process ``name``, at index ``at`` in the config's stack.
    """
    path, first_word = ("stack", at, "command"), command.argv[0] if command.argv else ""
    executable = shutil.which(first_word, path={**os.environ, **command.env}.get("PATH"))
    if executable is not None:
        return ok(_NAME, f"{name}: {Path(executable)}")
    line = f"{config.path}:{config.document().line(path)}  {dotted_path(path)}: found {first_word!r}, which cannot be executed here"
    # `{program}` in the remedy is meant literally: a placeholder for commands in the config.
    return fail(
        _NAME, line, "expected: a program on PATH, or its path", remedy="install it, or correct the first word; {program} is the engine's"
    )
