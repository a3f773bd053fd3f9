"""Sequential placement: one server after the other."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pytest_specdec.capture import locks
from pytest_specdec.capture.boot import BootSession
from pytest_specdec.errors import BootError, EngineError
from pytest_specdec.model.pair import CONTROL
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.boot import ServerRecipes
    from pytest_specdec.capture.completeness import Completeness
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import Workload

__all__ = ["run"]


def run(boots: Sequence[Boot], recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> None:
    """Run all boots; one that fails does not stop the others, unless it is the baseline, without which nothing is judged."""
    dead: set[str] = set()
    for boot in boots:
        if why := _needless(boot, recipes.plan, dead):
            completeness.failed(boot, why)
            continue
        try:
            reporter.check()
            _run(BootSession(boot=boot, recipes=recipes, reporter=reporter, completeness=completeness))
        except EngineError as error:
            completeness.failed(boot, str(error))
            if isinstance(error, BootError) and boot.role is Role.VARIANT:
                dead.add(boot.arm)
            if boot.role in {Role.BASELINE, Role.CONTROL}:
                raise


def _needless(boot: Boot, plan: Plan, dead: set[str]) -> str:
    """Return why nothing needs ``boot``: a draft model, or a control, of variants that did not come up; empty where something does."""
    if boot.role is Role.DRAFT:
        served = {tokens.arm for tokens in boot.scores} - {CONTROL}
    elif boot.role is Role.CONTROL:
        served = {pair.name for pair in plan.pairs}
    else:
        return ""
    if not served or not served <= dead:
        return ""
    names = ", ".join(sorted(served))
    return f"not booted: {names} did not come up, and nothing else needs the {boot.role}"


def _run(session: BootSession) -> None:
    session.start()
    in_order = False
    try:
        _work(session)
        in_order = True
    except EngineError:
        in_order = True
        raise
    finally:
        session.stop(at_once=not in_order)


def _work(session: BootSession) -> None:
    """Probe the baseline first and a variant last: a question that kills a variant then costs no answers."""
    boot, plan = session.boot, session.recipes.plan
    if boot.role is not Role.VARIANT:
        session.probe()
    for name in boot.arms:
        for asked in boot.answers:
            _answer(session, name, plan.workload(asked))
    for name, scored in groupby(boot.scores, key=lambda tokens: tokens.workload):
        scoring = session.scoring(plan.workload(name))
        for tokens in scored:
            session.score(tokens, scoring)
    if boot.role is Role.VARIANT:
        session.probe()


def _answer(session: BootSession, name: str, workload: Workload) -> None:
    session.announce(name, workload)
    answering = session.answering(name, workload)
    with locks.exclusive(session.lease_s, session.tick) if workload.timed else session.shared():
        answering.run()
    session.keep(answering)
