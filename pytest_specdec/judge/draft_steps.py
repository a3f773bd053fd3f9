"""Draft steps: the drafted and accepted tokens at each verify step of an answer, with its context length, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Answer

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
    windows = [window for choice in answer.choices for window in choice.steps]
    if windows:
        return StepSum(tokens=sum(windows), steps=len(windows))
    counters = answer.counters
    if counters is None or not counters.drafts:
        return None
    return StepSum(tokens=counters.drafts + counters.accepted_tokens, steps=counters.drafts)


def drafted_total(answer: Answer, *, every_step: bool) -> StepSum | None:
    """Return the sums of :func:`total` over steps with a draft alone.

    A step without a draft emits one token. ``every_step`` says that the drafter drafts at every step. Returns None if it is unknown which
    steps had a draft: the server reports windows without draft counts, and the drafter skips some steps.
    """
    windowed = [choice for choice in answer.choices if choice.steps]
    if not windowed:
        return total(answer)
    drafted_windows: list[int] = []
    for choice in windowed:
        counts = choice.drafted
        if counts is not None and len(counts) == len(choice.windows or ()) - 1:
            drafted_windows += [window for window, count in zip(choice.steps, counts, strict=False) if count]
        elif every_step:
            drafted_windows += choice.steps
        else:
            return None
    return StepSum(tokens=sum(drafted_windows), steps=len(drafted_windows))


def steps(answer: Answer) -> tuple[DraftStep, ...]:
    """Return the whole verify steps of an answer with one choice.

    The last step is left out, since a limit on the answer's length may have cut it. The number of draft tokens is unknown (None) unless the
    server reported one for each step. Returns () without windows.
    """
    windows, drafted = answer.choice.windows or (), answer.choice.drafted
    context = answer.prompt_tokens + sum(windows[:1])
    counts = drafted if drafted is not None and len(drafted) == len(windows) - 1 else (None,) * len(windows)
    draft_steps: list[DraftStep] = []
    for window, count in zip(answer.choice.steps, counts, strict=False):
        draft_steps.append(DraftStep(context=context, drafted=count, accepted=window - 1))
        context += window
    return tuple(draft_steps)
