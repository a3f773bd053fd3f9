"""Where a run is kept, and how its path is shown; nothing is made here."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.options import SETTINGS

if TYPE_CHECKING:
    import pytest

__all__ = ["HANDED", "ROUND", "SESSION", "root", "shown"]

HANDED = "specdec_root"
"""Under this key the controller hands its workers the run directory."""

SESSION = "specdec_session"
"""Under this one, the id of the session: a run that bears another one is not of this session, however alike the two are."""

ROUND = "specdec_round"
"""Under this one, the round by which the session takes a run further: another worker may have written it into the plan already."""


def root(config: pytest.Config) -> Path:
    """Return the directory of this session's run: the stored or handed one, the one asked for, or a new name under ``.specdec``."""
    settings = config.stash[SETTINGS]
    handed = getattr(config, "workerinput", {}).get(HANDED)
    chosen = settings.replay or settings.taken_up or (Path(handed) if handed else settings.run_dir)
    return chosen or _unused(config.rootpath / ".specdec", Path(settings.config or "run").stem)


def _unused(folder: Path, name: str) -> Path:
    """Return a name that no session has that begins in the same second: nothing is made before the capture, so none can be reserved."""
    return folder / f"{name}-{datetime.now(tz=UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def shown(path: Path, config: pytest.Config) -> str:
    """Return a path as a person in the invocation directory would type it."""
    relative = os.path.relpath(path, config.invocation_params.dir)
    return str(path) if relative.startswith(os.path.join("..", "..")) else relative  # noqa: PTH118 - a text is compared
