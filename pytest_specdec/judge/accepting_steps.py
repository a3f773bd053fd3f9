"""Accepting steps: how many verify steps of some answers accepted a draft token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import DraftKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer

__all__ = ["StepCount", "count_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Verify steps, and those of them that accepted a draft token.

    Statistical tests count steps and not draft tokens, since those of one step depend on each other: a rejection discards all after it.
    """

    accepting: int
    steps: int

    @property
    def share(self) -> float:
        """Accepting over all steps, 0 for none."""
        return self.accepting / self.steps if self.steps else 0.0

    def __str__(self) -> str:
        return f"{self.accepting:,} of {self.steps:,} verify steps"


def count_steps(captured: Captured, answers: Sequence[Answer]) -> StepCount:
    """Return the verify steps of ``answers``, with those that accepted a draft token.

    An answer shows its steps by the sizes of its verify windows. Only where these are unknown it may have counters of its own, which
    count its steps instead. A window of more than one token has accepted a draft token. Prompt lookup need not draft at every step, so
    only windows that are known to have had a draft are counted.
    """
    window_sizes: list[int] = []
    for answer in answers:
        choice = answer.choice
        if captured.pair.variant.draft.kind is DraftKind.NGRAM:
            # The draft of the last step is left over: a limit may have cut its window, so that the steps leave it out.
            windows = zip(choice.steps, choice.drafted or (), strict=False)
            window_sizes += [size for size, draft_tokens in windows if draft_tokens]
        else:
            window_sizes += choice.steps
    answer_counters = [answer.counters for answer in answers if answer.counters is not None]
    # A step that accepts any draft token accepts the first. Without counts by position all accepted tokens are taken, an upper bound,
    # which may exceed the number of steps.
    accepting = sum((counters.accepted_per_position or (counters.accepted_tokens,))[0] for counters in answer_counters)
    steps = sum(counters.drafts for counters in answer_counters)
    return StepCount(accepting=sum(size > 1 for size in window_sizes) + min(accepting, steps), steps=len(window_sizes) + steps)
