"""``python -m pytest_specdec doctor CONFIG``: what has no place in a pytest run."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser

from pytest_specdec import __version__
from pytest_specdec.doctor import command

UNREAD = 128 + signal.SIGPIPE
"""The exit code after SIGPIPE, as of a program piped into ``head``."""


def main(argv: list[str] | None = None) -> int:
    """Return the exit code of the command that ``argv`` names; wrong usage exits with 2."""
    parser = ArgumentParser(prog="python -m pytest_specdec", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"pytest-specdec {__version__}")
    command.add(parser.add_subparsers(metavar="COMMAND", required=True))
    try:
        return command.run(parser.parse_args(argv))
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD


if __name__ == "__main__":
    sys.exit(main())
