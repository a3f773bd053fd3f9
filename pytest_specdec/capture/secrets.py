"""Secrets: the values that must reach no artifact, and the pen that strikes them out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Secrets"]

_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)S?$", re.IGNORECASE)
_SHORTEST = 6
"""A shorter value is a word that ordinary text may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Values to be struck out of everything that is written or printed."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, *environments: Mapping[str, str], also: Iterable[str | None] = ()) -> Secrets:
        """Return the values of variables that are named like secrets (``HF_TOKEN``, ``VLLM_API_KEY``) and those in ``also``."""
        named = {value for environment in environments for name, value in environment.items() if _NAMES.search(name)}
        found = {value for value in named if len(value) >= _SHORTEST} | {value for value in also if value}
        return cls(values=tuple(sorted(found, key=len, reverse=True)))

    @property
    def spellings(self) -> tuple[str, ...]:
        """The values as they may be met, longest first."""
        return tuple(sorted(self.values, key=len, reverse=True))

    def mask(self, text: str) -> str:
        """Return ``text`` with every secret replaced by ``***``."""
        for value in self.values:
            text = text.replace(value, "***")
        return text

    def __repr__(self) -> str:
        return f"<Secrets: {len(self.values)} values>"
