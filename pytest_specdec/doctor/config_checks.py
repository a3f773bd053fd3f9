"""The config itself: pair, variables, gates for speed, and the plan that the suites make of it.

A pair is one variant, which speculates, beside the baseline; the pair lint finds other differences between them. A gate is a limit on a
figure of a run, such as the speedup. A plan is what a run would do: the boots of servers, or visits of attached ones, and their requests.
The suites are the tests; the depth is how much they send.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_specdec.capture import planner, rates
from pytest_specdec.config import prompt_file, shipped
from pytest_specdec.config.lint import lint
from pytest_specdec.config.variables import find_unset, names
from pytest_specdec.doctor import probe
from pytest_specdec.doctor.check import Level, error_check, fail, ok, warn
from pytest_specdec.errors import SpecdecError
from pytest_specdec.files import yaml
from pytest_specdec.files.run_directory import RUNS
from pytest_specdec.gates import baseline_file
from pytest_specdec.model.plan import Role
from pytest_specdec.report.progress import clock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import ProgramResult
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import Depth

_PLAN = "specdec: "
_LINT = "warning:"
"""The beginning of the plan's lines with warnings of the pair lint, which are left out here: they have a check of their own."""


def pair(config: Config, engine: Engine) -> tuple[Check, ...]:
    """Return the checks of the pair lint.

    The arms have to differ in the speculative setting only. Lossy modes, which change the distribution of answers, are
    reported too; with ``lossy: true`` in the config a warning comes first. Without any problem one check says so.
    """
    problems = tuple(map(_check_of_problem, lint(config, engine.rules)))
    if config.lossy:
        return (warn("pair", "lossy: true, so equivalence is reported and gates nothing"), *problems)
    return problems or (ok("pair", "the arms differ in the speculative setting only, and no mode is lossy"),)


def _check_of_problem(problem: Problem) -> Check:
    """Return the check for a problem of the pair lint."""
    line = f"{problem.source}:{problem.line}  {problem.path}: found {problem.found}"
    expected = f"expected: {problem.expected}"
    if problem.refused:
        return fail("pair", line, expected, remedy=problem.suggestion or "edit the config")
    return warn("pair", line, expected, remedy=problem.suggestion)


def variables(config: Config, environ: Mapping[str, str]) -> tuple[Check, ...]:
    """Return a failed check for each variable of the config not set.

    If all are set, one check says so. Returns () if the config's values have no variables. Those in comments do not count.
    """
    missing = tuple(error_check("variables", error) for error in find_unset(config.text, environ))
    return missing or ((ok("variables", "all set"),) if names(yaml.load(config.text, str(config.path)).data) else ())


def prompts(config: Config) -> tuple[Check, ...]:
    """Check that the config's prompts file can be read.

    Returns () if the config names no such file.
    """
    try:
        own_prompts = prompt_file.read(config)
    except SpecdecError as error:
        return (error_check("prompts", error),)
    with_schema = sum(prompt.schema is not None for prompt in own_prompts)
    return (ok("prompts", f"{len(own_prompts)} of {config.prompts}, {with_schema} of them with a schema"),) if own_prompts else ()


def waivers(config: Config, day: date) -> tuple[Check, ...]:
    """Return a check per waiver of the config, a failure expected until a day.

    Those that expired before ``day`` give warnings.
    """
    valid = [waiver for waiver in config.waivers if day <= waiver.expires]
    expired = tuple(
        warn("waivers", f"{waiver.source}: expired: {waiver}; its failure is red again", remedy="fix the bug, or move the day")
        for waiver in config.waivers
        if waiver not in valid
    )
    expected_failures = tuple(
        ok("waivers", f"{waiver.family.value} of {waiver.workload} on {waiver.variant} may fail: {waiver}") for waiver in valid
    )
    return (*expected_failures, *expired)


