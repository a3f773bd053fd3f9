"""What a session is handed by the one that started it, and where its run is: a worker's by its controller, a group's by its matrix.

Workers and their controller are processes of pytest-xdist. A matrix of settings has a run for each group of them, which a session of its
own may capture.
"""

from __future__ import annotations

import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.files.run_directory import RUNS
from pytest_specdec.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

ROOT = "specdec_root"
"""The key of the run directory: a worker gets it from its controller, the session of a group from that of its matrix."""

ARGUMENTS = "specdec_arguments"
"""The key of the arguments of the controller's session."""

INVOKED_IN = "specdec_invoked_in"
"""The key of the folder that the controller was started in."""

SESSION = "specdec_session"
"""The key of the session's id: a run that bears another one is not of this session, however alike the two are."""

GROUP = "specdec_group"
"""The key of the one group of a matrix that a session captures for the session that started it, judging nothing."""

CAPTURE_S = "specdec_capture_s"
"""The key of the seconds that the session of a group may capture for: at least the group's part of the deadline."""

GROUP_VARIABLE = "SPECDEC_GROUP_SESSION"
"""The variable in which the session of a group is handed directory, session id, group and seconds, as JSON."""

ROUND = "specdec_round"
"""The key of the round by which the session takes a run further: another worker may have written it into the plan already."""


def handed_over(config: pytest.Config) -> Mapping[str, str]:
    """Return what this session was handed, by the keys above.

    A worker is handed it by its controller, and the session of a group by that of its matrix. Empty for any other session.
    """
    handed: Mapping[str, str] | None = getattr(config, "workerinput", None)
    return json.loads(os.environ.get(GROUP_VARIABLE, "{}")) if handed is None else handed


def root(config: pytest.Config) -> Path:
    """Return the directory of this session's run.

    It is the stored run's in a replay, resume or continuation, else the one handed over to a worker or to the session of a group, else that
    of ``--specdec-run-dir``, else a new name under ``.specdec``.
    """
    settings = config.stash[SETTINGS]
    handed = handed_over(config).get(ROOT)
    named_directory = settings.replay or settings.taken_up or (Path(handed) if handed else settings.run_dir)
    return named_directory or _unused_folder(config.rootpath / RUNS, Path(settings.config or "run").stem)


def _unused_folder(folder: Path, name: str) -> Path:
    """Return an unused path for a run in ``folder``.

    After ``name`` come the time and random digits. The digits keep sessions of the same second apart: the folder that would reserve the
    name is made only when the capture begins.
    """
    return folder / f"{name}-{datetime.now(tz=UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
