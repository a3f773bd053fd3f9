"""A baseline record: what a stored run knows of its baseline's distribution, to be compared with that of another run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_specdec.model.captured import Captured, ReportedDraws
from pytest_specdec.model.transcript import Choice, Position

__all__ = ["BaselineRecord", "GreedyAnswer", "Prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """One scored position, after a prompt and some tokens of an answer."""

    prompt: str
    """The prompt by its :attr:`Request.prompt_key`."""
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyAnswer:
    """The baseline's answer to a request for the most probable tokens, and that of its control."""

    request_id: str
    prompt: str
    """By its :attr:`Request.prompt_key`."""
    choice: Choice
    positions: tuple[Position, ...]
    """The scores of its tokens; empty where the run did not score them."""
    control: Choice | None
    """None where the control did not answer."""
    limit: int | None = None
    """Most tokens that it might have, as the request was sent; None without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecord:
    """Prompts, scored positions and greedy answers of one run's baseline."""

    prompts: Mapping[str, tuple[int, ...]]
    """Token ids of each scored prompt, by :attr:`Request.prompt_key`."""
    chats: frozenset[str]
    """The prompts that the server's chat template made, by the same key."""
    prefixes: Mapping[bytes, Prefix]
    """By a digest of all token ids before the position: the same key in another record is the same prefix."""
    greedy: Mapping[str, GreedyAnswer]
    """By :attr:`Request.asks`. Of several passes it is the first, since later ones ask the same."""
    unanswered: frozenset[str] = frozenset()
    """Questions likewise that were sent and are not in ``greedy``: refused, failed, or answered without token ids."""
    draws: ReportedDraws
    """Plain draws of the calibration, which tell the noise of the run."""
    boots: int
    """Boots of the baseline in the draws: 2 if one drew and another scored them; 1 if one did both, which hides the noise between boots."""
    variant_draws: tuple[ReportedDraws, ...] = ()
    """The same of each variant, which is another boot of the build that scored them."""
    single_precision: bool = False
    """Whether the baseline computes in float32 with nothing quantised; False if unknown."""
    began: Mapping[str, str] = field(default_factory=dict)
    """When the baseline began to answer each workload, by name: it tells this run from others."""
    old_answers: tuple[Captured, ...] = ()
    """Answers of the baseline before the upgrade under this run's scores, workload by workload, in the variant's place; this run's own are
    in the control's. Empty if none were scored."""
    new_answers: tuple[Captured, ...] = ()
    """Answers of this run's baseline under the scores of the one before the upgrade, likewise; that one's own are in the control's place.
    Empty unless the run has both engines and booted the old one again."""

    @property
    def days(self) -> frozenset[str]:
        """The days on which the baseline began to answer, UTC, ISO 8601; empty if that is unknown."""
        return frozenset(moment.partition("T")[0] for moment in self.began.values() if moment)
