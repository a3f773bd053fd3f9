"""Causes: the failures of one variant that follow from one fault, and the one that leads them.

A family is a group of tests, such as greedy. It follows the families with simpler requests: where both fail, the simpler one has the cause.
A shared check is one that every judge makes, such as that answers end as they should. A family explains it if its own subject is the same.
All other checks are a family's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import SharedCheck
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.families import FamilyRow
    from pytest_specdec.report.run import JudgementResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The failures of one variant that one fault explains."""

    leader: JudgementResult
    """The failure that names the fault: the first in the order of the families that has no other cause."""
    followers: tuple[JudgementResult, ...] = ()

    @property
    def name(self) -> str:
        """The name of the fault, or the headline where it has none."""
        return fault_name(self.leader)

    @property
    def pointer(self) -> str:
        """The line that a follower prints in place of its own evidence."""
        return f"follows from {self.leader.nodeid}: {self.name}"

    @property
    def failures(self) -> tuple[JudgementResult, ...]:
        """The leader and its followers."""
        return (self.leader, *self.followers)

    @property
    def families(self) -> tuple[str, ...]:
        """The families that saw it, the leader's first."""
        return tuple(dict.fromkeys(str(j.family) for j in self.failures))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCause:
    """One fault in all the variants that have it. Reports call it a finding."""

    by_pair: dict[str, Cause]
    """By variant; by cell in the report of a matrix."""

    @property
    def leader(self) -> JudgementResult:
        """The leading failure of the first variant."""
        return next(iter(self.by_pair.values())).leader

    @property
    def name(self) -> str:
        """The name of the fault, or the headline where it has none."""
        return fault_name(self.leader)

    @property
    def failures(self) -> tuple[JudgementResult, ...]:
        """The failures of all variants, the leader first."""
        return tuple(failure for cause in self.by_pair.values() for failure in cause.failures)

    @property
    def tests(self) -> str:
        """The number of failed tests, and their families: ``34 tests: greedy, sampling``."""
        count, families = len(self.failures), dict.fromkeys(family for cause in self.by_pair.values() for family in cause.families)
        return f"{count} test{'s' * (count != 1)}: {', '.join(families)}"


def join_causes(causes: Mapping[str, Sequence[Cause]]) -> tuple[SharedCause, ...]:
    """Return the causes of all variants, equal ones joined.

    ``causes`` are by variant, or by cell of a matrix. Two are equal if their leading failures have the same fault name and family.
    """
    shared: dict[tuple[str, str], dict[str, Cause]] = {}
    for pair, of_pair in causes.items():
        for cause in of_pair:
            shared.setdefault((cause.name, str(cause.leader.family)), {})[pair] = cause
    return tuple(SharedCause(by_pair=by_pair) for by_pair in shared.values())


def find_causes(failures: Sequence[JudgementResult], rows: Mapping[str, FamilyRow]) -> tuple[Cause, ...]:
    """Return the causes of one variant's ``failures``, the largest cause first.

    ``rows`` are the family rows by name, with the families that each follows and the shared checks that it explains. Failures have one
    cause if their faults have the same name, or if one follows from the other, also over further failures between them. So causes are the
    connected groups of a graph of failures. A failure without a verdict, such as a user's own assertion, is a cause alone.
    """
    # Of each failure, the indices of those that it comes from.
    origins = [{i for i, other in enumerate(failures) if _follows(failure, other, failures, rows)} for failure in failures]
    edges = [(index, other) for index, of_failure in enumerate(origins) for other in of_failure]
    groups = _connected_components(len(failures), [*edges, *_same_names(failures)])
    causes = [_cause([failures[i] for i in group], [failures[i] for i in group if not origins[i]], rows) for group in groups]
    return tuple(sorted(causes, key=lambda cause: -len(cause.failures)))


def _follows(failure: JudgementResult, other: JudgementResult, failures: Iterable[JudgementResult], rows: Mapping[str, FamilyRow]) -> bool:
    """Return True if ``failure`` follows from ``other``, by one of two rules.

    - It failed its family's own check, and its family follows the other's. The other failed its family's own check too, or answers of
      greedy, the simplest ones, end wrongly.
    - It failed a check that all judges make, and the other's family explains that check. The other failed its family's own check.

    ``failures`` are all of the variant; ``rows`` state what each family follows and explains. Failures of the same
    name do not follow from one another: they are one fault already.
    """
    if failure.verdict is None or other.verdict is None or fault_name(failure) == fault_name(other):
        return False
    check, other_check = _check(failure), _check(other)
    if check is None:
        ends_greedy_wrongly = other.family == Family.GREEDY and other_check is SharedCheck.ENDING
        return other.family in rows[failure.family].follows and (other_check is None or ends_greedy_wrongly)
    if other_check is not None or check not in rows[other.family].explains:
        return False
    # If greedy failed the shared check too, its simpler requests have the cause, and not those of a family that follows greedy.
    fails_greedy_too = any(one.family == Family.GREEDY and _check(one) is check for one in failures)
    return not (fails_greedy_too and Family.GREEDY in rows[other.family].follows)


def fault_name(failure: JudgementResult) -> str:
    """Return the name of a failure's fault, equal over all workloads.

    It is the bug that the verdict names, or else its headline. Where the server does not speculate, figures in brackets are cut from it,
    since they differ by workload. Without a verdict it is the test's id.
    """
    verdict = failure.verdict
    if verdict is None:
        return failure.nodeid
    name = verdict.names or verdict.headline
    return name.partition(" (")[0] if verdict.check is SharedCheck.DRAFTING else name


def _check(failure: JudgementResult) -> SharedCheck | None:
    """Return the shared check behind a failure.

    None for a check of the family's own, and without a verdict.
    """
    return failure.verdict.check if failure.verdict else None


def _same_names(failures: Sequence[JudgementResult]) -> list[tuple[int, int]]:
    """Return index pairs of failures with the same name, as graph edges.

    The first failure with a name is paired with every failure of that name. It is paired with itself too, which joins nothing.
    """
    first: dict[str, int] = {}
    return [(first.setdefault(fault_name(failure), index), index) for index, failure in enumerate(failures)]


def _connected_components(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components of a graph, each as vertex numbers.

    The vertices are the numbers from 0 to ``count`` - 1. At first each is a group of its own; each edge joins the groups of its two ends.
    """
    group_of = list(range(count))
    for one, other in edges:
        old, new = group_of[one], group_of[other]
        group_of = [new if group == old else group for group in group_of]
    return [[i for i in range(count) if group_of[i] == group] for group in dict.fromkeys(group_of)]


def _cause(failures: Sequence[JudgementResult], heads: Sequence[JudgementResult], rows: Mapping[str, FamilyRow]) -> Cause:
    """Return the cause made of ``failures``, one connected group of :func:`find_causes`.

    ``heads`` are those that follow from no other; there are none if failures follow from one another in a circle. The leader is the head,
    or without heads the failure, whose family explains the shared check that it failed: it says best what is wrong. Of several such, or if
    there is none, the first family of ``rows`` leads.
    """
    order = list(rows)

    def explains_its_check(failure: JudgementResult) -> bool:
        return _check(failure) in rows[failure.family].explains  # never true of a family's own check

    by_family = sorted(failures, key=lambda failure: order.index(failure.family))
    candidates = sorted(heads or failures, key=lambda failure: order.index(failure.family))
    leader = next(filter(explains_its_check, candidates), candidates[0])
    return Cause(leader=leader, followers=tuple(failure for failure in by_family if failure is not leader))
