"""Causes: the failures of one variant that follow from one fault, and the one that leads them."""

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


def share(causes: Mapping[str, Sequence[Cause]]) -> tuple[SharedCause, ...]:
    """Return the faults of all variants.

    Causes of two variants are one fault if their leaders have the same name and family.
    """
    shared: dict[tuple[str, str], dict[str, Cause]] = {}
    for pair, of_pair in causes.items():
        for cause in of_pair:
            shared.setdefault((cause.name, str(cause.leader.family)), {})[pair] = cause
    return tuple(SharedCause(by_pair=by_pair) for by_pair in shared.values())


def find_causes(failures: Sequence[JudgementResult], rows: Mapping[str, FamilyRow]) -> tuple[Cause, ...]:
    """Return the causes of one variant's ``failures``, the one with most failures first.

    Two failures have one cause if their faults have the same name, or if one follows from the other. A failure
    without a verdict, such as an assertion in a test of one's own, has a cause to itself. One follows from another

    - where it failed a check that all judges make, if the other's family explains that check. Except where greedy
      fails the check too, and the other's family itself follows greedy: then both follow greedy.
    - where it failed its family's own check, if its row follows the other's family, and the other failed its own
      check too, or is greedy with answers that end wrongly.
    """
    follows = [{i for i, other in enumerate(failures) if _follows(one, other, failures, rows)} for one in failures]
    edges = [(one, other) for one, others in enumerate(follows) for other in others]
    groups = _connected_components(len(failures), [*edges, *_same_names(failures)])
    causes = [_cause([failures[i] for i in group], [failures[i] for i in group if not follows[i] & set(group)], rows) for group in groups]
    return tuple(sorted(causes, key=lambda cause: -len(cause.failures)))


def _follows(one: JudgementResult, other: JudgementResult, failures: Iterable[JudgementResult], rows: Mapping[str, FamilyRow]) -> bool:
    """Return True if ``one`` follows from ``other``, under another name."""
    if one.verdict is None or other.verdict is None or fault_name(one) == fault_name(other):
        return False
    mine, theirs = _check(one), _check(other)
    if mine is None:
        is_plain_end = other.family == Family.GREEDY and theirs is SharedCheck.ENDING
        return other.family in rows[one.family].follows and (theirs is None or is_plain_end)
    if theirs is not None or mine not in rows[other.family].explains:
        return False
    is_plain = any(failure.family == Family.GREEDY and _check(failure) is mine for failure in failures)
    return not (is_plain and Family.GREEDY in rows[other.family].follows)


def fault_name(failure: JudgementResult) -> str:
    """Return the name of a failure's fault, without the figures of one workload.

    The test's id where it has no verdict.
    """
    verdict = failure.verdict
    if verdict is None:
        return failure.nodeid
    name = verdict.names or verdict.headline
    return name.partition(" (")[0] if verdict.check is SharedCheck.DRAFTING else name


def _check(failure: JudgementResult) -> SharedCheck | None:
    return failure.verdict.check if failure.verdict else None


def _same_names(failures: Sequence[JudgementResult]) -> list[tuple[int, int]]:
    """Return pairs of failures with one name."""
    first: dict[str, int] = {}
    return [(first.setdefault(fault_name(failure), index), index) for index, failure in enumerate(failures)]


def _connected_components(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components of a graph whose vertices are the numbers below ``count``."""
    group_of = list(range(count))
    for one, other in edges:
        old, new = group_of[one], group_of[other]
        group_of = [new if group == old else group for group in group_of]
    return [[i for i in range(count) if group_of[i] == group] for group in dict.fromkeys(group_of)]


def _cause(failures: Sequence[JudgementResult], heads: Sequence[JudgementResult], rows: Mapping[str, FamilyRow]) -> Cause:
    """Return the cause of connected failures, of which ``heads`` follow from no other.

    The leader is the head whose family explains the check that it failed; else the first head in the order of
    the families.
    """
    order = list(rows)
    leader = min(heads or failures, key=lambda failure: (_check(failure) not in rows[failure.family].explains, order.index(failure.family)))
    followers = sorted((failure for failure in failures if failure is not leader), key=lambda failure: order.index(failure.family))
    return Cause(leader=leader, followers=tuple(followers))
