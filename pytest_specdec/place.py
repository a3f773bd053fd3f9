"""Where a run is kept, and how its path is shown; nothing is made here."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.options import SETTINGS

if TYPE_CHECKING:
    import pytest

__all__ = ["BEGAN", "HANDED", "ROUND", "root", "shown"]

HANDED = "specdec_root"
"""Under this key the controller hands its workers the run directory."""

BEGAN = "specdec_began_ns"
"""Under this one, when the session began: what a run said of itself before is not of this session."""

ROUND = "specdec_round"
"""Under this one, the round by which the session takes a run further: another worker may have written it into the plan already."""


def root(config: pytest.Config) -> Path:
    """Return the directory of this session's run: the stored or handed one, the one asked for, or a new name under ``.specdec``."""
    settings = config.stash[SETTINGS]
    handed = getattr(config, "workerinput", {}).get(HANDED)
    chosen = settings.replay or settings.taken_up or (Path(handed) if handed else settings.run_dir)
    return chosen or _unused(config.rootpath / ".specdec", Path(settings.config or "run").stem)


def _unused(folder: Path, name: str) -> Path:
    first = folder / f"{name}-{datetime.now(tz=UTC):%Y%m%dT%H%M%SZ}"
    path, count = first, 1
    while path.exists():
        count += 1
        path = first.with_name(f"{first.name}-{count}")
    return path


def shown(path: Path, config: pytest.Config) -> str:
    """Return a path as a person in the invocation directory would type it."""
    relative = os.path.relpath(path, config.invocation_params.dir)
    return str(path) if relative.startswith(os.path.join("..", "..")) else relative  # noqa: PTH118 - a text is compared
