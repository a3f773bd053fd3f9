"""The result of one check by the doctor, which checks a config on this machine: a level, a line, and the lines under it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.errors import SpecdecError


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor."""

    name: str
    level: Level
    line: str
    details: tuple[str, ...] = ()
    """The lines under it: found, expected, remedy."""


def ok(name: str, line: str, *details: str) -> Check:
    """Return a check that passed."""
    return Check(name=name, level=Level.OK, line=line, details=details)


def warn(name: str, line: str, *details: str, remedy: str = "") -> Check:
    """Return a check that found something suspect, or could not be made."""
    return Check(name=name, level=Level.WARN, line=line, details=(*details, *([f"remedy:   {remedy}"] if remedy else ())))


def fail(name: str, line: str, *details: str, remedy: str) -> Check:
    """Return a check that found something a run cannot start with."""
    return Check(name=name, level=Level.FAIL, line=line, details=(*details, f"remedy:   {remedy}"))


def error_check(name: str, error: SpecdecError) -> Check:
    """Return a failed check with the text of ``error``."""
    line, *details = str(error).splitlines()
    return Check(name=name, level=Level.FAIL, line=line, details=tuple(detail.removeprefix("  ") for detail in details))
