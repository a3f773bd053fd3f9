"""The control's word on an alarm: whether the bet that won pays as well where nothing speculates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.conditionals import gather
from pytest_specdec.stats.betting import settled
from pytest_specdec.stats.controlled import DOUBT, Earned, counterpart, difference, least_score
from pytest_specdec.stats.panel import bettors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.controlled import Difference
    from pytest_specdec.stats.observed import Observed

__all__ = ["Compared", "compared", "leaning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One bet on both arms."""

    name: str
    found: Difference
    needed: float
    """Standard errors by which a winner has to pay better here."""
    control_peak: float
    """Highest log wealth of the same bet on the control."""

    @property
    def stands(self) -> bool:
        """Whether an alarm that this bet won is the variant's own: the control has no evidence of its own for it, or clearly less."""
        return self.control_peak < DOUBT or self.found.score >= self.needed

    def __str__(self) -> str:
        mine, theirs = self.found.mine, self.found.theirs
        return f"{self.name!r} earned {mine:+.2%} of its stakes, {theirs:+.2%} on the control: {self.found.score:.1f} standard errors apart"


def leaning(captured: Captured, observed: Observed, winner: Bettor, *, lean: float) -> Compared | None:
    """Return how the ``winner`` does against the control under scores to the power ``1 + lean``; None without a control to bet on."""
    found = _both(captured, observed, [winner], lean)
    return found[0] if found else None


def compared(captured: Captured, observed: Observed, seated: Sequence[Bettor]) -> Compared | None:
    """Return the bet that does best against the control, of all that both arms allow; None without any."""
    return max(_both(captured, observed, seated, 0.0), key=lambda one: one.found.score, default=None)


def _both(captured: Captured, observed: Observed, seated: Sequence[Bettor], lean: float) -> list[Compared]:
    if captured.is_control or captured.control is None:
        return []
    control = gather(captured.as_control(), lean=lean).observed
    if control is None:
        return []
    others = bettors(control)
    needed = least_score(settled(others).peak)
    # Who never bet on the control, as on slots that it does not tell, has nothing to say of it.
    others = tuple(one for one in others if one.log_payoffs.any())
    pairs = [(bettor, other) for bettor in seated if (other := counterpart(bettor, others)) is not None]
    return [
        Compared(
            name=bettor.name,
            found=difference(
                Earned(log_payoffs=bettor.log_payoffs, last=observed.places.last),
                Earned(log_payoffs=other.log_payoffs, last=control.places.last),
            ),
            needed=needed,
            control_peak=float(other.log_payoffs.cumsum().max(initial=0.0)),
        )
        for bettor, other in pairs
    ]
