"""The small documents of a run: plan, environment, status, capabilities, progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, jsonl
from pytest_specdec.files.run_directory import atomic_write, writable
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.baseline import Environment, Variables
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.status import Progress, Session, Status

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.workload import JSON

__all__ = [
    "append_progress",
    "read_capabilities",
    "read_capabilities_file",
    "read_environment",
    "read_plan",
    "read_progress",
    "read_status",
    "read_variables",
    "session",
    "unscorable",
    "write_capabilities",
    "write_environment",
    "write_plan",
    "write_session",
    "write_status",
    "write_variables",
]

T = TypeVar("T")
_SCHEMA = "urn:pytest-specdec:{}"
_PLAN = "plan:2"
_CAPABILITIES = "capabilities:1"
_ENVIRONMENT = "environment:1"
_SESSION = "session:1"
_STATUS = "status:1"
_VARIABLES = "variables:1"
_NONE = Secrets()


def write_plan(directory: RunDirectory, plan: Plan) -> None:
    """Write what the run will do; from then on the folder is a run directory."""
    _write(directory.plan, _PLAN, plan)


def read_plan(directory: RunDirectory) -> Plan:
    """Return what the run was to do. Raises RunError when it is missing or of another version, as all readers here."""
