"""The plan of a matrix in a few lines, printed before anything boots: its groups, their cost, and the false alarms of all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable
from pytest_specdec.report.progress import clock, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.plan import Plan

_MOST_GROUPS = 20
"""Lines for single groups."""


def lines(plans: Mapping[str, Plan], *, name: str, origin: str, replayed: bool, cells: int) -> tuple[str, ...]:
    """Return a matrix's plan in the lines printed before anything boots.

    ``plans`` are those of its groups by name. ``name`` is that of the config, ``origin`` the run directory, as a person would type it, and
    ``cells`` the number of cells of the whole matrix, of which a capture may plan a part. Groups beyond the first :data:`_MOST_GROUPS` are
    only counted. A replay, which boots no server, has no cost.
    """
    first = next(iter(plans.values()))
    planned_cells, judgements = sum(len(plan.pairs) for plan in plans.values()), sum(len(plan.judgements) for plan in plans.values())
    share_of_matrix = plural(planned_cells, "cell") if planned_cells == cells or replayed else f"{planned_cells} of {plural(cells, 'cell')}"
    title = f"specdec: {name} · {first.engine} · {first.depth.value} · {'replay of' if replayed else 'capture into'} {origin}"
    work = f"matrix: {share_of_matrix} in {plural(len(plans), 'group')} of one baseline each, {plural(judgements, 'judgement')}"
    groups = [f"{group}: {_describe_group(plan, replayed=replayed)}" for group, plan in plans.items()]
    omitted = [f"and {plural(len(groups) - _MOST_GROUPS, 'more group')}"] if len(groups) > _MOST_GROUPS else []
    total = [] if replayed else [_describe_total(plans)]
    return tuple(map(printable, (title, *(f"  {line}" for line in (work, *groups[:_MOST_GROUPS], *omitted, *total)))))


def _describe_group(plan: Plan, *, replayed: bool) -> str:
    """Return the cells, boots and minutes of one group; no cost of a replay."""
    cells = plural(len(plan.pairs), "cell")
    return cells if replayed else f"{cells}, {plural(len(plan.boots), 'boot')}, about {clock(plan.estimate_s)}"


def _describe_total(plans: Mapping[str, Plan]) -> str:
    """Return boots, minutes and false-alarm chance of all groups together.

    The minutes are those of one group after another. The chance is that of a correct engine to turn any group red, by budget (correctness
    or speed): by the union bound at most the sum of the groups' chances, and at most 1.
    """
    boots, seconds = sum(len(plan.boots) for plan in plans.values()), sum(plan.estimate_s for plan in plans.values())
    chances: dict[str, float] = {}
    for plan in plans.values():
        for budget, chance in plan.red_by_chance.items():
            chances[budget.value] = chances.get(budget.value, 0.0) + chance
    bounds = ", ".join(f"{min(chance, 1.0):.2g} ({budget_name})" for budget_name, chance in chances.items())
    return f"together {plural(boots, 'boot')}, about {clock(seconds)}; false alarm in any group, at most: {bounds or '0'}"
