"""Enlargement: if boots take minutes, their servers get more requests than the depth needs.

The depth (smoke, standard, deep) of a run sets how much of each workload's list of requests is sent.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from pytest_specdec.capture import estimate
from pytest_specdec.capture.workloads import enlarge
from pytest_specdec.model.status import StepKind
from pytest_specdec.model.workload import Depth, Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import Workload

LONG_BOOT_S = 90.0
"""From here on a boot takes minutes: small engines on busy CPU cores, which boot in half a minute, stay below."""
MOST = 10
"""Times the depth's number of requests, at most."""
PART = 1 / 3
"""Time that the additional requests may take, at most, as a fraction of the boots' time."""
_STEPS = 2
"""Steps per unit of the factor: it is a multiple of 1 / _STEPS."""


def counts(plan: Plan, deepest: Mapping[str, Workload], deadline_s: float | None = None) -> Mapping[str, int]:
    """Return larger numbers of requests for the sampling judge's workloads.

    The numbers are by workload name. One factor, a multiple of 1 / ``_STEPS`` and at most ``MOST``, applies to all of them: the largest
    whose additional requests take at most :data:`PART` of the boots' time, which is spent anyway. Attached servers, which run already, do
    not count in it, nor do small-cache and timed boots. Only workloads that get more requests are named. Returns an empty mapping at smoke
    depth, if boots are quick, or if no factor fits into that time.

    ``deepest`` has each workload with its whole list of requests, the most that can be sent. The run is not planned to take longer than
    ``deadline_s``.
    """
    boots = tuple(boot for boot in plan.boots if boot.answers and not (boot.attached or boot.small_cache or boot.timed))
    if plan.depth is Depth.SMOKE or plan.rates.boot_s < LONG_BOOT_S or not boots:
        return {}
    judged = {judgement.workload for judgement in plan.judgements if judgement.family is Family.SAMPLING}
    sampled = {name: deepest[name] for name in sorted(judged)}
    additional_s = PART * _starts_s(replace(plan, boots=boots))
    if deadline_s is not None:
        additional_s = min(additional_s, deadline_s - plan.estimate_s)
    planned_s = _estimate_s(plan, plan.workloads)  # of all boots: the difference to it is the time of additional requests
    for units in range(_STEPS * MOST, _STEPS, -1):  # the largest factor first, and none of 1 or less
        larger = _larger_counts(plan, sampled, units / _STEPS)
        if _estimate_s(plan, enlarge(plan.workloads, deepest, larger)) - planned_s <= additional_s:
            return larger
    return {}


def _larger_counts(plan: Plan, deepest: Mapping[str, Workload], factor: float) -> dict[str, int]:
    """Return the numbers of requests multiplied by ``factor``, by workload.

    No number exceeds the whole list of requests in ``deepest``. Workloads that would not grow are left out.
    """
    planned_counts = {workload.name: len(workload.requests) for workload in plan.workloads}
    larger = {name: min(ceil(factor * planned_counts[name]), len(deepest_workload.requests)) for name, deepest_workload in deepest.items()}
    return {name: count for name, count in larger.items() if count > planned_counts[name]}


def _estimate_s(plan: Plan, workloads: Sequence[Workload]) -> float:
    """Return the estimated seconds of all steps of the plan's boots, answering ``workloads``."""
    return estimate.total(estimate.steps(plan.boots, workloads, plan.rates, route=plan.route), plan.servers)


def _starts_s(plan: Plan) -> float:
    """Return the estimated seconds in which the plan's servers start."""
    steps = estimate.steps(plan.boots, plan.workloads, plan.rates, route=plan.route)
    return estimate.total([step for step in steps if step.kind is StepKind.BOOTING], plan.servers)
