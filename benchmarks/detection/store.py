"""A store: results by cell in one JSON file, so that a run that was stopped goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import scipy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["Store", "digest", "environment"]

JUDGED = (
    "pytest_specdec/stats",
    "pytest_specdec/judge/fault_naming.py",
    "pytest_specdec/judge/sensitivity.py",
    "benchmarks/bank.py",
    "benchmarks/simulation.py",
    *(f"benchmarks/detection/{name}.py" for name in ("alarms", "bounds", "cells", "faults", "grid", "promises")),
)
"""What the figures hang on, beside the settings and the bank."""


NEVER = "never"
"""What stands for infinity in the file."""


class Store:
    """Results of one set of settings; those of another are dropped."""

    closed = False
    """Whether nothing more is measured."""

    def __init__(self, path: Path, settings: dict[str, object]) -> None:
        self.path = path
        found = _finite(json.loads(path.read_text()), {NEVER: math.inf}) if path.exists() else {}
        same = found.get("settings") == settings
        self.content: dict[str, object] = found if same else {"settings": settings, "environment": environment(), "results": {}}

    @property
    def results(self) -> dict[str, object]:
        """Results by key."""
        return self.content["results"]

    def made(self, key: str, make: Callable[[], object]) -> tuple[object, bool]:
        """Return the result of ``key`` and whether it had to be made; a new one is on disk before this returns."""
        if key in self.results:
            return self.results[key], False
        self.results[key] = _plain(make())
        self.write()
        return self.results[key], True

    def write(self) -> None:
        """Write everything, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(_finite(self.content, {math.inf: NEVER}), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        beside.replace(self.path)


def _finite(value: object, instead: dict[object, object]) -> object:
    """Return ``value`` with everything that ``instead`` names replaced: JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(each, instead) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each, instead) for each in value]
    return instead.get(value, value)


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=float))


def digest(root: Path, paths: Iterable[str] = JUDGED) -> str:
    """Return a digest of the sources that decide the figures."""
    files = sorted(file for path in paths for file in ((root / path).rglob("*.py") if (root / path).is_dir() else [root / path]))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def environment() -> dict[str, str]:
    """Return when and where; no machine's name."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
