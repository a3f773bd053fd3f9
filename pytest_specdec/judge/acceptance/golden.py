"""Golden acceptance: the accepted length of a workload against the floor that another project's file gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance.length import describe_length, drafted_length
from pytest_specdec.judge.acceptance.stored import depends_on_load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.judge.acceptance.length import AcceptanceLength
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.golden import GoldenFloor

__all__ = ["BELOW_GOLDEN", "TO_CHANGE", "GoldenComparison", "compare_with_golden"]

BELOW_GOLDEN = "fewer draft tokens are accepted than the golden file asks"
TO_CHANGE = "to change    gates.acceptance_length in the config: another entry under golden, or at_least, measured with these prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenComparison:
    """The length of one workload, as a golden file counts it, with its floor."""

    gate: Gate
    floor: GoldenFloor
    length: AcceptanceLength | None
    """Tokens per step with a draft; None if it is unknown which steps had one."""
    not_gated: str = ""
    """Why the floor decides nothing and the length is only shown; empty where the floor decides."""

    @property
    def caveat(self) -> str:
        """The conditions that were not compared, for a headline; empty where the floor decides nothing."""
        return "" if self.not_gated else self.floor.caveat

    @property
    def lines(self) -> tuple[str, ...]:
        """The evidence: the length there and here with its floor, then the floor's caveat."""
        golden_mean = "" if self.floor.length is None else f"{self.floor.length:.3g} there, "
        both_lengths = f"{golden_mean}{describe_length(self.length)} with a draft here, the bonus token counted in both"
        use = f"shown, not gated: {self.not_gated}" if self.not_gated else f"floor: {self.floor.origin}"
        return (f"golden: {both_lengths}; {use} ({self.floor.source})", self.floor.caveat)

    @property
    def figures(self) -> Mapping[str, float]:
        """The numbers by name; unknown ones are left out."""
        numbers = {
            "golden_floor": self.floor.at_least,
            "golden_length": self.floor.length,
            "acceptance_length_drafted": None if self.length is None else self.length.tokens,
        }
        return {name: value for name, value in numbers.items() if value is not None}


def compare_with_golden(captured: Captured) -> GoldenComparison | None:
    """Return the variant's accepted length beside its golden floor.

    A golden floor is a lowest accepted length taken from another project's file, in tokens per step with a draft. It decides only if all
    requests are at temperature 0: acceptance then depends on the prompts, not on chance or the machine. Drafting must not depend on the
    load either. Otherwise the length is only shown. Returns None if no gate of the variant has such a floor.
    """
    gate = next((gate for gate in captured.gates if gate.golden is not None), None)
    if gate is None or gate.golden is None:
        return None
    length = drafted_length(captured.speculative, captured.workload, captured.pair.variant.draft)
    return GoldenComparison(gate=gate, floor=gate.golden, length=length, not_gated=_why_not_gated(captured))


def _why_not_gated(captured: Captured) -> str:
    """Return the reason for a golden floor that decides nothing; else empty."""
    if not all(request.greedy for request in captured.workload.requests):
        return "these answers are sampled"
    return "drafting depends on load" if depends_on_load(captured) else ""
