"""The findings of a run by variant, to be compared with those of another run, and what a run left undecided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Family
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.report.run import Run

__all__ = ["VariantFinding", "count", "describe_undecided", "is_judged", "list_findings", "list_judged", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFinding:
    """A finding of one variant; the same one may be another variant's too."""

    variant: str
    name: str
    families: frozenset[Family] = field(default=frozenset(), compare=False)
    """The families that saw it."""

    @property
    def is_of_speed(self) -> bool:
        """True if speed alone saw it."""
        return self.families == {Family.SPEED}

    def __str__(self) -> str:
        """Return the line that people read."""
        return f"{self.variant}: {self.name}"


def count(findings: Sequence[VariantFinding], what: str) -> str:
    """Return ``2 new findings``."""
    return f"{number(findings)} {what}{'s' * (number(findings) != 1)}"


def number(findings: Sequence[VariantFinding]) -> int:
    """Return the number of findings; one that several variants have counts once."""
    return len({finding.name for finding in findings})


def list_findings(run: Run, *, waived: bool = False) -> tuple[VariantFinding, ...]:
    """Return the findings of a run, with those that a waiver expects if ``waived``."""
    results = [j for j in run.judgements if j.result is PytestOutcome.WAIVED] if waived else []
    known = (
        VariantFinding(variant=j.pair, name=j.verdict.names or j.verdict.headline, families=frozenset({j.family}))
        for j in results
        if j.verdict is not None
    )
    causes = (
        VariantFinding(variant=pair, name=cause.name, families=frozenset(failure.family for failure in (cause.leader, *cause.followers)))
        for pair, of_pair in run.causes.items()
        for cause in of_pair
    )
    return (*causes, *known)


def list_judged(run: Run) -> frozenset[tuple[str, Family]]:
    """Return the variants and families of which a judgement knows something."""
    return frozenset((j.pair, j.family) for j in run.judgements if j.judged)


def is_judged(finding: VariantFinding, judged: frozenset[tuple[str, Family]]) -> bool:
    """Return True if one of the finding's families is among those ``judged`` for its variant."""
    return any((finding.variant, family) in judged for family in finding.families)


def describe_undecided(new: Run, lost: frozenset[tuple[str, Family]]) -> str:
    """Return why a run decided too little; empty if nothing is open.

    ``lost`` are the variants and families that an earlier run judged, and this one did not.
    """
    if new.status is None or new.status.state is not State.COMPLETE or new.status.error:
        return "the new run is incomplete"
    if not new.judged:
        return "nothing of the new run could be judged"
    if new.undecided:
        return f"{len(new.undecided)} judgements of the new run were not made or not decided"
    if new.suspicious:
        return "the new run has suspicious verdicts"
    correctness = sorted(f"{variant} {family.value}" for variant, family in lost if family is not Family.SPEED)
    return f"the new run did not judge {', '.join(correctness)}" if correctness else ""