def gates(config: Config, folder: Path, environment: Environment) -> tuple[Check, ...]:
    """Check the gates of the config and of this machine's baseline file.

    A baseline file has floors that earlier runs on a machine have measured. ``folder`` has these files, and ``environment`` describes this
    machine. A file that cannot be used fails. Stored floors that do not hold here, and files of other machines only, give warnings. Beside
    the warnings a check counts the floors of this machine. Without both, one says that only the config's own gates apply.
    """
    try:
        baseline_file.check(folder, config.name)
        measured = baseline_file.gates(folder, config.name, environment)
        unusable_floors = baseline_file.notes(folder, config.name, environment)  # in words
    except SpecdecError as error:
        return (error_check("baselines", error),)
    # Never empty: the config has a gate on the speedup, stated or by default.
    stated = ", ".join(f"{gate.figure} {gate.threshold}" for gate in config.gates if gate.threshold)
    warnings = tuple(warn("baselines", line, remedy="measure here with --specdec-update-baselines") for line in unusable_floors)
    if measured:
        path = baseline_file.path(folder, config.name, environment)
        return (ok("baselines", f"{len(measured)} of this machine in {path}, beside {stated}"), *warnings)
    return warnings or (ok("baselines", f"none of this machine ({environment.machine}), so {stated} gates"),)


def plan(config: Config, depth: Depth, here: Path) -> Check:
    """Return a check with the plan printed by pytest for the suites.

    Without suites, or if the boots cannot be planned, the check is that of the boots alone.
    """
    boots, folder = _check_boots(config, depth, here), suites(config, here)
    if folder is None or boots.level is Level.FAIL:
        return boots
    options = (f"--specdec-config={config.path.absolute()}", f"--specdec-depth={depth}")
    argv = (sys.executable, "-m", "pytest", str(folder), "--co", "-q", "--color=no", "-p", "no:cacheprovider", *options)
    return collection(probe.run(argv, {}), folder)


def suites(config: Config, here: Path) -> Path | None:
    """Return the folder of test modules for a config; None without any.

    It is the folder ``suites`` if the config lies in a folder in it, such as ``suites/configs``; else ``suites`` in
    ``here``, else that of this package.
    """
    candidates = (config.path.absolute().parent.parent, here / "suites", shipped.SUITES)
    return next((candidate for candidate in candidates if candidate.name == "suites" and any(candidate.rglob("test_*.py"))), None)


def collection(result: ProgramResult, folder: Path) -> Check:
    """Return a check with the plan printed at a pytest collection.

    ``result`` is the outcome of ``pytest --co`` on the tests in ``folder``. If pytest failed or printed no plan, the check fails
    with the last lines of its output.
    """
    lines = result.out.splitlines()
    header_index = next((index for index, line in enumerate(lines) if line.startswith(_PLAN)), None)
    if result.exit_code != 0 or header_index is None:
        return fail("plan", f"the tests in {folder} cannot be collected", *result.lines[-10:], remedy=f"see pytest --co {folder}")
    plan_lines = [line.strip() for line in lines[header_index + 1 :] if line.startswith("  ")]
    return ok("plan", *[line for line in plan_lines if line and not line.startswith(_LINT)])


def _check_boots(config: Config, depth: Depth, here: Path) -> Check:
    """Return a check with the boots planned at ``depth``.

    It names the arms and, as far as earlier runs in ``here`` or the engine's rough rates tell, the time that their boots take.
    Workloads are not planned.
    """
    try:
        # With the boots of draft models that are served alone, as the suites' sampling tests need them.
        boot_plan = planner.plan_servers(config, rates.expected_rates(config, here / RUNS), depth, draft_scored=True)
    except SpecdecError as error:
        return error_check("plan", error)
    arms, started = ", ".join(map(_describe_arm, boot_plan.boots)), sum(not boot.attached for boot in boot_plan.boots)
    visits = f"{len(boot_plan.boots) - started} visits of attached servers"
    if not started:
        return ok("plan", f"{visits} ({arms})")
    boots_text = f"{started} boots" + (f" and {visits}" if started < len(boot_plan.boots) else "")
    return ok("plan", f"{boots_text} ({arms}), {_describe_wait(boot_plan, started)}")


def _describe_wait(boot_plan: Plan, started: int) -> str:
    """Return the time until ``started`` servers have booted, in words."""
    if not boot_plan.rates.known:
        return "minutes unknown before the first boot"
    return f"about {clock(started * boot_plan.rates.boot_s)} of waiting for boots ({boot_plan.rates.source}); answers add to it"


def _describe_arm(boot: Boot) -> str:
    """Return the name of a boot's arm in words."""
    if boot.also_baseline:
        return "baseline and control"
    return f"draft model {boot.arm}" if boot.role is Role.DRAFT else boot.arm
