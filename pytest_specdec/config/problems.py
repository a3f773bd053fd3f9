"""A problem: one thing in a config file that is not as it should be."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.files.yaml import Path

__all__ = ["Problem", "dotted", "error", "nearest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is where, what was found, and what was expected."""

    source: str
    """The file."""
    line: int
    """From 1."""
    path: str
    """Dotted: ``variants.eagle3-k3.args``."""
    found: str
    expected: str
    suggestion: str = ""
    """The nearest name, or what to do."""
    refused: bool = True
    """Whether nothing may be captured under such a config; False for a warning of the lint."""

    def __str__(self) -> str:
        suggestion = f"; {self.suggestion}" if self.suggestion else ""
        return f"{self.source}:{self.line}  {self.path}: found {self.found}, expected {self.expected}{suggestion}"


def error(problems: Sequence[Problem]) -> ConfigError:
    """Return the one error that tells all of ``problems``, in the order of the file."""
    ordered = sorted(problems, key=lambda problem: (problem.line, problem.path))
    count = "a problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    lines = "\n".join(f"  {problem}" for problem in ordered)
    return ConfigError(f"the config has {count}\n{lines}", remedy=f"edit {ordered[0].source}")


def dotted(path: Path) -> str:
    """Return ``path`` as it reads best: ``require[1]``, ``engine.args``; the root is ``the file``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".") or "the file"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``did you mean 'variants'?`` where one of ``names`` is close to ``name``, nothing otherwise."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean '{close[0]}'?" if close else ""
