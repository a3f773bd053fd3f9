"""A score: the conditional log-probabilities of given token ids under a server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Position", "Score", "ScoringRoute"]


class ScoringRoute(StrEnum):
    """How a server's law at given tokens is come by."""

    PROMPT_LOGPROBS = "prompt log-probabilities"
    """The tokens are sent as a prompt: one request per answer, and every token's own log-probability."""
    CONTINUATIONS = "one-token continuations"
    """Every prefix is continued by one token: one request per token, and the log-probabilities of the listed tokens alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The raw law (temperature 1, nothing processed) at one emitted token, given everything before it.

    All log-probabilities are natural logs of the full-vocabulary softmax.
    """

    token_id: int
    logprob: float
    """Of ``token_id``, also when it is not among the atoms; nan where the route to the scores lists the atoms only."""
    atom_ids: tuple[int, ...]
    """The most probable tokens, by falling probability; below 0 one that the server names by a text and not by an id."""
    atom_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One answer's tokens under one server, teacher-forced from token ids."""

    request_id: str
    pass_index: int = 0
    arm: str
    """Whose tokens."""
    under: str
    """Whose law: ``baseline``, or the draft model's name."""
    positions: tuple[Position, ...]
    """One per emitted token of the answer's first choice."""

    @property
    def key(self) -> tuple[str, int]:
        """Which answer: request id and pass."""
        return (self.request_id, self.pass_index)
