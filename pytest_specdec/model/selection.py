"""A selection: the prompts of a pool that a survey of the baseline chose, with the figures that it went by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.workload import Workload

__all__ = ["Candidate", "Selection", "first", "per_token", "quota", "survey_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One prompt of the pool, as the survey found it."""

    id: str
    """Of the prompt's first request in the pool."""
    category: str
    tokens: int
    """Scored tokens of the baseline's short answer; 0 where there are none."""
    information: float
    """Informative tokens: the sum over these tokens of Var_p(log p), nats squared, p the baseline's law as requested."""

    @property
    def per_token(self) -> float:
        """Informative tokens per emitted token; 0 without tokens."""
        return self.information / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is sent of one workload's pool, and why."""

    workload: str
    chosen: tuple[str, ...]
    """Prompts by the ids of their first requests; ranked, the most informative first."""
    candidates: tuple[Candidate, ...] = ()
    """The whole pool, in its order; empty where nothing was asked."""
    plain: str = ""
    """Why the pool's first prompts are sent instead of ranked ones; empty where they are ranked."""

    @property
    def informative(self) -> bool:
        """Whether the prompts were ranked."""
        return not self.plain

    def applied(self, pool: Workload) -> Workload:
        """Return ``pool`` with the requests of the chosen prompts only, in its own order, ids, seeds and bodies as they were."""
        chosen = {prompt.asks for prompt in pool.prompts if prompt.id in set(self.chosen)}
        return replace(pool, requests=tuple(request for request in pool.requests if request.asks in chosen))

    def __str__(self) -> str:
        if self.plain:
            return f"{self.workload}: the first {len(self.chosen)} prompts are sent, none chosen for information: {self.plain}"
        surveyed = sum(candidate.tokens for candidate in self.candidates)
        return (
            f"{self.workload}: {len(self.chosen)} of {len(self.candidates)} prompts chosen for information by a survey of"
            f" {surveyed:,} tokens, {per_token(self.candidates):.2f} informative ones per token"
        )


def survey_of(name: str) -> str:
    """Return under which name the survey of a pool's prompts is kept."""
    return f"{name}.survey"


def quota(pool: Workload) -> int:
    """Return how many prompts of ``pool`` are sent: half of them, rounded up."""
    return -(-len(pool.prompts) // 2)


def first(pool: Workload, why: str, candidates: Sequence[Candidate] = ()) -> Selection:
    """Return the selection of the pool's first prompts, where ``why`` forbids to rank them."""
    chosen = tuple(prompt.id for prompt in pool.prompts[: quota(pool)])
    return Selection(workload=pool.name, chosen=chosen, candidates=tuple(candidates), plain=why)


def per_token(candidates: Sequence[Candidate]) -> float:
    """Return the informative tokens per token of all ``candidates`` together; 0 without tokens."""
    tokens = sum(candidate.tokens for candidate in candidates)
    return sum(candidate.information for candidate in candidates) / tokens if tokens else 0.0
