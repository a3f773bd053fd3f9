"""A gate: a threshold in a baseline file, with the environment and the samples it came from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One threshold on one figure of one pair."""

    figure: str
    """What is gated: ``speedup`` (response tokens per second, speculative over baseline) or ``acceptance_length``."""
    at_least: float | None = None
    source: str = ""
    """Where the threshold stands: ``reference.yaml: gates.speedup`` or a baseline file."""
    log_ratios: tuple[float, ...] = ()
    """The measured log-ratios behind it, one per pair of boots."""
    between_boot_sd: float | None = None
    """Standard deviation of the log-ratio between boots, where at least four boots have shown it."""
    machine: str | None = None
    """The machine it was measured on; None for a floor stated by hand, which holds everywhere."""
    pair: str = ""
    """The variant it was measured on; empty for a floor that holds for all of them."""
    workload: str = ""
    """The workload it was measured on; empty for a floor that holds for all of them."""
