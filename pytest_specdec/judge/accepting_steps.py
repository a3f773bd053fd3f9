"""Accepting steps: how many verify steps of some answers accepted a draft token.

A verify step checks the tokens of one draft. It emits those that it accepts and one token more: these are its window.
"""

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

    A window of more than one token shows an accepted draft token. An answer without known windows may have counters of its own, reported
    with it, which count its steps. No answer has both, so that none is counted twice.
    """
    window_sizes: list[int] = []
    for answer in answers:
        choice = answer.choice
        if captured.pair.variant.draft.kind is DraftKind.NGRAM:
            # Prompt lookup need not draft at every step: only steps with a reported draft count. ``drafted`` has an entry more than
            # ``steps``, for the last step, which ``steps`` leaves out since a limit may have cut it.
            draft_lengths = (choice.drafted or ())[: len(choice.steps)]
            window_sizes += [size for size, draft_tokens in zip(choice.steps, draft_lengths, strict=False) if draft_tokens]
        else:
            window_sizes += choice.steps
    answer_counters = [answer.counters for answer in answers if answer.counters is not None]
    # A step that accepts any draft token accepts the first, so that the first position's count is that of accepting steps. Without counts
    # by position all accepted tokens are taken. They may be more than the steps, hence the minimum below.
    counted_accepting = sum((counters.accepted_per_position or (counters.accepted_tokens,))[0] for counters in answer_counters)
    counted_steps = sum(counters.drafts for counters in answer_counters)
    accepting = sum(size > 1 for size in window_sizes) + min(counted_accepting, counted_steps)
    return StepCount(accepting=accepting, steps=len(window_sizes) + counted_steps)
