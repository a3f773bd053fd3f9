"""A gate: a threshold in a config or a baseline file, with the samples it came from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACCEPTANCE_LENGTH", "BOOT_SD", "FIGURES", "SPEEDUP", "STATED_BOOTS", "Gate"]

SPEEDUP = "speedup"
ACCEPTANCE_LENGTH = "acceptance_length"
FIGURES = (SPEEDUP, ACCEPTANCE_LENGTH)
"""Everything that can be gated."""
BOOT_SD = 0.03
"""Standard deviation of the log of a server's speed from boot to boot, where nobody has stated or measured it."""
STATED_BOOTS = 4
"""Measured pairs of boots that a stated deviation is worth: its degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One threshold on one figure of one pair."""

    figure: str
    """What is gated: ``speedup`` (response tokens per second, speculative over baseline) or ``acceptance_length``."""
    at_least: float | None = None
    source: str = ""
    """Where the threshold stands: ``reference.yaml: gates.speedup`` or a baseline file."""
    log_ratios: tuple[float, ...] = ()
    """The measured log-ratios behind it, one per run."""
    boot_log_ratios: tuple[float, ...] = ()
    """The logs of control over baseline, two boots of one server, one per run: how much boots vary on this machine."""
    boot_sd: float | None = None
    """The standard deviation of the log speed between boots that is assumed before any is measured; None where a config states none."""
    machine: str | None = None
    """The machine it was measured on; None for a floor stated by hand, which holds everywhere."""
    pair: str = ""
    """The variant it was measured on; empty for a floor that holds for all of them."""
    workload: str = ""
    """The workload it was measured on; empty for a floor that holds for all of them."""

    def __str__(self) -> str:
        """Say what it asks and where it stands: ``speedup at least 1.3 (reference.yaml:27 gates.speedup)``."""
        asked = "" if self.at_least is None else f" at least {self.at_least:g}"
        return f"{self.figure.replace('_', ' ')}{asked} ({self.source or 'no source given'})"
