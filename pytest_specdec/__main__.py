"""The commands of ``python -m pytest_specdec``: what has no place in a pytest run."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from pytest_specdec import (
    __version__,
    bisect_command,
    doctor_command,
    init,
    matrix_command,
    merge_command,
    report_command,
    repro_command,
)
from pytest_specdec.config import shipped

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_ABOUT = "Prepare a gate for a server with speculative decoding, which pytest runs,\nand report on its runs."
UNREAD = 128 + signal.SIGPIPE
"""The exit code after SIGPIPE, as of a program piped into ``head``."""


def main(argv: list[str] | None = None) -> int:
    """Run the command in ``argv`` and return its exit code.

    If ``argv`` is None, the arguments of this process are read. Wrong usage exits with 2. The code is 141, as after
    SIGPIPE, if the reader of the output has ended.
    """
    parser = ArgumentParser(
        prog="python -m pytest_specdec",
        description=_ABOUT,
        epilog=f"documentation, from the first page on:\n  {shipped.DOCS / 'index.md'}",
        formatter_class=RawDescriptionHelpFormatter,  # the other one breaks a path at its hyphens
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pytest-specdec {__version__}")
    add_commands(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD


def add_commands(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the commands, in the order in which they are used."""
    for module in (init, doctor_command, matrix_command, report_command, merge_command, repro_command, bisect_command):
        module.add(commands)


if __name__ == "__main__":
    sys.exit(main())
