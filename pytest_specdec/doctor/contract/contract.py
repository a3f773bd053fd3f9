"""The contract held against a config's servers: its baseline and one variant, each booted, asked and ended in turn."""

from __future__ import annotations

import datetime as dt
import json
import math
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks, planner, rates
from pytest_specdec.capture.server_recipes import ServerRecipes
from pytest_specdec.doctor.contract import answers, counts, lifecycle, scores
from pytest_specdec.doctor.contract.clause import Outcome, broken, unchecked
from pytest_specdec.doctor.contract.parameters import Survey, survey
from pytest_specdec.doctor.contract.visit import NoAnswerError, Visit
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import SpecdecError
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.contract.clause import Clause, Finding
    from pytest_specdec.model.plan import Boot

CLAUSES = (*lifecycle.CLAUSES, *answers.CLAUSES, *scores.CLAUSES, *counts.CLAUSES)
"""In the order in which a server is held to them; the end comes last of all."""
WITHOUT = {
    "kind": "the name in the config found the engine",
    "protocol_version": "checked when the engine is loaded",
    "pace": "an estimate",
    "footprint": "an estimate",
    "rules": "the pair lint's, for configs",
    "scored_with": "words of a remedy",
    "models": "checked by `doctor` without `--contract`",
    "dialect": "every other clause is about it",
    "penalty_window": "judged in every run: the control's own answers have to agree with it",
    "counters_late": "says when the counters are read; which ones they are has its clause",
}
"""Members of the protocol without a clause, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One clause, and what came of it on one server."""

    name: str
    outcome: Outcome
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmContract:
    """One server under the contract."""

    arm: str
    version: str
    """As the server reports it; empty without."""
    program: str
    """The version that the server's program prints; empty where it is not asked, as for a variant."""
    clauses: tuple[Held, ...]
    survey: Survey | None
    """None where nothing was asked beyond the clauses: somebody else's server without ``may_kill``, or one that is gone."""

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the broken clauses."""
        return tuple(held.name for held in self.clauses if held.outcome is Outcome.BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What came of a config's contract."""

    config: Config
    arms: tuple[ArmContract, ...]


def hold(
    config: Config, folder: Path, *, variant: str = "", surveyed: bool = True, on_held: Callable[[str, Held], None] = lambda *_: None
) -> Contract:
    """Check every clause on the baseline and one variant.

    The variant is the first one of ``config`` unless it is named. Logs are written into ``folder``.

    ``on_held`` gets the arm's name and each outcome as it comes. Raises SpecdecError where a server cannot be started
    or reached.
    """
    name = variant or config.variants[0].name
    plan = planner.plan_servers(config, rates.expected_rates(config, folder))
    recipes = ServerRecipes(config=config, plan=plan, directory=RunDirectory(folder))
    boots = [boot for boot in plan.boots if boot.role is Role.BASELINE or (boot.role is Role.VARIANT and boot.arm == name)]
    recipes.check()
    if any(not boot.attached for boot in boots):
        engine_of(config.engine.kind).check(config)
    with locks.shared(locks.MAX_WAIT_S, lambda: None):
        return Contract(config=config, arms=tuple(_check_arm(recipes, boot, surveyed=surveyed, on_held=on_held) for boot in boots))


def _check_arm(recipes: ServerRecipes, boot: Boot, *, surveyed: bool, on_held: Callable[[str, Held], None]) -> ArmContract:
    """Start an arm's server and hold it to every clause."""
    arm = recipes.arm(boot, lambda: None, lambda: math.inf)
    is_baseline = boot.role is Role.BASELINE
    watch = lifecycle.ReadinessWatch(arm.recipe) if not boot.attached else None
    with ExitStack() as exit_stack:
        with watch or nullcontext():
            arm.start()
        exit_stack.callback(arm.stop, 0.0)
        visit = Visit(
            arm,
            recipes.config,
            engine_of(recipes.config.engine.kind),
            draft=None if is_baseline else recipes.plan.pair(boot.arm).variant.draft,
            variant="" if is_baseline else boot.arm,
            early=watch.early if watch else None,
        )
        outcomes, program = [], ""
        for outcome in _check_clauses(visit, [clause for clause in CLAUSES if (clause.baseline if is_baseline else clause.variant)]):
            outcomes.append(outcome)
            on_held(boot.arm, outcome)
        may_ask = surveyed and arm.running and (not boot.attached or recipes.config.may_kill)
        parameter_survey = survey(visit) if may_ask else None
        for outcome in _check_clauses(visit, [lifecycle.ENDING]):
            outcomes.append(outcome)
            on_held(boot.arm, outcome)
        with suppress(SpecdecError):
            program = (visit.program_version or "") if is_baseline else ""
        return ArmContract(arm=boot.arm, version=arm.version, program=program, clauses=tuple(outcomes), survey=parameter_survey)


def _check_clauses(visit: Visit, clauses: list[Clause]) -> Iterator[Held]:
    """Yield the outcome of each clause, secrets masked."""
    for clause in clauses:
        finding = _check_clause(visit, clause)
        evidence = visit.arm.recipe.setup.secrets.mask(" ".join(finding.evidence.split()))
        yield Held(name=clause.name, outcome=finding.outcome, evidence=evidence)


def _check_clause(visit: Visit, clause: Clause) -> Finding:
    """Return the finding of a clause.

    Unchecked if it rests on an answer that did not come: that is another clause's finding.
    """
    try:
        return clause.check(visit)
    except NoAnswerError as error:
        return unchecked(error.what)
    except (SpecdecError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        return broken(f"{type(error).__name__}: {error}")


def document(contract: Contract) -> str:
    """Return the outcome as JSON, with its date and machine."""
    config = contract.config
    version = next((version for arm in contract.arms for version in (arm.program, arm.version) if version), "")
    machine = environment.environment(config, version)
    record = {
        "config": config.name,
        "engine": config.engine.kind,
        "version": version,
        "date": dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d"),
        "environment": {"system": machine.system, "processor": machine.processor, "cores": machine.cores, "devices": machine.devices},
        "arms": [asdict(arm) for arm in contract.arms],
    }
    return json.dumps(record, indent=1, default=str) + "\n"
