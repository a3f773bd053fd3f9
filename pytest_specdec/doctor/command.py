"""The command: ``doctor CONFIG``, one line per check, and an exit code."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config import load
from pytest_specdec.doctor.check import Check, Level
from pytest_specdec.errors import ConfigError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Depth
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterable

__all__ = ["add", "lines", "run"]

_ABOUT = "Say in seconds whether a run would get off the ground. Nothing is booted. Exits with 0 when nothing failed, 1 when something did."
_NAME = 11


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser("doctor", help="say whether a run would get off the ground", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the bare name of one in suites/configs")
    parser.add_argument("--depth", choices=[depth.value for depth in Depth], default=Depth.STANDARD.value, help="as --specdec-depth")
    parser.add_argument("--baselines", metavar="DIR", type=Path, default=Path("baselines"), help="as --specdec-baselines")


def run(asked: Namespace) -> int:
    """Examine the config, print every check as it comes, and return the exit code."""
    from pytest_specdec.doctor import examination  # noqa: PLC0415 - it imports the engines; wrong usage is told without them

    here = Path.cwd()
    try:
        path = _found(asked.config, here)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    depth = Depth(asked.depth)
    _tell(f"doctor: {path} at depth {depth.value}", Secrets())
    patient = examination.admitted(path, depth, asked.baselines, here)
    if isinstance(patient, Check):
        return _told([patient], _next(path, depth), Secrets.of(os.environ))
    return _told(examination.examine(patient), _next(path, depth), patient.secrets)


def _found(name: str, here: Path) -> Path:
    beside = (Path(f"{name}{suffix}") for suffix in ("", ".yaml", ".yml"))
    path = next((path for path in beside if path.is_file()), None) or load.find(name, (here / "suites" / "configs",))
    return path.relative_to(here) if path.is_relative_to(here) else path


def _next(path: Path, depth: Depth) -> str:
    return f"pytest suites/ --specdec-config={path}" + ("" if depth is Depth.STANDARD else f" --specdec-depth={depth.value}")


def lines(check: Check) -> tuple[str, ...]:
    """Return a check as it is printed: its first line aligned, the rest under it."""
    first = f"  {check.level.value:<4}  {check.name:<{_NAME}}{check.said}"
    return tuple(printable(line) for line in (first, *(" " * (8 + _NAME) + line for line in check.more)))


def _told(checks: Iterable[Check], then: str, secrets: Secrets) -> int:
    counts: Counter[Level] = Counter()
    for check in checks:
        counts[check.level] += 1
        for line in lines(check):
            _tell(line, secrets)
    warned = f", {counts[Level.WARN]} to look at" if counts[Level.WARN] else ""
    if counts[Level.FAIL]:
        _tell(f"{counts[Level.FAIL]} of {counts.total()} checks failed{warned}: a run would not get off the ground", secrets)
        return 1
    _tell(f"{counts.total()} checks, none failed{warned}\n{then}", secrets)
    return 0


def _tell(text: str, secrets: Secrets) -> None:
    sys.stdout.write(f"{secrets.mask(text)}\n")
    sys.stdout.flush()
