"""Draft steps: what was drafted and accepted at each verify step of an answer, and at how long a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.transcript import Answer

__all__ = ["DraftStep", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStep:
    """One verify step that no limit has cut."""

    context: int
    """Tokens before it, prompt and answer."""
    drafted: int | None
    """Draft tokens; None where unknown."""
    accepted: int


def steps(answer: Answer) -> tuple[DraftStep, ...]:
    """Return the verify steps of an answer with one choice, the last one left out, which a limit may have cut; () without windows."""
    windows, drafted = answer.choice.windows or (), answer.choice.drafted
    context = (answer.usage.prompt_tokens if answer.usage else len(answer.prompt_token_ids)) + sum(windows[:1])
    counts = drafted if drafted is not None and len(drafted) == len(windows) - 1 else (None,) * len(windows)
    found: list[DraftStep] = []
    for window, count in zip(windows[1:-1], counts, strict=False):
        found.append(DraftStep(context=context, drafted=count, accepted=window - 1))
        context += window
    return tuple(found)
