"""``python -m pytest_specdec doctor CONFIG``: what has no place in a pytest run."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from pytest_specdec.doctor import command


def main(argv: list[str] | None = None) -> int:
    """Return the exit code of the command that ``argv`` names; wrong usage exits with 2."""
    parser = ArgumentParser(prog="python -m pytest_specdec", allow_abbrev=False)
    command.add(parser.add_subparsers(metavar="COMMAND", required=True))
    return command.run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
