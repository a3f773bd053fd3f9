"""The commands of ``python -m pytest_specdec``: what has no place in a pytest run."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser

from pytest_specdec import __version__, doctor_command, init, report_command, repro_command

_ABOUT = "Prepare a gate for a server with speculative decoding, which pytest runs, and report on its runs."
UNREAD = 128 + signal.SIGPIPE
"""The exit code after SIGPIPE, as of a program piped into ``head``."""


def main(argv: list[str] | None = None) -> int:
    """Return the exit code of the command in ``argv``.

    Wrong usage exits with 2.
    """
    parser = ArgumentParser(prog="python -m pytest_specdec", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"pytest-specdec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    init.add(commands)
    doctor_command.add(commands)
    report_command.add(commands)
    repro_command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD


if __name__ == "__main__":
    sys.exit(main())
