"""A pytest plugin for runs of many faulty variants: each is judged by the share of an ordinary run, and seeds can be moved.

A config with N variants gives each of them about an Nth of its budget. A fault would then be harder to find the more faults
share its run. Under this plugin the plan gives every judgement the share that a config with two variants gives. The plan in the run
directory holds these shares, so that a replay judges by the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import planner
from pytest_specdec.model.families import with_outside
from pytest_specdec.plugin.run_state import RunState

if TYPE_CHECKING:
    import pytest

    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["SEED", "ordinary", "pytest_configure", "reseeded"]

VARIANTS = 2
"""Of an ordinary config."""
SEED = "SPECDEC_SENSITIVITY_SEED"
"""The environment variable with the number of the seed, from 1, which leaves the requests as they are."""
_STRIDE = 10_007
"""Between the seeds of a request in one cell and the next: more than any workload has requests."""
_OURS = 10_000
"""Seeds from here on, and negative ones, are values under test."""


def pytest_configure(config: pytest.Config) -> None:  # noqa: ARG001 - a hook's signature
    """Plan with ordinary shares, and with the seeds of the cell."""
    make, configure, number = planner.make, RunState.configure, int(os.environ.get(SEED, "1"))
    planner.make = lambda known, *args, **kwargs: ordinary(make(known, *args, **kwargs), len(known.variants))
    RunState.configure = lambda state, workload: reseeded(configure(state, workload), number)


def ordinary(plan: Plan, variants: int) -> Plan:
    """Return the plan of a config with ``variants`` variants with the shares of one that has two."""
    rows = with_outside(plan.families)
    scale = {name: row.chances(variants) / row.chances(VARIANTS) for name, row in rows.items()}
    return replace(plan, judgements=tuple(replace(one, alpha=one.alpha * scale[one.family]) for one in plan.judgements))


def reseeded(workload: Workload, number: int) -> Workload:
    """Return the workload with every ordinary seed of its requests moved, all by the same; unchanged for seed 1."""
    return workload if number == 1 else replace(workload, requests=tuple(_moved(request, number) for request in workload.requests))


def _moved(request: Request, number: int) -> Request:
    seed = request.body.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < _OURS:
        return request
    return replace(request, body={**request.body, "seed": seed + _STRIDE * (number - 1)})
