"""Sequential placement: one server after the other."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.boot_layout import why_needless
from pytest_specdec.errors import EngineError
from pytest_specdec.model.plan import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.completeness import Completeness
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server_recipes import ServerRecipes
    from pytest_specdec.model.plan import Boot


def run(boots: Sequence[Boot], recipes: ServerRecipes, reporter: Reporter, completeness: Completeness) -> None:
    """Run all ``boots`` in their order, one after the other.

    A boot, one start of a server with its work, may fail without stopping the others. Only if the first boot of the baseline or of the
    control fails, its error is raised: nothing is judged without it.
    """
    dead_arms: set[str] = set()  # variants, and arms of the old engine, whose server did not come up: boots for their sake are left out
    for boot in boots:
        if reason := why_needless(boot, recipes.plan, dead_arms):
            completeness.record_reason(boot, reason)
            continue
        is_up = False
        try:
            reporter.check()
            with BootSession(boot=boot, recipes=recipes, reporter=reporter, completeness=completeness) as session:
                is_up = True
                session.answer(session.workloads())
                _score_answers(session)
        except EngineError as error:
            completeness.record_error(boot, error)
            if boot.small_cache:
                continue  # an extra boot with too small a cache: the arm's own, with the usual one, may still come up
            if not is_up and (boot.role is Role.VARIANT or boot.role.is_old):
                dead_arms.add(boot.arm)
            if boot.role in {Role.BASELINE, Role.CONTROL} and boot.number == 1:  # later boots of an arm only repeat its timed workloads
                raise


def _score_answers(session: BootSession) -> None:
    """Score the answers of one workload after the other."""
    for workload, tasks in groupby(session.boot.scores, key=lambda task: task.workload):
        scorer = session.scoring(session.recipes.plan.workload(workload))
        for task in tasks:
            session.score(task, scorer)
