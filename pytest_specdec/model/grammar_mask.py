"""Grammar masks: what llguidance allowed at each token of the answers of one arm, computed apart from its server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AnswerMask", "GrammarMasks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMask:
    """The masks along the tokens of one answer's first choice, up to the first token that the grammar forbids."""

    request_id: str
    pass_index: int = 0
    grammar: str
    """Digest of the grammar: requests that agree in it are bound alike."""
    start: int = 0
    """Index of the first token that the grammar binds: behind the reasoning."""
    allowed: tuple[int, ...] = ()
    """Tokens of the vocabulary that are allowed at each position from ``start`` on; 1 where the grammar leaves no choice."""
    best: tuple[int, ...] = ()
    """Index among the scored top tokens of the most probable allowed one, at each of these positions; -1 where none of them is allowed.

    Empty where the answer has no scores.
    """
    forbidden: int | None = None
    """Index of the first emitted token that the grammar forbids; None where it allows them all."""
    unread: str = ""
    """Why there are no masks; empty where there are."""

    @property
    def key(self) -> tuple[str, int]:
        """The answer's request id and pass."""
        return (self.request_id, self.pass_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarMasks:
    """The masks of one arm's answers to one workload."""

    release: str = ""
    """Release of the llguidance that computed them; empty where it is not installed."""
    server_release: str = ""
    """Release of the server's own; empty if unknown."""
    missing: str = ""
    """Why no mask could be computed; empty where they were."""
    answers: tuple[AnswerMask, ...] = ()

    @property
    def exact(self) -> bool:
        """True if the server computes with the same release.

        Another release may read a rule of a grammar in another way.
        """
        return bool(self.release) and self.release == self.server_release
