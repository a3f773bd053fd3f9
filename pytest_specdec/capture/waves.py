"""Waves: which servers stand side by side, where not all of a plan fit at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.plan import Boot

__all__ = ["Waves", "of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """The order in which boots come and go."""

    staying: tuple[Boot, ...]
    """Up from the first wave to the last: the servers that score."""
    waves: tuple[tuple[Boot, ...], ...]
    """What comes beside them, wave by wave; at least one, maybe empty."""


def of(boots: Sequence[Boot], servers: int) -> Waves:
    """Return the waves of ``boots``, at most ``servers`` up at once.

    The servers that score stay while there is room for one more beside them; a draft model that finds none comes after those whose tokens
    it scores.
    """
    scoring = [boot for boot in boots if boot.scores]
    staying = tuple(scoring if len(boots) <= servers else scoring[: max(1, servers - 1)])
    rest = [boot for boot in boots if not boot.scores] + [boot for boot in scoring if boot not in staying]
    room = max(1, servers - len(staying))
    waves = tuple(tuple(rest[at : at + room]) for at in range(0, len(rest), room))
    return Waves(staying=staying, waves=waves or ((),))
