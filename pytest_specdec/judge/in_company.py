"""In company: as many draft tokens are accepted of a request that is answered beside others as of the same request alone, and the reverse.

The same words are asked for in both, so that the text is the same, or nearly so, and with it what a drafter can foresee. Prompts are the
units: steps of one prompt depend on each other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.stats.acceptance_change import MARGIN, AcceptanceChange, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.traffic import DraftedAnswer

__all__ = ["FallingBehind", "comparisons"]

_LEAST_PROMPTS = 8
_MANY = (1, 2, 4, 8, 16)
"""Requests in flight, of which a group has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FallingBehind:
    """The accepted lengths of prompts that were answered under two loads, and whether those of one of them fall behind."""

    where: str
    """The load under test, such as ``more than 16 requests``."""
    other: str
    """The load that they are held against, in short."""
    change: AcceptanceChange
    """From the other load to this one."""
    bad: int
    """Prompts with fewer tokens per step under this load."""
    first: str
    """The answer under this load that is shortest by comparison."""

    @property
    def p_value(self) -> float:
        """Of so great a loss if the true one is the margin: Student's paired t, one-sided."""
        return self.change.p_lower

    @property
    def least_p(self) -> float:
        """No p-value is too small to be reached."""
        return 0.0

    @property
    def is_striking(self) -> bool:
        """Whether the loss is beyond the margin."""
        return self.change.part < -MARGIN

    @property
    def name(self) -> str:
        """The fault in words."""
        return f"the drafter falls behind with {self.where} in flight"

    @property
    def headline(self) -> str:
        """The fault with its figures."""
        return f"{self.name}: {self._lengths} ({self.change.part:+.0%} over {self.change.prompts} prompts)"

    @property
    def cell(self) -> str:
        """Few words for a table."""
        return f"{self.change.part:+.0%} with {self.where}"

    @property
    def test(self) -> str:
        """The name of the test."""
        return f"Student's paired t over prompts, beyond {MARGIN:.0%}"

    @property
    def _lengths(self) -> str:
        return f"{self.change.now:.2f} tokens per step, {self.change.stored:.2f} {self.other}"

    def __str__(self) -> str:
        change = f"{self.change.part:+.1%} over {self.change.prompts} prompts"
        return f"{self.where} in flight: {self._lengths}, {change}; p = {self.p_value:.2g}"


def comparisons(answers: Sequence[DraftedAnswer]) -> list[FallingBehind]:
    """Return a comparison for each number of requests in flight that enough prompts were asked with and without, equal groups once.

    And one for requests that are alone.
    """
    known = [answer for answer in answers if answer.total is not None and answer.foreseeable and not answer.grammar]
    alone = _by_request([answer for answer in known if answer.company == 1])
    crowds: dict[tuple[str, ...], tuple[int, Mapping[str, Sequence[DraftedAnswer]]]] = {}
    for most in reversed(_MANY):
        busy = [answer for answer in known if answer.company > most and answer.request in alone]
        crowds.setdefault(tuple(answer.name for answer in busy), (most, _by_request(busy)))
    loads = [(f"more than {most} request{'s' * (most > 1)}", busy) for most, busy in crowds.values()]
    found = [_compared(where, busy, "alone", alone) for where, busy in loads]
    if loads:
        found.append(_compared("no other request", alone, "in company", loads[-1][1]))
    return [each for each in found if each is not None]


def _by_request(answers: Sequence[DraftedAnswer]) -> Mapping[str, Sequence[DraftedAnswer]]:
    found: defaultdict[str, list[DraftedAnswer]] = defaultdict(list)
    for answer in answers:
        found[answer.request].append(answer)
    return found


def _compared(
    where: str, here: Mapping[str, Sequence[DraftedAnswer]], other: str, there: Mapping[str, Sequence[DraftedAnswer]]
) -> FallingBehind | None:
    prompts: defaultdict[str, list[str]] = defaultdict(list)
    for request in sorted(here.keys() & there.keys()):
        prompts[here[request][0].prompt].append(request)
    if len(prompts) < _LEAST_PROMPTS:
        return None
    before, now = ([_length([one for request in each for one in side[request]]) for each in prompts.values()] for side in (there, here))
    worst = min(range(len(now)), key=lambda index: now[index] - before[index])
    return FallingBehind(
        where=where,
        other=other,
        change=compare(before, now),
        bad=sum(b < a for a, b in zip(before, now, strict=True)),
        first=here[list(prompts.values())[worst][0]][0].name,
    )


def _length(answers: Sequence[DraftedAnswer]) -> float:
    return sum(one.total.length for one in answers if one.total is not None) / len(answers)
