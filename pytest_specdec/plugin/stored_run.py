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
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import run_state
from pytest_specdec.plugin.verdicts import UNSETTLED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import JSON, Workload
    from pytest_specdec.plugin.run_state import SessionState

__all__ = ["next_round", "plan"]

_MOST = 4
"""Differences that are told."""
_FREE = {"estimate_s", "placement_reason"}
"""Of a plan: said to people, decided by nothing."""


def plan(config: pytest.Config, found: SessionState, workloads: Sequence[Workload]) -> Plan:
    """Return the plan by which the session takes up a stored run: the stored one, or that and more of what was inconclusive.

    ``workloads`` are those of the selected tests, at their deepest. Raises pytest.UsageError.
    """
    root, settings, directory = found.root, found.settings, RunDirectory.open(found.root)
    option = "--specdec-continue" if settings.continued else "--specdec-resume"
    stored = run_documents.read_plan(directory)
    _check(option, directory, found.config, extension.base(stored), found.plan)
    if not settings.continued:
        return stored
    judgements = _unsettled(directory)
    deepest = {one.name: one for one in workloads if one.name in {workload for _, workload in judgements}}
    if not deepest:
        why = run_documents.unscorable(directory)
        found_none = f"found no inconclusive or suspicious sampling verdict in {root}/run.json"
        found_none = f"found that no token of {root} can be scored ({why})" if why else found_none
        msg = f"--specdec-continue: {found_none}; expected a run that more tokens would settle"
        raise pytest.UsageError(msg)
    round_ = getattr(config, "workerinput", {}).get(run_state.ROUND) or next_round(root)
    return extension.extended(stored, deepest, [pair for pair, workload in judgements if workload in deepest], round_)


def next_round(root: Path) -> int:
    """Return the number of the next extension."""
    return extension.rounds(run_documents.read_plan(RunDirectory.open(root))) + 1


def _unsettled(directory: RunDirectory) -> list[tuple[str, str]]:
    """Return pair and workload of the sampling verdicts that the run's report calls inconclusive or suspicious, and that tokens settle."""
    if run_documents.unscorable(directory):
        return []
    try:
        judgements = json.loads(directory.run.read_text(encoding="utf-8"))["judgements"]
    except (OSError, ValueError, KeyError):
        return []
    verdicts = [(one, one.get("verdict") or {}) for one in judgements if one.get("family") == Family.SAMPLING]
    return [(one["pair"], one["workload"]) for one, verdict in verdicts if verdict.get("outcome") in UNSETTLED]


def _check(option: str, directory: RunDirectory, config: Config, then: Plan, now: Plan) -> None:
    """Raise pytest.UsageError, with the differences, when the run was begun with another config, plan or machine."""
    kept, here = run_documents.read_environment(directory), environment.environment(config, "")
    machine = ("machine", kept.machine, here.machine)
    client = ("pytest-specdec", kept.packages.get("pytest-specdec"), here.packages.get("pytest-specdec"))
    expanded = variables.changed(run_documents.read_variables(directory), config.text, os.environ)
    found = [
        *(f"the environment variable {name} has another value than the run was begun with" for name in expanded),
        *_differences("config", _data(directory.config.read_text(encoding="utf-8")), _data(config.text)),
        *_differences("plan", _encoded(then), _encoded(now)),
        *(f"{name}: the run has {old!r}, found {new!r}" for name, old, new in (machine, client) if old != new),
    ]
    if found:
        more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
        told = "\n  ".join([*found[:_MOST], *more])
        root = directory.root
        msg = f"{option}: found another plan than that of {root}; expected the same config, selection, depth and machine\n  {told}"
        raise pytest.UsageError(msg)


def _data(text: str) -> JSON:
    return yaml.load(text, "config.yaml").data


def _encoded(plan: Plan) -> JSON:
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
