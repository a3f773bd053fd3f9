"""A check: one thing that was looked at, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.errors import SpecdecError

__all__ = ["Check", "Level", "fail", "failed", "ok", "warn"]


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one look found."""

    name: str
    level: Level
    said: str
    """One line."""
    more: tuple[str, ...] = ()
    """What stands under it: found, expected, remedy."""


def ok(name: str, said: str, *more: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name=name, level=Level.OK, said=said, more=more)


def warn(name: str, said: str, *more: str, remedy: str = "") -> Check:
    """Return a check that found what may be wrong, or could not look."""
    return Check(name=name, level=Level.WARN, said=said, more=(*more, *_remedy(remedy)))


def fail(name: str, said: str, *more: str, remedy: str) -> Check:
    """Return a check that found what stands in a run's way."""
    return Check(name=name, level=Level.FAIL, said=said, more=(*more, *_remedy(remedy)))


def failed(name: str, error: SpecdecError) -> Check:
    """Return the check that ``error`` stands for, in its own words."""
    said, *more = str(error).splitlines()
    return Check(name=name, level=Level.FAIL, said=said, more=tuple(line.removeprefix("  ") for line in more))


def _remedy(text: str) -> tuple[str, ...]:
    return (f"remedy:   {text}",) if text else ()
