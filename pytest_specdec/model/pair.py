"""A pair: one baseline and one speculative variant of the same engine and model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["BASELINE", "CONTROL", "OLD_BASELINE", "SCORER", "Draft", "DraftKind", "DraftSampling", "Pair", "Variant", "arm_of", "old_arm"]

BASELINE = "baseline"
CONTROL = "control"
SCORER = "scorer"


def old_arm(name: str) -> str:
    """Return the storage name for an arm of the old engine.

    An upgrade keeps the old engine's answers in the run of the new one, where ``name`` is taken by the new engine's arm. No variant's name
    has a dot, so the name cannot be another arm's.
    """
    return f"old.{name}"


OLD_BASELINE = old_arm(BASELINE)
"""The baseline of the engine before an upgrade: its answers in the run of the engine after it."""


def arm_of(name: str) -> str:
    """Return the arm that a storage name of either engine stands for: ``k3`` of ``old.k3``, and of ``k3``."""
    return name.removeprefix(old_arm(""))


class DraftKind(StrEnum):
    """Where a variant's draft tokens come from."""

    MODEL = "model"
    """A smaller model of the same vocabulary that can be served alone."""
    NGRAM = "ngram"
    """Prompt lookup: the tokens that followed the earliest occurrence of the longest n-gram that ends the text."""
    HEAD = "head"
    """Heads or layers on the target (EAGLE, Medusa, MTP): not servable alone."""
    UNKNOWN = "unknown"

    @property
    def every_step(self) -> bool:
        """Whether it drafts at every step, whatever the text."""
        return self in {DraftKind.MODEL, DraftKind.HEAD}


class DraftSampling(StrEnum):
    """How a drafter picks its token, which decides the draft distribution q."""

    GREEDY = "greedy"
    """q is one-hot at the drafter's best token."""
    PROBABILISTIC = "probabilistic"
    """q is the drafter's distribution, processed by the request's sampling parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A variant's drafting, by its engine's settings."""

    kind: DraftKind
    tokens: int
    """Draft tokens per verify step, the ``k`` of the formulas."""
    sampling: DraftSampling = DraftSampling.GREEDY
    model: str | None = None
    """The draft checkpoint, where ``kind`` is ``model``."""
    ngram_min: int = 0
    """Tokens in a row that have to occur again for anything to be drafted, of drafters that look them up; 0 for others, and if unknown."""
    ngram_max: int = 0
    most_requests: int = 0
    """The largest batch in which anything is drafted; 0 for any."""
    depends_on_load: bool = False
    """Whether the config says that drafts are fewer, or none, with several requests in flight."""
    context: int = 0
    """Tokens of context up to which drafts are accepted as at the beginning of a text, by the config; 0 if it does not say."""

    def depends_on(self, concurrency: int) -> bool:
        """Return True if less may be drafted with this many requests in flight.

        Engines may draft nothing in a batch larger than ``most_requests``, where it is not 0. One request in flight is never too many.
        """
        return concurrency > 1 and (self.depends_on_load or 0 < self.most_requests < concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A named way of speculating."""

    name: str
    draft: Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One baseline and one variant."""

    config: str
    """The config's name: the stem of its file."""
    engine: str
    model: str
    variant: Variant

    @property
    def name(self) -> str:
        """Its name in reports: the variant's, unique in a config."""
        return self.variant.name
