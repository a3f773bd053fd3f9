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
_SCHEMA = "urn:pytest-specdec:{}:1"
_NONE = Secrets()


def write_plan(directory: RunDirectory, plan: Plan) -> None:
    """Write what the run will do; from then on the folder is a run directory."""
    _write(directory.plan, "plan", plan)


def read_plan(directory: RunDirectory) -> Plan:
    """Return what the run was to do. Raises RunError when it is missing or of another version, as all readers here."""
    plan = _read(directory.plan, "plan", Plan)
    undeclared = {judgement.family for judgement in plan.judgements} - plan.rows.keys()
    if undeclared:
        msg = "the plan names a family that it does not declare"
        raise RunError(msg, where=str(directory.plan), found=min(undeclared), expected="a row of it under families")
    return plan


def write_environment(directory: RunDirectory, environment: Environment) -> None:
    """Write what the figures depend on."""
    _write(directory.environment, "environment", environment, secrets=directory.secrets)


def read_environment(directory: RunDirectory) -> Environment:
    """Return what the figures depend on."""
    return _read(directory.environment, "environment", Environment)


def write_status(directory: RunDirectory, status: Status) -> None:
    """Write how far the capture came."""
    _write(directory.status, "status", status, secrets=directory.secrets)


def read_status(directory: RunDirectory) -> Status:
    """Return how far the capture came."""
    return _read(directory.status, "status", Status)


def write_session(directory: RunDirectory, session: str) -> None:
    """Write which session captures here from now on."""
    _write(directory.session, "session", Session(id=session))


def session(directory: RunDirectory) -> str:
    """Return the session that captures here, or did last; empty where none says so."""
    try:
        return _read(directory.session, "session", Session).id
    except RunError:
        return ""


def write_variables(directory: RunDirectory, variables: Variables) -> None:
    """Write what the config took from the environment."""
    _write(directory.variables, "variables", variables)


def read_variables(directory: RunDirectory) -> Variables:
    """Return what the config took from the environment."""
    return _read(directory.variables, "variables", Variables)


def write_capabilities(directory: RunDirectory, arm: str, capabilities: Capabilities) -> None:
    """Write what the capability probe found of ``arm``."""
    _write(directory.capabilities_of(arm), "capabilities", capabilities, secrets=directory.secrets, arm=arm)


def read_capabilities(directory: RunDirectory) -> dict[str, Capabilities]:
    """Return what the capability probe found, by arm; empty when there was none."""
    found: dict[str, Capabilities] = {}
    for path in sorted(directory.capabilities.glob("*.json")):
        arm, capabilities = read_capabilities_file(path)
        found[arm] = capabilities
    return found


def read_capabilities_file(path: Path) -> tuple[str, Capabilities]:
    """Return an arm and what the capability probe found of it."""
    document = _document(path, "capabilities")
    arm = str(document.pop("arm", path.stem))
    return arm, _decoded(path, Capabilities, document)


def unscorable(directory: RunDirectory) -> str:
    """Return why the baseline's distribution at given tokens cannot be had, by its capability probe; empty where it can."""
    known = read_capabilities(directory).get(BASELINE)
    return "" if known is None else known.unscorable


def append_progress(directory: RunDirectory, progress: Progress) -> None:
    """Add one step to the end of the progress file, where others read it while it grows."""
    line = jsonl.compact(directory.secrets.masked(codec.encode(progress)))
    with writable(directory.progress):
        directory.progress.parent.mkdir(parents=True, exist_ok=True)
        with directory.progress.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")


def read_progress(directory: RunDirectory) -> tuple[Progress, ...]:
    """Return the steps so far; a line that is torn, or still being written, is left out: nothing is decided by them."""
    try:
        text = directory.progress.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(step for line in text[: text.rfind("\n") + 1].split("\n")[:-1] if (step := _step(line)) is not None)


def _step(line: str) -> Progress | None:
    try:
        return codec.decode(Progress, json.loads(line))
    except (ValueError, RecursionError, RunError):
        return None


def _write(path: Path, kind: str, value: object, *, secrets: Secrets = _NONE, **more: JSON) -> None:
    encoded = secrets.masked(codec.encode(value))
    assert isinstance(encoded, dict)
    document = {"schema": _SCHEMA.format(kind), **more, **encoded}
    atomic_write(path, json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def _read(path: Path, kind: str, cls: type[T]) -> T:
    return _decoded(path, cls, _document(path, kind))


def _document(path: Path, kind: str) -> dict[str, JSON]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"the run has no {path.name}"
        raise RunError(msg, where=str(path), expected="a capture that came so far") from None
    except (OSError, ValueError, RecursionError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        msg, remedy = "the file is not whole", "remove it, and take the run up again with --specdec-resume"
        raise RunError(msg, where=where, found=str(error), expected="one JSON document in UTF-8", remedy=remedy) from None
    found = document.pop("schema", None) if isinstance(document, dict) else None
    if found != _SCHEMA.format(kind):
        remedy = "read it with the version of pytest-specdec that wrote it"
        msg = "the file is of another kind"
        raise RunError(msg, where=str(path), found=f"schema {found!r}", expected=_SCHEMA.format(kind), remedy=remedy)
    return dict(document)


def _decoded(path: Path, cls: type[T], document: dict[str, JSON]) -> T:
    try:
        return codec.decode(cls, document)
    except RunError as error:
        raise RunError(
            error.what, where=f"{path}  {error.where}", found=error.found, expected=error.expected, remedy=error.remedy
        ) from None
