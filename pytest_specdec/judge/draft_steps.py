"""Draft steps: the drafted and accepted tokens at each verify step of an answer, with its context length, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.transcript import Answer, Choice

__all__ = ["DraftStep", "StepSum", "drafted_total", "steps", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStep:
    """One whole verify step, cut by no limit."""

    context: int
    """Tokens of the prompt and the answer before it."""
    drafted: int | None
    """Draft tokens; None if unknown."""
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSum:
    """The sums over all verify steps of an answer, or of several answers."""

    tokens: int
    """Tokens emitted by the steps, bonus and recovered tokens included."""
    steps: int

    def __add__(self, other: StepSum) -> StepSum:
        return StepSum(tokens=self.tokens + other.tokens, steps=self.steps + other.steps)

    @property
    def length(self) -> float:
        """Tokens per step."""
        return self.tokens / self.steps


def total(answer: Answer) -> StepSum | None:
    """Return the tokens and number of an answer's verify steps.

    Verify windows are summed over all choices, without the last step of each (``Choice.steps`` leaves it out), since a limit on the
    answer's length may have cut it. Without windows the counters that the server reports with the answer are used. They are sums over the
    whole answer, so its last step cannot be left out of them; they do not count steps without a draft. Returns None if neither shows a
    step.
    """
    window_sizes = [size for choice in answer.choices for size in choice.steps]
    if window_sizes:
        return StepSum(tokens=sum(window_sizes), steps=len(window_sizes))
    counters = answer.counters
    if counters is None or not counters.drafts:
        return None
    return StepSum(tokens=counters.drafts + counters.accepted_tokens, steps=counters.drafts)


def drafted_total(answer: Answer, *, every_step: bool) -> StepSum | None:
    """Return the tokens and number of an answer's verify steps with a draft.

    ``every_step`` says that the drafter drafts at every step; else a step may have no draft and emit one token. As in :func:`total` the
    last step of each choice is left out. Returns None if the answer shows no step, or not which of its steps had a draft.
    """
    choices_with_steps = [choice for choice in answer.choices if choice.steps]
    if not choices_with_steps:
        # Without windows the answer's counters are used, if it has any: they count only steps with a draft.
        return total(answer)
    sizes: list[int] = []  # tokens emitted by each step with a draft
    for choice in choices_with_steps:
        counts = _draft_counts(choice)
        if counts is not None:
            sizes += [size for size, count in zip(choice.steps, counts[: len(choice.steps)], strict=True) if count]
        elif every_step:
            sizes += choice.steps
        else:
            return None
    return StepSum(tokens=sum(sizes), steps=len(sizes))


def _draft_counts(choice: Choice) -> tuple[int, ...] | None:
    """Return the draft tokens of each verify step, the last one's included.

    None unless the server reported one number for each: for every window but the prefill's.
    """
    counts = choice.drafted
    return counts if counts is not None and len(counts) == len(choice.windows or ()) - 1 else None


def steps(answer: Answer) -> tuple[DraftStep, ...]:
    """Return the whole verify steps of an answer with one choice.

    Windows are the tokens emitted by the prefill, which verifies nothing, and by each verify step. ``choice.steps`` has those of the steps,
    without the last one, which a limit on the answer's length may have cut. The number of draft tokens is unknown (None) unless the server
    reported one for each step. Returns () without windows.
    """
    choice = answer.choice
    prefill = sum((choice.windows or ())[:1])
    context = answer.prompt_tokens + prefill
    counts: Sequence[int | None] = _draft_counts(choice) or (None,) * len(choice.steps)
    draft_steps: list[DraftStep] = []
    for size, count in zip(choice.steps, counts[: len(choice.steps)], strict=True):
        draft_steps.append(DraftStep(context=context, drafted=count, accepted=size - 1))
        context += size
    return tuple(draft_steps)
