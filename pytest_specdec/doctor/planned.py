"""The plan: what the suites would capture under a config, as pytest itself collects them; without suites, the boots alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_specdec.capture import schedule
from pytest_specdec.capture.engines import engine_of
from pytest_specdec.capture.schedule import Wanted
from pytest_specdec.doctor.check import fail, failed, ok
from pytest_specdec.errors import SpecdecError
from pytest_specdec.model.plan import Role
from pytest_specdec.model.workload import Family, Workload
from pytest_specdec.report.progress import clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import Ran
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.workload import Depth

__all__ = ["boots", "collecting", "collection", "suites"]

_PLAN = "specdec: "
_NOT_NEWS = "warning:"
"""Warnings of the pair lint have a check of their own."""
_STAND_IN = Wanted(workload=Workload(name="any", version=1, requests=(), draft_scored=True), family=Family.GREEDY)


def suites(config: Config, here: Path) -> Path | None:
    """Return the folder of test modules that the config lies in, or ``suites`` in ``here``; None without either."""
    places = (config.path.absolute().parent.parent, here / "suites")
    return next((place for place in places if place.name == "suites" and any(place.rglob("test_*.py"))), None)


def collecting(config: Config, folder: Path, depth: Depth) -> tuple[str, ...]:
    """Return the command that collects the suites and prints the plan, and boots nothing."""
    asked = (f"--specdec-config={config.path.absolute()}", f"--specdec-depth={depth}")
    return (sys.executable, "-m", "pytest", str(folder), "--co", "-q", "--color=no", "-p", "no:cacheprovider", *asked)


def collection(ran: Ran, folder: Path) -> Check:
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
        plan = schedule.make(config, (_STAND_IN,), depth)
    except SpecdecError as error:
        return failed("plan", error)
    waiting = len(plan.boots) * engine_of(config.engine.kind).pace.boot_s
    return ok("plan", f"{len(plan.boots)} boots ({_arms(plan.boots)}), about {clock(waiting)} of waiting for them; answers come on top")


def _arms(planned: Sequence[Boot]) -> str:
    return ", ".join(
        "baseline and control" if boot.also_baseline else f"draft model {boot.arm}" if boot.role is Role.DRAFT else boot.arm
        for boot in planned
    )
