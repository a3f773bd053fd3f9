"""The config itself: schema, pair, variables, gates that speed would be held against, and the plan that the suites make of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_specdec.capture import planner
from pytest_specdec.capture.planner import SelectedWorkload
from pytest_specdec.config.lint import lint
from pytest_specdec.config.rules import RULES
from pytest_specdec.doctor.arm_commands import unset
from pytest_specdec.doctor.check import fail, failed, ok, warn
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import SpecdecError
from pytest_specdec.model.plan import Role
from pytest_specdec.model.workload import Family, Workload
from pytest_specdec.plugin import baselines
from pytest_specdec.report.progress import clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import ProgramResult
    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.workload import Depth

__all__ = ["boots", "check", "collecting", "collection", "pair", "schema", "suites", "variables"]


def schema(config: Config) -> Check:
    """Return what a config says that could be read; one that could not has raised ConfigError."""
    names = ", ".join(variant.name for variant in config.variants)
    return ok("config", f"{config.engine.kind} serving {config.engine.model}, variants {names}")


def pair(config: Config) -> tuple[Check, ...]:
    """Return whether the arms differ in the speculative setting only, and whether a mode loses the distribution."""
    found = tuple(_linted(problem) for problem in lint(config))
    if config.engine.kind not in RULES:
        return (warn("pair", f"not linted: nothing is known of what {config.engine.kind} changes when it speculates"),)
    if config.lossy:
        found = (warn("pair", "lossy: true, so equivalence is reported and gates nothing"), *found)
    return found or (ok("pair", "the arms differ in the speculative setting only, and no mode is lossy"),)


def _linted(problem: Problem) -> Check:
    where = f"{problem.source}:{problem.line}  {problem.path}: found {problem.found}"
    expected = f"expected: {problem.expected}"
    if problem.refused:
        return fail("pair", where, expected, remedy=problem.suggestion or "edit the config")
    return warn("pair", where, expected, remedy=problem.suggestion)


def variables(config: Config, environ: Mapping[str, str]) -> tuple[Check, ...]:
    """Return whether every ``${VAR}`` of the config is set; values are not looked at."""
    missing = tuple(failed("variables", error) for error in unset(config, environ))
    if missing or "${" not in config.text:
        return missing
    return (ok("variables", "all set"),)


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


_PLAN = "specdec: "
_NOT_NEWS = "warning:"
"""Warnings of the pair lint have a check of their own."""
_STAND_IN = SelectedWorkload(workload=Workload(name="any", version=1, requests=(), draft_scored=True), family=Family.GREEDY)


def suites(config: Config, here: Path) -> Path | None:
    """Return the folder of test modules that the config lies in, or ``suites`` in ``here``; None without either."""
    places = (config.path.absolute().parent.parent, here / "suites")
    return next((place for place in places if place.name == "suites" and any(place.rglob("test_*.py"))), None)


def collecting(config: Config, folder: Path, depth: Depth) -> tuple[str, ...]:
    """Return the command that collects the suites and prints the plan, and boots nothing."""
    asked = (f"--specdec-config={config.path.absolute()}", f"--specdec-depth={depth}")
    return (sys.executable, "-m", "pytest", str(folder), "--co", "-q", "--color=no", "-p", "no:cacheprovider", *asked)


def collection(ran: ProgramResult, folder: Path) -> Check:
    """Return the plan that a collection printed, or why there is none."""
    lines = ran.out.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith(_PLAN)), None)
    if ran.exit_code != 0 or start is None:
        words = [line for line in (ran.out + "\n" + ran.err).splitlines() if line.strip()]
        return fail("plan", f"the tests in {folder} cannot be collected", *words[-10:], remedy=f"see pytest --co {folder}")
    said = [line.strip() for line in lines[start + 1 :] if line.startswith("  ")]
    return ok("plan", *[line for line in said if line and not line.startswith(_NOT_NEWS)])


def boots(config: Config, depth: Depth) -> Check:
    """Return which servers are booted at ``depth``, whatever is asked of them."""
    try:
        plan = planner.make(config, (_STAND_IN,), depth)
    except SpecdecError as error:
        return failed("plan", error)
    waiting = len(plan.boots) * engine_of(config.engine.kind).pace.boot_s
    return ok("plan", f"{len(plan.boots)} boots ({_arms(plan.boots)}), about {clock(waiting)} of waiting for them; answers come on top")


def _arms(planned: Sequence[Boot]) -> str:
    return ", ".join(
        "baseline and control" if boot.also_baseline else f"draft model {boot.arm}" if boot.role is Role.DRAFT else boot.arm
        for boot in planned
    )
