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
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Store", "digest", "environment"]

JUDGED = (
    "pytest_specdec/stats",
    "pytest_specdec/judge/sampling/fault_scope.py",
    "pytest_specdec/judge/sampling/fault_naming.py",
    "pytest_specdec/judge/sampling/sensitivity.py",
    "benchmarks/bank.py",
    "benchmarks/simulation.py",
    *(f"benchmarks/detection/{name}.py" for name in ("alarms", "bounds", "cells", "faults", "grid", "promises")),
)
"""What the figures hang on, beside the settings and the bank."""


NEVER = "never"
"""What stands for infinity in the file."""


class Store:
    """Results of one set of settings; those of another are dropped, unless the store is closed: then nothing more is measured."""

    def __init__(self, path: Path, settings: dict[str, object], *, closed: bool = False) -> None:
        self.path, self.closed = path, closed
        content = _finite(json.loads(path.read_text()), {NEVER: math.inf}) if path.exists() else {}
        usable = content.get("settings") == settings or (closed and content)
        self.content: dict[str, object] = content if usable else {"settings": settings, "environment": environment(), "results": {}}

    @property
    def results(self) -> dict[str, object]:
        """Results by key."""
        return self.content["results"]

    @property
    def cells(self) -> list[dict[str, object]]:
        """The results that are cells: of one fault under one kind of draft."""
        return [result for result in self.results.values() if isinstance(result, dict) and "ways" in result]

    def add(self, key: str, result: object) -> None:
        """Take in one result; it is on disk before this returns."""
        self.results[key] = _plain(result)
        self.write()

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
