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

    A boot, one start of a server with its work, may fail without stopping the others, unless it is the first one of the baseline or the
    control, without which nothing is judged. Boots that serve no arm but those that did not come up are left out (:func:`why_needless`);
    ``dead_arms`` are such variants and arms of the old engine. A small-cache boot that did not come up does not count there, since the arm
    may still come up with the usual cache.
    """
    dead_arms: set[str] = set()
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
            if not is_up and (boot.role is Role.VARIANT or boot.role.is_old) and not boot.small_cache:
                dead_arms.add(boot.arm)
            if boot.role in {Role.BASELINE, Role.CONTROL} and not boot.small_cache and boot.number == 1:
                raise


def _score_answers(session: BootSession) -> None:
    """Score the answers of one workload after the other."""
    for workload, tasks in groupby(session.boot.scores, key=lambda task: task.workload):
        scorer = session.scoring(session.recipes.plan.workload(workload))
        for task in tasks:
            session.score(task, scorer)
