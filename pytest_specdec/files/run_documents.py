"""The small documents of a run: plan, environment, status, capabilities, progress.

Each is a JSON object whose ``schema`` ends in its kind and version, as in ``plan:2``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, jsonl
from pytest_specdec.files.run_directory import atomic_write, read_bytes, writable
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.baseline import Environment, Variables
from pytest_specdec.model.captured import Capabilities, scoring
from pytest_specdec.model.pair import OLD_BASELINE
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.status import Progress, Session, Status
from pytest_specdec.model.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.families import FamilyRow
    from pytest_specdec.model.workload import JSON

T = TypeVar("T")
_SCHEMA = "urn:pytest-specdec:{}"
_PLAN = "plan:2"
PLAN_SCHEMA = _SCHEMA.format(_PLAN)
_CAPABILITIES = "capabilities:1"
_ENVIRONMENT = "environment:1"
_SESSION = "session:1"
_STATUS = "status:1"
_VARIABLES = "variables:1"
_WORKLOAD = "workload:1"
_NONE = Secrets()
_LEAST_ALPHA = 1e-9
"""Far below the smallest share of a plan of many variants and workloads."""


def write_plan(directory: RunDirectory, plan: Plan) -> None:
    """Write the plan; from then on the folder counts as a run directory."""
    write_document(directory.plan, _PLAN, plan)


def read_plan(directory: RunDirectory) -> Plan:
    """Return the plan of a run, checked for impossible judgements.

    Raises RunError if the file is missing, invalid or of another schema. RunError is also raised if a judgement's family has no row in the
    plan, or if ``alpha``, its share of the false-alarm budget, is impossible.
    """
    plan = read_document(directory.plan, _PLAN, Plan)
    undeclared = {judgement.family for judgement in plan.judgements} - plan.rows.keys()
    if undeclared:
        msg = "the plan names a family that it does not declare"
        raise RunError(msg, where=str(directory.plan), found=min(undeclared), expected="a row of it under families", remedy="capture again")
    for index, judgement in enumerate(plan.judgements):
        _check_alpha(f"{directory.plan}  judgements[{index}].alpha", judgement.alpha, plan.rows[judgement.family])
    return plan


def _check_alpha(where: str, alpha: float, row: FamilyRow) -> None:
    """Raise RunError for a judgement with an impossible share ``alpha``.

    ``alpha`` is its share of the false-alarm budget of the family ``row``, and ``where`` its place in the file. Only an edited plan has a
    share above the whole budget, or one so small that no fault would ever be found. A family that draws on no budget may have 0.
    """
    least_alpha = _LEAST_ALPHA if row.budget.alpha and row.part else 0.0
    if not least_alpha <= alpha <= row.budget.alpha:
        what, remedy = (
            f"the plan gives a judgement of {row.name} an impossible share of the false alarms",
            "capture again: the plan was edited",
        )
        raise RunError(what, where=where, found=f"{alpha:g}", expected=f"from {least_alpha:g} to {row.budget.alpha:g}", remedy=remedy)


def write_environment(directory: RunDirectory, environment: Environment) -> None:
    """Write machine, engine and client."""
    write_document(directory.environment, _ENVIRONMENT, environment, secrets=directory.secrets)


def read_environment(directory: RunDirectory) -> Environment:
    """Return machine, engine and client."""
    return read_document(directory.environment, _ENVIRONMENT, Environment)


def write_status(directory: RunDirectory, status: Status) -> None:
    """Write the state of the capture."""
    write_document(directory.status, _STATUS, status, secrets=directory.secrets)


def read_status(directory: RunDirectory) -> Status:
    """Return the state of the capture."""
    return read_document(directory.status, _STATUS, Status)


def has_begun(directory: RunDirectory) -> bool:
    """Return True if a capture got as far as its first boot in the directory.

    It then has answers, or all documents that are written before the first boot. A session that was ended earlier has left a plan at
    most, and maybe an earlier run's answers to be scored.
    """
    old_arm_folder = directory.transcript(OLD_BASELINE, "").parent  # the workload's name does not matter for it
    answered_arms = {path.name for path in old_arm_folder.parent.glob("*")} - {old_arm_folder.name}
    first_documents = (directory.environment, directory.config, directory.status)
    return bool(answered_arms) or all(path.is_file() for path in first_documents)


def write_session(directory: RunDirectory, session: str) -> None:
    """Write the id of the session that captures here from now on."""
    write_document(directory.session, _SESSION, Session(id=session))


def session(directory: RunDirectory) -> str:
    """Return the id of the session capturing here, or the last one.

    Empty if the file is missing or cannot be read.
    """
    try:
        return read_document(directory.session, _SESSION, Session).id
    except RunError:
        return ""


def write_variables(directory: RunDirectory, variables: Variables) -> None:
    """Write the digests of ``${VAR}`` values."""
    write_document(directory.variables, _VARIABLES, variables)


def read_variables(directory: RunDirectory) -> Variables:
    """Return the digests of ``${VAR}`` values."""
    return read_document(directory.variables, _VARIABLES, Variables)


def write_capabilities(directory: RunDirectory, arm: str, capabilities: Capabilities) -> None:
    """Write the probed capabilities of ``arm``."""
    write_document(directory.capabilities_of(arm), _CAPABILITIES, capabilities, secrets=directory.secrets, arm=arm)


def read_capabilities(directory: RunDirectory) -> dict[str, Capabilities]:
    """Return the probed capabilities by arm; empty without a probe."""
    by_arm: dict[str, Capabilities] = {}
    for path in sorted(directory.capabilities.glob("*.json")):
        arm, capabilities = read_capabilities_file(path)
        by_arm[arm] = capabilities
    return by_arm


def read_capabilities_file(path: Path) -> tuple[str, Capabilities]:
    """Return the arm and the probed capabilities in one file."""
    document = _load_fields(path, _CAPABILITIES)
    arm = str(document.pop("arm", path.stem))
    return arm, _decode_fields(path, Capabilities, document)


def write_workload(directory: RunDirectory, workload: Workload) -> None:
    """Write a workload as it is sent.

    Its lengths were filled in from a server's context limit.
    """
    write_document(directory.workload(workload.name), _WORKLOAD, workload)


def read_workload(directory: RunDirectory, plan: Plan, name: str) -> Workload:
    """Return the workload called ``name`` as it was sent.

    It is the planned one, unless its lengths were filled in from a server's context limit.
    """
    path = directory.workload(name)
    return read_document(path, _WORKLOAD, Workload) if path.is_file() else plan.workload(name)


def unscorable_reason(directory: RunDirectory) -> str:
    """Return the reason why given tokens cannot be scored.

    To score is to ask a server for its log-probabilities of tokens that another one emitted. The reason comes from the capability probe of
    the scoring server. Empty if it can score, or if it was not probed.
    """
    capabilities = scoring(read_capabilities(directory))
    return "" if capabilities is None else capabilities.unscorable


def append_progress(directory: RunDirectory, progress: Progress) -> None:
    """Append one step to the progress file, with secrets masked.

    Other processes read the file while it grows. Raises RunError if it cannot be written.
    """
    line = jsonl.compact(directory.secrets.mask_json(codec.encode(progress)))
    with writable(directory.progress):
        directory.progress.parent.mkdir(parents=True, exist_ok=True)
        with directory.progress.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")


def read_progress(directory: RunDirectory) -> tuple[Progress, ...]:
    """Return the steps in the progress file; () without a readable one.

    A last line that is not complete yet, and lines that cannot be read, are left out.
    """
    try:
        text = read_bytes(directory.progress).decode(errors="replace")
    except (OSError, RunError):
        return ()
    return tuple(step for line in text[: text.rfind("\n") + 1].split("\n")[:-1] if (step := _decode_progress(line)) is not None)


def _decode_progress(line: str) -> Progress | None:
    """Return the step in a line of the progress file; None if it has none."""
    try:
        return codec.decode(Progress, json.loads(line))
    except (ValueError, RecursionError, RunError):
        return None


def write_document(path: Path, kind: str, value: object, *, secrets: Secrets = _NONE, **more: JSON) -> None:
    """Write ``value`` as a JSON document, schema first and secrets masked.

    ``kind`` is the schema's name with its version. ``more`` are further fields, written unmasked. Raises RunError if the file cannot be
    written.
    """
    encoded = secrets.mask_json(codec.encode(value))
    assert isinstance(encoded, dict)
    document = {"schema": _SCHEMA.format(kind), **more, **encoded}
    atomic_write(path, json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def read_document(path: Path, kind: str, cls: type[T]) -> T:
    """Return the ``cls`` in a JSON document of :func:`write_document`.

    Raises RunError if the file is missing, cannot be read, has another schema or other fields.
    """
    return _decode_fields(path, cls, _load_fields(path, kind))


def _load_fields(path: Path, kind: str) -> dict[str, JSON]:
    """Return the fields of a document without its schema.

    ``kind`` is the schema's name with its version. Raises RunError if the file is missing, cannot be read or has another schema.
    """
    try:
        document = json.loads(read_bytes(path).decode())
    except FileNotFoundError:
        msg = f"the run has no {path.name}"
        raise RunError(msg, where=str(path), expected="a capture that got so far", remedy="resume the run with --specdec-resume") from None
    except (OSError, ValueError, RecursionError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        msg, remedy = "the file is incomplete", "remove it, and resume the run with --specdec-resume"
        raise RunError(msg, where=where, found=str(error), expected="one JSON document in UTF-8", remedy=remedy) from None
    schema = document.pop("schema", None) if isinstance(document, dict) else None
    codec.check_schema(str(path), schema, _SCHEMA.format(kind))
    return dict(document)


def _decode_fields(path: Path, cls: type[T], document: dict[str, JSON]) -> T:
    """Return the object in a document's fields; raise RunError, naming ``path``, if invalid."""
    try:
        return codec.decode(cls, document)
    except RunError as error:
        raise RunError(
            error.what, where=f"{path}  {error.where}", found=error.found, expected=error.expected, remedy=error.remedy
        ) from None
