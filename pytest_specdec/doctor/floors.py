"""The floors that speed would be held against on this machine: those of the config, and those of its baseline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec import baselines
from pytest_specdec.doctor.check import failed, ok, warn
from pytest_specdec.errors import SpecdecError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.model.environment import Environment

__all__ = ["check"]


def check(config: Config, folder: Path, environment: Environment) -> tuple[Check, ...]:
    """Return which baseline file applies here, and what gates without one."""
    try:
        baselines.check(folder, config.name)
        gates = baselines.gates(folder, config.name, environment)
        notes = baselines.notes(folder, config.name, environment)
    except SpecdecError as error:
        return (failed("baselines", error),)
    path = baselines.path(folder, config.name, environment)
    stated = ", ".join(f"{gate.figure} at least {gate.at_least:g}" for gate in config.gates if gate.at_least is not None)
    if gates:
        return (ok("baselines", f"{len(gates)} of this machine in {path}, beside {stated}"),)
    if notes:
        return tuple(warn("baselines", note, remedy="measure here with --specdec-update-baselines") for note in notes)
    return (ok("baselines", f"none of this machine ({environment.machine}), so {stated} gates"),)
