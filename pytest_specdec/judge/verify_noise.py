"""Verify noise: the ratio of the verify kernel's noise to decode's, compared with the gate of a config that sets one.

The verify kernel computes several draft tokens at once, the decode kernel one token. Both kernels' log-probabilities are compared with the
same scores, so the measured noise of each includes the scorer's: with a scorer as noisy as decode, a kernel three times as noisy measures
as 2.24 times. A gate is on the measured ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.baseline import VERIFY_NOISE
from pytest_specdec.model.verdict import Finding
from pytest_specdec.model.workload import Family
from pytest_specdec.stats.noise import answer_scales, noise_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.stats.noise import NoiseRatio

__all__ = ["GatedNoise", "gated_noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNoise:
    """The verify kernel's noise beside the gate on it."""

    gate: Gate
    measured: NoiseRatio | None
    """None if too few answers report log-probabilities."""
    error: float
    """Chance that a kernel exactly at the gate misses it."""

    @property
    def missed(self) -> bool:
        """True if even the lower limit of the ratio is above the gate."""
        return self.measured is not None and self.gate.at_most is not None and self.measured.low > self.gate.at_most

    @property
    def headline(self) -> str:
        """The measured ratio and the missed gate, for a failure."""
        return f"{Finding.TOO_NOISY}: {self._ratio}; gate missed: {self.gate}"

    @property
    def evidence(self) -> str:
        """The gate, its ruling and the measured ratio.

        "Met" is not claimed surely: an interval that contains the gate does not miss it.
        """
        ruling = "not decided" if self.measured is None else "missed" if self.missed else "met, or not surely missed"
        return f"gate: {self.gate}: {ruling}: {self._ratio}"

    @property
    def undecided(self) -> str:
        """The addition to a pass if the ratio could not be measured; empty otherwise."""
        return "" if self.measured is not None else f"; gate not decided: {self.gate}: {self._ratio}"

    @property
    def figures(self) -> Mapping[str, float]:
        """The ratio and its lower limit, by name; empty if unmeasured."""
        return {} if self.measured is None else {"gated_verify_noise": self.measured.ratio, "gated_verify_noise_low": self.measured.low}

    @property
    def _ratio(self) -> str:
        """The measured ratio with its lower limit, in words."""
        if self.measured is None:
            return "too few answers report log-probabilities to tell the kernels' noise"
        low = f"{self.measured.low:.2f} or more at {100.0 * (1.0 - self.error):.5g}%"
        higher = "; the scorer's noise counts in both, so the true ratio is higher" if self.measured.ratio > 1.0 else ""
        return f"{self.measured.ratio:.2f} times decode's noise, {low}, over {self.measured.answers:,} answers{higher}"


def gated_noise(captured: Captured, error: float) -> GatedNoise | None:
    """Return the verify kernel's noise beside the gate on it.

    ``error`` is the chance that a kernel exactly at the gate misses it. Returns None if no gate on it is set, for the control, which has no
    verify kernel, and for other families than greedy, since greedy alone judges this gate.
    """
    gate = next((gate for gate in captured.gates if gate.figure == VERIFY_NOISE), None)
    if gate is None or captured.is_control or captured.family is not Family.GREEDY:
        return None
    verify, decode = (answer_scales(draws.answers) for draws in (captured.verify_calibration, captured.calibration))
    measured = noise_ratio(verify, decode, error)
    return GatedNoise(gate=gate, measured=measured, error=error)
