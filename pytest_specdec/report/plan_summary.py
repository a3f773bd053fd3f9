"""What reports show of a plan: all of it but the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.families import FamilyRow, with_outside
from pytest_specdec.model.pair import Variant
from pytest_specdec.model.plan import Judgement
from pytest_specdec.model.workload import Depth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """A workload without its requests."""

    name: str
    version: int
    digest: str
    """Of all that decides what is sent."""
    requests: int
    """How many."""
    own_requests: int
    """How many of them are the config's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """What was planned before anything booted."""

    config: str
    engine: str
    model: str
    depth: Depth
    pairs: tuple[Variant, ...]
    """The variants judged, each against the baseline."""
    workloads: tuple[WorkloadSummary, ...]
    judgements: tuple[Judgement, ...]
    """The judgements planned."""
    boots: int
    """How many."""
    estimate_s: float
    families: tuple[FamilyRow, ...] = ()
    """Rows of other packages' families."""

    @property
    def rows(self) -> Mapping[str, FamilyRow]:
        """All families by name, in the order of the report."""
        return with_outside(self.families)


def summarise(plan: Plan) -> PlanSummary:
    """Return ``plan`` without its requests and boots, for reports."""
    return PlanSummary(
        config=plan.config,
        engine=plan.engine,
        model=plan.model,
        depth=plan.depth,
        pairs=tuple(pair.variant for pair in plan.pairs),
        workloads=tuple(
            WorkloadSummary(
                name=workload.name,
                version=workload.version,
                digest=workload.digest,
                requests=len(workload.requests),
                own_requests=workload.own_requests,
            )
            for workload in plan.workloads
        ),
        judgements=plan.judgements,
        boots=len(plan.boots),
        estimate_s=plan.estimate_s,
        families=plan.families,
    )
