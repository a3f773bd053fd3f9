"""Command lines to type next, with paths as the invocation directory sees them.

A run is one capture of answers and its verdicts, in a directory. A replay judges it again; resuming or continuing it captures more.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from pytest_specdec.config import shipped
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.report.run import Commands

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

RUN_OPTIONS = ("--specdec-run-dir", "--specdec-replay", "--specdec-resume", "--specdec-continue")
"""Options that name a run: a session has at most one of them."""


def as_typed(path: Path, config: pytest.Config) -> str:
    """Return ``path`` as a user would type it.

    It is relative to the invocation directory, unless it lies two or more folders up from there. For the folder of an unpacked run,
    and for that of a matrix's group in it (``RUN/groups/NAME``), it is the path of the archive.
    """
    archives = config.stash[SETTINGS].archives
    path = archives.get(path) or archives.get(path.parent.parent, path)
    relative = os.path.relpath(path, config.invocation_params.dir)
    return str(path) if relative.startswith(os.path.join("..", "..")) else relative  # noqa: PTH118 - a text is compared


def move_command(path: Path, home: Path, config: pytest.Config) -> str:
    """Return the shell command for moving a file to ``home``.

    ``home`` is the file's new path. The command makes its folder if there is none yet.
    """
    source, target, folder = (shlex.quote(as_typed(place, config)) for place in (path, home, home.parent))
    return f"{'' if home.parent.is_dir() else f'mkdir -p {folder} && '}mv {source} {target}"


def next_steps(config: pytest.Config, run: Path, whole: Path) -> Commands:
    """Return the commands to replay, resume or continue a run.

    ``run`` is its directory, and ``whole`` that of the session's run: another one where ``run`` is of a group of a matrix. The replay
    names the tests alone: depth, false-alarm shares and config are the stored run's. The others repeat this session's whole command line,
    since they require the same config and selection. The run of a matrix cannot be continued: that command is then empty.
    """
    tests = [*_pyargs_option(config), *(as_typed(config.invocation_params.dir / arg, config) for arg in config.args)]
    return Commands(
        replay=f"pytest {shlex.join(tests)} --specdec-replay {shlex.quote(as_typed(run, config))}",
        resume=_command_with_option(config, "--specdec-resume", whole),
        continued=_command_with_option(config, "--specdec-continue", whole) if whole == run else "",
    )


def replay_of(item: pytest.Item, run: Path) -> str:
    """Return the command to judge one test's stored answers again, without a server.

    A test of the package's own suites is named by its module, any other one by its file. ``::TEST[PAIR]`` of its node id follows that.
    """
    module = str(getattr(getattr(item, "module", None), "__name__", ""))
    is_of_package = module.startswith(shipped.MODULE)
    module_or_file = module if is_of_package else as_typed(item.path, item.config)
    options = ("--pyargs",) if is_of_package else _pyargs_option(item.config)  # of another test as this session has it
    _, colons, test = item.nodeid.partition("::")
    arguments = [*options, module_or_file + colons + test]
    return f"pytest {shlex.join(arguments)} --specdec-replay {shlex.quote(as_typed(run, item.config))}"


def _pyargs_option(config: pytest.Config) -> tuple[str, ...]:
    """Return ``--pyargs`` if this session names its tests as modules, else ()."""
    return ("--pyargs",) if config.option.pyargs else ()


def _command_with_option(config: pytest.Config, option: str, run: Path) -> str:
    """Return this session's command line with ``option`` for ``run``.

    Any other option that names a run is removed, since a session may have only one.
    """
    arguments = [
        *without_options([str(argument) for argument in config.invocation_params.args], RUN_OPTIONS),
        option,
        as_typed(run, config),
    ]
    return f"pytest {shlex.join(arguments)}"


def without_options(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the arguments without some options that take a value.

    Their values are removed too.
    """
    remaining, is_value = [], False
    for argument in arguments:
        is_option = argument.partition("=")[0] in options  # with or without "=VALUE"
        if not (is_option or is_value):
            remaining.append(argument)
        is_value = argument in options  # of the next argument: an option without "=" has its value there
    return remaining
