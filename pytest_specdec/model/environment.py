"""An environment: what a figure depends on besides the code under test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Environment", "Variables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine, the engine and the client of a capture."""

    engine: str
    engine_version: str
    model: str
    processor: str
    cores: int
    memory_gib: float
    devices: tuple[str, ...] = ()
    """Accelerators by name, empty without one."""
    system: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of what the client runs on: openai, numpy, pytest-specdec …"""

    @property
    def machine(self) -> str:
        """Return a file-name-safe name of the machine: figures of two machines with different names are never compared."""
        facts = json.dumps([self.processor, self.cores, round(self.memory_gib), self.devices])
        word = (self.devices[0] if self.devices else self.processor) or "machine"
        slug = "-".join("".join(c if c.isalnum() else " " for c in word.lower()).split())[:40]
        return f"{slug}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Which values a config's ``${VAR}`` had, told by digests that give none of them away."""

    salt: str
    """Hexadecimal, random for every run."""
    digests: Mapping[str, str]
    """By the variable's name, hexadecimal; without those that were not set."""
