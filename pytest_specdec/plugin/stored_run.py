"""A stored run, resumed or continued under the very plan, config, machine and variables that it was begun with."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import environment, extension
from pytest_specdec.config import variables
from pytest_specdec.files import codec, run_documents, yaml
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import run_state
from pytest_specdec.plugin.verdicts import UNSETTLED
from pytest_specdec.report import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import JSON, Workload
    from pytest_specdec.plugin.run_state import RunState

_MOST = 4
"""Differences in the message."""
_FREE = {"estimate_s", "again_s", "placement_reason"}
"""Fields of a plan that are for people only."""


def plan(config: pytest.Config, run: RunState, workloads: Sequence[Workload]) -> Plan:
    """Return the plan for resuming or continuing a stored run.

    It is the stored one or, to continue, that and more of what was inconclusive.

    ``workloads`` are those of the selected tests, at their deepest. Raises pytest.UsageError.
    """
    root, settings, directory = run.root, run.settings, RunDirectory.open(run.root)
    option = "--specdec-continue" if settings.continued else "--specdec-resume"
    stored = run_documents.read_plan(directory)
    _check(option, directory, run.config, extension.base(stored), run.plan)
    if not settings.continued:
        return stored
    judgements, again = _unsettled_sampling(directory), _open(directory)
    deepest = {workload.name: workload for workload in workloads if workload.name in {name for _, name in (*judgements, *again)}}
    if not deepest:
        why = run_documents.unscorable(directory)
        found = f"tokens that cannot be scored ({why})" if why else f"no inconclusive or suspicious verdict in {root}/run.json"
        msg = f"--specdec-continue: found {found}; expected a verdict that more tokens would settle"
        raise pytest.UsageError(msg)
    round_ = getattr(config, "workerinput", {}).get(run_state.ROUND) or next_round(root)
    pairs = [pair for pair, workload in (*judgements, *again) if workload in deepest]
    return extension.extend(stored, deepest, pairs, round_, again={workload for _, workload in again})


def next_round(root: Path) -> int:
    """Return the number of the next extension."""
    return extension.rounds(run_documents.read_plan(RunDirectory.open(root))) + 1


def _unsettled_sampling(directory: RunDirectory) -> list[tuple[str, str]]:
    """Return pair and workload of each unsettled sampling verdict.

    The run's report calls it inconclusive or suspicious, and more tokens settle it.
    """
    return _judgements(directory, lambda family, outcome: family == Family.SAMPLING and outcome in UNSETTLED)


def _open(directory: RunDirectory) -> list[tuple[str, str]]:
    """Return pair and workload of each suspicious wrong-token count.

    The same requests again settle it.
    """
    return _judgements(directory, lambda family, outcome: family in COUNTED and outcome == Outcome.SUSPICIOUS)


def _judgements(directory: RunDirectory, is_wanted: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """Return pair and workload of the report's verdicts to settle.

    ``is_wanted`` selects them by family and outcome. [] where tokens cannot be scored or there is no readable report.
    """
    if run_documents.unscorable(directory):
        return []
    try:
        document = json.loads(directory.run.read_text(encoding="utf-8"))
        codec.check_schema(str(directory.run), document["schema"], run.SCHEMA)
        judgements = document["judgements"]
    except (OSError, ValueError, KeyError):
        return []
    outcomes = [(each, (each.get("verdict") or {}).get("outcome", "")) for each in judgements]
    return [(each["pair"], each["workload"]) for each, outcome in outcomes if is_wanted(each.get("family", ""), outcome)]


def _check(option: str, directory: RunDirectory, config: Config, then: Plan, now: Plan) -> None:
    """Raise pytest.UsageError if config, plan or machine have changed.

    The message lists the differences from the start of the run. Variables and the version of pytest-specdec count
    too.
    """
    then_here, now_here = run_documents.read_environment(directory), environment.environment(config, "")
    machine = ("machine", then_here.machine, now_here.machine)
    client = ("pytest-specdec", then_here.packages.get("pytest-specdec"), now_here.packages.get("pytest-specdec"))
    expanded = variables.find_changed(run_documents.read_variables(directory), config.text, os.environ)
    differences = [
        *(f"environment variable {name}: another value than at the start of the run" for name in expanded),
        *_differences("config", _data(directory.config.read_text(encoding="utf-8")), _data(config.text)),
        *_differences("plan", _encode_plan(then), _encode_plan(now)),
        *(f"{name}: the run has {old!r}, found {new!r}" for name, old, new in (machine, client) if old != new),
    ]
    if differences:
        more = [f"and {len(differences) - _MOST} more"] if len(differences) > _MOST else []
        shown = "\n  ".join([*differences[:_MOST], *more])
        msg = (
            f"{option}: found another plan than that of {directory.root}; expected the same config, selection, depth and machine\n  {shown}"
        )
        raise pytest.UsageError(msg)


def _data(text: str) -> JSON:
    return yaml.load(text, "config.yaml").data


def _encode_plan(plan: Plan) -> JSON:
    encoded = codec.encode(plan)
    assert isinstance(encoded, dict)
    workloads = {workload.name: workload.digest for workload in plan.workloads}
    return {name: value for name, value in encoded.items() if name not in _FREE} | {"workloads": workloads}


def _differences(where: str, then: JSON, now: JSON) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*then, *now]):
            yield from _differences(f"{where}.{name}", then.get(name), now.get(name))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from _differences(f"{where}[{index}]", old, new)
    elif then != now:
        yield f"{where}: the run has {_short(then)}, found {_short(now)}"


def _short(value: JSON, most: int = 60) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"
