"""A penalty window: the tokens that a server's penalties count, on which engines do not agree."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PenaltyWindow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyWindow:
    """The tokens before the next one that penalties count: those of the answer, and what these fields say.

    The defaults are OpenAI's rule, and Hugging Face's for the repetition penalty, which OpenAI does not have.
    """

    prompt: bool = False
    """Whether presence and frequency penalties count the prompt."""
    repetition_prompt: bool = True
    """Whether repetition penalties count it."""
    last_tokens: int | None = None
    """How many tokens they look back on, the prompt's included where it counts; None for all."""

    def __str__(self) -> str:
        """Return in words the tokens counted by the penalties."""
        last = "" if self.last_tokens is None else f"the last {self.last_tokens} tokens of "
        presence, repetition = (
            f"{last}{'prompt and answer' if prompt else 'the answer'}" for prompt in (self.prompt, self.repetition_prompt)
        )
        return presence if presence == repetition else f"{presence}, repetition over {repetition}"
