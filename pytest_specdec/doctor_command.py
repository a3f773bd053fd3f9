"""The command: ``doctor CONFIG``, one line per check in the order in which a run would stumble, and an exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks
from pytest_specdec.config import load, shipped, variables
from pytest_specdec.config.engines import describe
from pytest_specdec.doctor import attached, boot_checks, config_checks, machine
from pytest_specdec.doctor.arms import arms
from pytest_specdec.doctor.check import Level, error_check, ok
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import ConfigError, EngineError, SpecdecError
from pytest_specdec.files.run_directory import RUNS
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Depth
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterable, Iterator

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.check import Check

_ABOUT = (
    "Say in seconds what would keep a run from starting. Nothing is booted, unless --contract asks for it. "
    "Exits with 0 when no check failed, otherwise with 1."
)
_NAME = 11
"""Characters that the name of a check takes in its line."""


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command ``doctor`` and its options."""
    parser = commands.add_parser("doctor", help="say what would keep a run from starting", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one here, in suites/configs or in the package")
    parser.add_argument("--depth", choices=[depth.value for depth in Depth], default=Depth.STANDARD.value, help="as --specdec-depth")
    parser.add_argument("--baselines", metavar="DIR", type=Path, default=Path("baselines"), help="as --specdec-baselines")
    contract_group = parser.add_argument_group("the contract of the engine's adapter")
    contract_group.add_argument(
        "--contract", action="store_true", help="boot, or visit, the baseline and a variant, and hold what the adapter claims against them"
    )
    contract_group.add_argument("--variant", metavar="NAME", default="", help="the variant that is held to it, by default the first one")
    contract_group.add_argument("--json", metavar="FILE", type=Path, help="where the outcome is written as data")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Check the config and return the exit code.

    Every check is printed as it comes; if none failed, the pytest command that starts a run follows. The code is 0 if no
    check failed, 1 if one did, and 2 if the config cannot be found. With ``--contract`` the contract of the engine's
    adapter is checked instead.
    """
    here, depth = Path.cwd(), Depth(arguments.depth)
    try:
        path = _find_config(arguments.config, here)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.contract:
        return _check_contract(path, arguments.variant, arguments.json)
    _print(f"doctor: {path} at depth {depth.value}", Secrets())
    command = f"pytest {shipped.arguments(here)} --specdec-config={shlex.quote(arguments.config)}" + (
        "" if depth is Depth.STANDARD else f" --specdec-depth={depth.value}"
    )
    try:
        config = load.load(path)
    except ConfigError as error:
        return _print_checks([error_check("config", error)], command, Secrets.of(os.environ))
    return _print_checks(_run_checks(config, depth, arguments.baselines, here), command, variables.secrets_of(config.text))


def _check_contract(path: Path, variant: str, document: Path | None) -> int:
    """Check the contract of the engine's adapter, and return the exit code.

    The contract is what the adapter claims of its engine's servers: the baseline's, and that of ``variant``, or of the first variant if
    that is empty. Every outcome is printed as it comes, and written to ``document`` if that is given. The code is 0 if no claim is broken
    and 1 otherwise, also if a server could not be visited.
    """
    from pytest_specdec.plugin import contract  # noqa: PLC0415 - the checks without it pay for no pytest

    try:
        printer = contract.ContractPrinter(_variant_name(path, variant), lambda line: _print(printable(line), Secrets()))
    except ConfigError as error:
        return _print_checks([error_check("contract", error)], "", Secrets.of(os.environ))
    is_kept = contract.run(path, document, printer)
    if printer.errors:
        return _print_checks([error_check("contract", SpecdecError(text)) for text in printer.errors], "", Secrets.of(os.environ))
    printer.print_counts()
    return int(not is_kept)


def _variant_name(path: Path, name: str) -> str:
    """Return the name of the variant to check.

    It is ``name``, or the config's first variant if that is empty. Raises ConfigError if the config has no such
    variant, or if one of its variables is not set.
    """
    names = [settings.name for settings in variables.fill(load.load(path), os.environ).variants]
    if name and name not in names:
        what = f"{path} has no variant {name}"
        raise ConfigError(what, expected=f"one of {', '.join(names)}")
    return name or names[0]


def _find_config(name: str, here: Path) -> Path:
    """Return the config's path, relative if it lies below ``here``."""
    path = load.find(name, here)
    return path.relative_to(here) if path.is_relative_to(here) else path


def _run_checks(config: Config, depth: Depth, baselines: Path, here: Path) -> Iterator[Check]:
    """Yield every check as soon as it is known.

    ``here`` is the folder that pytest would be started in, and ``baselines`` that of baseline files; the plan, what a run would send to
    every server, is for ``depth``. If a variable of the config is not set, the prompts file is not read, and the other checks see the
    variables as written. After an EngineError, as for an unknown engine or an unreadable setting, no further check follows. The pair lint
    checks that baseline and variants differ in speculation only. If it refuses the config, no plan is made, which would fail for the same
    reason; otherwise the plan is made in the background.
    """
    names = ", ".join(variant.name for variant in config.variants)
    yield ok("config", f"{config.engine.kind} serving {config.engine.model}, variants {names}")
    variable_checks = config_checks.variables(config, os.environ)
    yield from variable_checks
    if not any(check.level is Level.FAIL for check in variable_checks):
        config = variables.fill(config, os.environ)
        yield from config_checks.prompts(config)
    yield from config_checks.waivers(config, datetime.now(tz=UTC).date())
    try:
        engines = {place: engine_of(build.engine.kind) for place, build in config.builds.items()}
        lint_checks = [check for place, build in config.builds.items() for check in config_checks.pair(build, engines[place])]
        yield from dict.fromkeys(lint_checks)  # once, where two engines have the same
        servers = {place: arms(build, engines[place], os.environ) for place, build in config.builds.items()}
    except EngineError as error:
        yield error_check("engine", error)
        return
    with ThreadPoolExecutor() as pool:
        is_refused = any(check.level is Level.FAIL for check in lint_checks)
        plan = None if is_refused else pool.submit(config_checks.plan, config, depth, here)
        for place, build in config.builds.items():
            yield from _name_engine(place, config)
            yield from attached.checks(build, engines[place], servers[place])
            yield from boot_checks.checks(build, engines[place], servers[place], pool)
        yield machine.disk(here / RUNS)
        yield machine.leases(locks.folder())
        yield from config_checks.gates(config, baselines, environment.environment(config, ""))
        if plan:  # else the refusal above would be said again
            yield plan.result()


def _name_engine(place: str, config: Config) -> Iterator[Check]:
    """Yield a check that names the engine under ``place``.

    ``place`` is ``engines.old`` or ``engines.new``. The check comes before those of that engine's servers, and says how it differs from
    the other engine. Yields nothing for a config of one engine.
    """
    if config.old is not None:
        engine, other = (config.old, config.engine) if place == "engines.old" else (config.engine, config.old)
        yield ok("engines", f"{place.removeprefix('engines.')}: {describe(engine, other)}")


def _print_checks(checks: Iterable[Check], command: str, secrets: Secrets) -> int:
    """Print every check and a closing line, and return the exit code.

    ``secrets`` are masked. The code is 1 if a check failed, else 0. If none failed, ``command``, which starts a run, is
    printed too. A check takes one line, and its details further lines, indented to stand under its text.
    """
    counts: Counter[Level] = Counter()
    for check in checks:
        counts[check.level] += 1
        first_line = f"  {check.level.value:<4}  {check.name:<{_NAME}}{check.line}"
        for line in (first_line, *(" " * (8 + _NAME) + line for line in check.details)):
            _print(printable(line), secrets)
    warning_count = f", {counts[Level.WARN]} to look at" if counts[Level.WARN] else ""
    if counts[Level.FAIL]:
        _print(f"{counts[Level.FAIL]} of {counts.total()} checks failed{warning_count}: a run would not start", secrets)
        return 1
    _print(f"{counts.total()} checks, none failed{warning_count}\n{command}", secrets)
    return 0


def _print(text: str, secrets: Secrets) -> None:
    sys.stdout.write(f"{secrets.mask(text)}\n")
    sys.stdout.flush()
