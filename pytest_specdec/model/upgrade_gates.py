"""The gates of an upgrade: what a config tolerates between an earlier run and this one, and the changes that were reviewed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date

__all__ = ["AcceptedChange", "Tolerance", "UpgradeGates"]


class Tolerance(StrEnum):
    """What a change of the baseline's answers makes of an upgrade."""

    ALLOW = "allow"
    """It is shown, and the upgrade is safe."""
    WARN = "warn"
    """It leads the headline, and fails nothing."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedChange:
    """A change that somebody has reviewed, accepted until a day."""

    change: str
    """Its name, as the comparison lists it: ``chat-template``, ``slower-drafter``, ``refuses-min_p``."""
    reason: str
    owner: str
    expires: date
    """The last day on which it is accepted, UTC."""
    source: str = ""
    """File and line."""

    def __str__(self) -> str:
        return f"{self.change}: {self.reason} (owner {self.owner}, until {self.expires})"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeGates:
    """What an upgrade may change. Speeds are ratios of the new run over the old one."""

    baseline_change: Tolerance | None = None
    """Of any change of the baseline's answers; None warns of numerics and fails for the rest."""
    baseline: float = 0.95
    """The lowest ratio of the baseline's decode speeds that passes."""
    variant: float = 0.95
    """The same of each variant."""
    acceptance: float = 0.97
    """The same of the accepted tokens per verify step."""
    accepted: tuple[AcceptedChange, ...] = ()
