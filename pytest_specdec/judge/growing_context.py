"""Growing context: drafts do not end where an answer grows past a length, each answer held against its own beginning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.draft_steps import DraftStep
    from pytest_specdec.judge.traffic import DraftedAnswer

__all__ = ["EndedDrafts", "comparisons"]

_LEAST_STEPS = 4
"""Steps on either side of a length that an answer needs."""
_LENGTHS = (64, 96, *(factor * 2**power for power in range(6, 14) for factor in (2, 3)))
"""Of contexts, in tokens, up to 24,576."""
_NEARLY_ALL, _FEW = 0.9, 0.25


class Ending(StrEnum):
    """What ends with the length; the length follows."""

    OFF = "drafting ends beyond"
    DEAD = "no draft is accepted beyond"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedDrafts:
    """Answers that grow past a length of the context, and whether the drafts end there."""

    ending: Ending
    tokens: int
    """The length, prompt and answer."""
    answers: int
    bad: int
    """Answers without a draft, or without an accepted one, beyond the length."""
    bad_before: int
    """The same up to it."""
    worse: int
    """Answers that are bad beyond it only."""
    better: int
    """Answers that are bad up to it only."""
    first: str

    @property
    def p_value(self) -> float:
        """Of so many answers that change for the worse, if a change for the better is as likely: McNemar's exact test, one-sided."""
        return proportions.greater_than_rate(self.worse, self.worse + self.better, 0.5)

    @property
    def least_p(self) -> float:
        """The smallest p-value of so many answers that change."""
        return 0.5 ** (self.worse + self.better)

    @property
    def is_striking(self) -> bool:
        """Whether nearly all are bad beyond the length and few up to it."""
        return self.bad >= _NEARLY_ALL * self.answers and self.bad_before <= _FEW * self.answers

    @property
    def name(self) -> str:
        """The fault in words."""
        return f"{self.ending} {self.tokens} tokens of context"

    @property
    def headline(self) -> str:
        """The fault with its figures."""
        return f"{self.name}: in {self.bad} of {self.answers} answers that grow past them, in {self.bad_before} up to there"

    @property
    def cell(self) -> str:
        """Few words for a table."""
        return f"{self.ending} {self.tokens}"

    @property
    def test(self) -> str:
        """The name of the test."""
        return "McNemar's exact test over answers"

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.bad} of {self.answers} answers that grow past them, "
            f"{self.bad_before} of them up to there; p = {self.p_value:.2g}"
        )


def comparisons(answers: Sequence[DraftedAnswer]) -> list[EndedDrafts]:
    """Return both questions for every length that an answer grows past; for drafters that draft at every step."""
    plain = [answer for answer in answers if answer.foreseeable and not answer.grammar]
    return [found for ending in Ending for tokens in _LENGTHS if (found := _ended(ending, tokens, plain)) is not None]


def _ended(ending: Ending, tokens: int, answers: Sequence[DraftedAnswer]) -> EndedDrafts | None:
    split = [(answer.name, *_sides(answer.steps, tokens)) for answer in answers]
    counted = [(name, _is_bad(ending, before), _is_bad(ending, after)) for name, before, after in split if _enough(before, after)]
    if not counted:
        return None
    return EndedDrafts(
        ending=ending,
        tokens=tokens,
        answers=len(counted),
        bad=sum(after for _, _, after in counted),
        bad_before=sum(before for _, before, _ in counted),
        worse=sum(after and not before for _, before, after in counted),
        better=sum(before and not after for _, before, after in counted),
        first=next((name for name, _, after in counted if after), ""),
    )


def _sides(steps: Sequence[DraftStep], tokens: int) -> tuple[list[DraftStep], list[DraftStep]]:
    return [step for step in steps if step.context <= tokens], [step for step in steps if step.context > tokens]


def _enough(before: Sequence[DraftStep], after: Sequence[DraftStep]) -> bool:
    return min(len(before), len(after)) >= _LEAST_STEPS


def _is_bad(ending: Ending, steps: Sequence[DraftStep]) -> bool:
    """Whether nothing is drafted, or nothing accepted; drafts of unknown length are drafts."""
    if ending is Ending.OFF:
        return all(step.drafted == 0 for step in steps)
    return any(step.drafted != 0 for step in steps) and not any(step.accepted for step in steps)
