"""Resume: a run that was interrupted is taken up again, by the very plan, config and machine that it was begun with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_specdec.files import codec, records, yaml
from pytest_specdec.files.directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import JSON

__all__ = ["check"]

_MOST = 4
"""Differences that are told."""
_FREE = {"estimate_s", "placement_reason"}
"""Of a plan: said to people, decided by nothing."""


def check(root: Path, config: Config, plan: Plan) -> None:
    """Raise pytest.UsageError, with the differences, when ``root`` was begun with another config, plan or machine."""
    from pytest_specdec.capture import observe  # noqa: PLC0415 - only a resume pays for it

    directory = RunDirectory.open(root)
    kept, here = records.read_environment(directory), observe.environment(config, "")
    machine = ("machine", kept.machine, here.machine)
    client = ("pytest-specdec", kept.packages.get("pytest-specdec"), here.packages.get("pytest-specdec"))
    found = [
        *_differences("config", _data(directory.config.read_text(encoding="utf-8")), _data(config.text)),
        *_differences("plan", _encoded(records.read_plan(directory)), _encoded(plan)),
        *(f"{name}: the run has {then!r}, found {now!r}" for name, then, now in (machine, client) if then != now),
    ]
    if found:
        more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
        told = "\n  ".join([*found[:_MOST], *more])
        msg = f"--specdec-resume: found another plan than that of {root}; expected the same config, selection, depth and machine\n  {told}"
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
