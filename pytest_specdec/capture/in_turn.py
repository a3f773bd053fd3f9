"""In turn: one server after the other."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pytest_specdec.capture import lease
from pytest_specdec.capture.duties import Duties
from pytest_specdec.errors import EngineError
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.ledger import Ledger
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.recipes import Recipes
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.workload import Workload

__all__ = ["run"]


def run(boots: Sequence[Boot], recipes: Recipes, reporter: Reporter, ledger: Ledger) -> None:
    """Run all boots; one that fails does not stop the others, unless it is the baseline, without which nothing is judged."""
    for boot in boots:
        try:
            reporter.check()
            _run(Duties(boot=boot, recipes=recipes, reporter=reporter, ledger=ledger))
        except EngineError as error:
            ledger.failed(boot, str(error))
            if boot.role in {Role.BASELINE, Role.CONTROL}:
                raise


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
    """Survey the baseline first and a variant last: a question that kills a variant then costs no answers."""
    boot, plan = duties.boot, duties.recipes.plan
    if boot.role is not Role.VARIANT:
        duties.survey()
    for name in boot.arms:
        for asked in boot.answers:
            duties.choose(asked)  # not before: timed workloads are to meet as fresh a server as the variants'
            _answer(duties, name, duties.recipes.workload(asked))
    for name, scored in groupby(boot.scores, key=lambda tokens: tokens.workload):
        scoring = duties.scoring(plan.workload(name))
        for tokens in scored:
            duties.score(tokens, scoring)
    if boot.role is Role.VARIANT:
        duties.survey()


def _answer(duties: Duties, name: str, workload: Workload) -> None:
    duties.announce(name, workload)
    answering = duties.answering(name, workload)
    with lease.quiet(duties.lease_s, duties.tick) if workload.timed else duties.loud():
        answering.run()
    duties.keep(answering)
