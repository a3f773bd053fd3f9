"""Sequential placement: one server after the other."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pytest_specdec.capture import locks
from pytest_specdec.capture.boot import Duties
from pytest_specdec.errors import BootError, EngineError
from pytest_specdec.model.pair import CONTROL
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.boot import Recipes
    from pytest_specdec.capture.completeness import Ledger
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.workload import Workload

__all__ = ["run"]


def run(boots: Sequence[Boot], recipes: Recipes, reporter: Reporter, ledger: Ledger) -> None:
    """Run all boots; one that fails does not stop the others, unless it is the baseline, without which nothing is judged."""
    dead: set[str] = set()
    for boot in boots:
        if why := _needless(boot, recipes.plan, dead):
            ledger.failed(boot, why)
            continue
        try:
            reporter.check()
            _run(Duties(boot=boot, recipes=recipes, reporter=reporter, ledger=ledger))
        except EngineError as error:
            ledger.failed(boot, str(error))
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


def _run(duties: Duties) -> None:
    duties.start()
    in_order = False
    try:
        _work(duties)
        in_order = True
    except EngineError:
        in_order = True
        raise
    finally:
        duties.stop(at_once=not in_order)


def _work(duties: Duties) -> None:
    """Probe the baseline first and a variant last: a question that kills a variant then costs no answers."""
    boot, plan = duties.boot, duties.recipes.plan
    if boot.role is not Role.VARIANT:
        duties.probe()
    for name in boot.arms:
        for asked in boot.answers:
            _answer(duties, name, plan.workload(asked))
    for name, scored in groupby(boot.scores, key=lambda tokens: tokens.workload):
        scoring = duties.scoring(plan.workload(name))
        for tokens in scored:
            duties.score(tokens, scoring)
    if boot.role is Role.VARIANT:
        duties.probe()


def _answer(duties: Duties, name: str, workload: Workload) -> None:
    duties.announce(name, workload)
    answering = duties.answering(name, workload)
    with locks.quiet(duties.lease_s, duties.tick) if workload.timed else duties.loud():
        answering.run()
    duties.keep(answering)
