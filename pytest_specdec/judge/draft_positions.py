"""Draft positions: each place of a draft is accepted now and then, where the place before it is.

How often is the drafter's affair, and falls with the position. A place that is never accepted is a fault: the tokens behind the first are
drafted, or verified, in another state than they should be. Steps of one prompt depend on each other, so that prompts are counted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.judge.traffic import DraftedAnswer
    from pytest_specdec.model.captured import Captured

__all__ = ["DeadPosition", "by_answers", "by_counters"]

_CHANCES = 8
"""Steps with an accepted token at the position before, which a prompt needs to be counted."""
_SOME = 0.5
"""Share of such prompts, at least, in which a position that works is accepted: 8.3 % in each of eight steps are enough for it."""
_HARDLY = 0.05
"""Share of them up to which it is called never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPosition:
    """One position of the draft: the prompts with chances at it, and those in which it was accepted."""

    position: int
    """From 1."""
    prompts: int
    accepted: int
    first: str
    """A request with chances at it."""

    @property
    def p_value(self) -> float:
        """Chance of so few prompts with an accepted token if at least half of the prompts have one: exact binomial test."""
        return proportions.greater_than_rate(self.prompts - self.accepted, self.prompts, 1.0 - _SOME)

    @property
    def least_p(self) -> float:
        """The smallest p-value of so many prompts."""
        return (1.0 - _SOME) ** self.prompts

    @property
    def is_striking(self) -> bool:
        """Whether it is accepted in at most one of twenty prompts."""
        return self.accepted <= _HARDLY * self.prompts

    @property
    def name(self) -> str:
        """The fault in words."""
        before = "first" if self.position == 2 else f"first {self.position - 1}"  # noqa: PLR2004 - the second position
        return f"draft tokens behind the {before} are never accepted"

    @property
    def headline(self) -> str:
        """The fault with its figures."""
        most = f"accepted the one before it {_CHANCES} times or more"
        return f"{self.name}: position {self.position} in {self.accepted} of {self.prompts} prompts that {most}"

    @property
    def cell(self) -> str:
        """Few words for a table."""
        return f"position {self.position} never accepted"

    @property
    def bad(self) -> int:
        """Prompts that speak against it."""
        return self.prompts - self.accepted

    @property
    def test(self) -> str:
        """The name of the test."""
        return "binomial test over prompts"

    def __str__(self) -> str:
        return f"position {self.position} of the draft: accepted in {self.accepted} of {self.prompts} prompts; p = {self.p_value:.2g}"


def by_answers(answers: Sequence[DraftedAnswer]) -> tuple[DeadPosition, ...]:
    """Return every position behind the first, by verify steps; requests that change the distribution (penalties, biases) are left out."""
    plain = [answer for answer in answers if answer.foreseeable and not answer.grammar]
    most = max((step.drafted or 0 for answer in plain for step in answer.steps), default=0)
    return tuple(_dead(position, _chances(plain, position)) for position in range(2, most + 1))


def _chances(answers: Sequence[DraftedAnswer], position: int) -> Mapping[str, tuple[int, int, str]]:
    """Return of each prompt the steps in which ``position`` could be accepted, those in which it was, and a request."""
    found: dict[str, tuple[int, int, str]] = defaultdict(lambda: (0, 0, ""))
    for answer in answers:
        chances, hits, first = found[answer.prompt]
        more = [step.accepted >= position for step in answer.steps if (step.drafted or 0) >= position and step.accepted >= position - 1]
        found[answer.prompt] = (chances + len(more), hits + sum(more), first or answer.name)
    return found


def by_counters(parts: Sequence[Captured]) -> tuple[DeadPosition, ...]:
    """Return the same by the servers' counters, workload by workload, where these count by position; a workload stands for a prompt."""
    counted = list(_counted(parts))
    most = max((len(by_position) for _, by_position in counted), default=0)
    units = {
        position: {name: (each[position - 2], each[position - 1], name) for name, each in counted if len(each) >= position}
        for position in range(2, most + 1)
    }
    return tuple(_dead(position, chances) for position, chances in units.items())


def _counted(parts: Sequence[Captured]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the accepted tokens by position of workloads in which nearly every draft was as long as the counters are."""
    for part in parts:
        counters = part.speculative.counters
        by_position = () if counters is None else counters.accepted_per_position
        if counters is not None and by_position and counters.draft_tokens >= (len(by_position) - 0.5) * counters.drafts:
            yield part.workload.name, by_position


def _dead(position: int, chances: Mapping[str, tuple[int, int, str]]) -> DeadPosition:
    counted = [(hits, first) for of, hits, first in chances.values() if of >= _CHANCES]
    return DeadPosition(
        position=position,
        prompts=len(counted),
        accepted=sum(hits > 0 for hits, _ in counted),
        first=next((first for hits, first in counted if not hits), ""),
    )
