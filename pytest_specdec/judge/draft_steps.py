"""Draft steps: what was drafted and accepted at each verify step of an answer, and at how long a context; or in all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Answer

__all__ = ["DraftStep", "StepSum", "steps", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStep:
    """One verify step that no limit has cut."""

    context: int
    """Tokens before it, prompt and answer."""
    drafted: int | None
    """Draft tokens; None where unknown."""
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSum:
    """All verify steps of an answer, or of several answers, together."""

    tokens: int
    """Emitted by them, the bonus or recovered ones included."""
    steps: int

    def __add__(self, other: StepSum) -> StepSum:
        return StepSum(tokens=self.tokens + other.tokens, steps=self.steps + other.steps)

    @property
    def length(self) -> float:
        """Tokens per step."""
        return self.tokens / self.steps


def total(answer: Answer) -> StepSum | None:
    """Return the verify steps of all choices, the last of each left out, which a limit may have cut; None where none are known.

    From the windows; without them what the server reports of the answer, its last step included, those without a draft left out.
    """
    windows = [window for choice in answer.choices for window in choice.steps]
    if windows:
        return StepSum(tokens=sum(windows), steps=len(windows))
    counters = answer.counters
    if counters is None or not counters.drafts:
        return None
    return StepSum(tokens=counters.drafts + counters.accepted_tokens, steps=counters.drafts)


def steps(answer: Answer) -> tuple[DraftStep, ...]:
    """Return the verify steps of an answer with one choice, the last one left out, which a limit may have cut; () without windows."""
    windows, drafted = answer.choice.windows or (), answer.choice.drafted
    context = (answer.usage.prompt_tokens if answer.usage else len(answer.prompt_token_ids)) + sum(windows[:1])
    counts = drafted if drafted is not None and len(drafted) == len(windows) - 1 else (None,) * len(windows)
    draft_steps: list[DraftStep] = []
    for window, count in zip(answer.choice.steps, counts, strict=False):
        draft_steps.append(DraftStep(context=context, drafted=count, accepted=window - 1))
        context += window
    return tuple(draft_steps)
