"""The control of sampling: evidence against the judged arm beside that against the control, a second boot of the baseline.

A bettor bets on one fault: at each token its payoff is the likelihood ratio of that fault to a correct server, and their product is its
evidence. The baseline scores the tokens of both arms. Wrong scores therefore pay a bettor on either arm, a fault of speculation on one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.sampling.data import gather
from pytest_specdec.judge.tolerance import has_exact_kernels
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.control_difference import DOUBT, Earnings, counterpart, difference, least_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.control_difference import ControlDifference
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["ControlComparison", "compare_at_bias", "compare_with_control"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlComparison:
    """The evidence for one fault on the judged arm and on the control."""

    name: str
    difference: ControlDifference
    needed: float
    """Standard errors by which the evidence has to be stronger on the judged arm."""
    control_peak: float
    """Highest log evidence of the same fault on the control."""

    @property
    def holds(self) -> bool:
        """True if the alarm is the variant's own.

        For the same fault the control then has no evidence, or clearly weaker evidence than the judged arm.
        """
        if self.control_peak < DOUBT:  # the likelihood ratio never reached 10
            return True
        return self.difference.score >= self.needed  # in standard errors

    def __str__(self) -> str:
        # The difference has mean payoffs less the stake of 1.
        arm, control = 1.0 + self.difference.arm, 1.0 + self.difference.control
        apart = f"{self.difference.score:.1f} standard errors apart"
        return f"mean likelihood ratio for {self.name!r} {arm:.3f}, on the control {control:.3f} ({apart})"


def compare_at_bias(
    captured: Captured, observed: Observed, winner: Bettor, *, scoring_bias: float, exact: bool | None = None
) -> ControlComparison | None:
    """Return the ``winner``'s evidence beside the control's, for biased scores.

    The ``winner`` is the bettor with most evidence on the judged arm, whose tokens are ``observed``. With biased scores the correct
    distribution is the scored one to the power ``1 + scoring_bias``. ``observed`` has it for the judged arm's tokens, and the control's are
    gathered with the same power here. ``exact`` says whether both arms differ from their scores by rounding only; None leaves that to the
    run's calibrations. Returns None for the control itself, without a control, or if nobody bets on the same fault there.
    """
    exact = has_exact_kernels(captured) if exact is None else exact
    comparisons = _compare_with_control(captured, observed, [winner], scoring_bias, exact=exact)
    return comparisons[0] if comparisons else None


def compare_with_control(captured: Captured, observed: Observed, panel: Sequence[Bettor]) -> ControlComparison | None:
    """Return the comparison for the fault with most evidence beyond the control's.

    Most is by the difference in standard errors. Scores are taken as they are, without a bias. ``panel`` has the bettors on the judged
    arm's tokens ``observed``. Returns None without a control, or if none of them bets on the control's tokens too.
    """
    comparisons = _compare_with_control(captured, observed, panel, 0.0, exact=has_exact_kernels(captured))
    return max(comparisons, key=lambda comparison: comparison.difference.score, default=None)


def _compare_with_control(
    captured: Captured, observed: Observed, panel: Sequence[Bettor], scoring_bias: float, *, exact: bool
) -> list[ControlComparison]:
    """Return the evidence of each bettor of ``panel`` beside the control's.

    ``observed`` are the judged arm's tokens, on which the panel has bet. The control's tokens are gathered with the ``scoring_bias`` and
    ``exact`` of the judged arm (:func:`gather`). A bettor is left out if none on the same fault has bet on the control's tokens. Empty for
    the control itself, without a control, or if it has no tokens to judge.
    """
    if captured.is_control or captured.control is None:
        return []
    control = gather(captured.as_control(), scoring_bias=scoring_bias, exact=exact).observed
    if control is None:
        return []
    control_bettors = bettors(control)
    # Standard errors: more are needed if the control has evidence against itself, since its scores are then doubtful.
    needed = least_score(wealth_process(control_bettors).peak)
    # Without a bet all log payoffs are 0: so it is for bets on places in verify steps, which the control does not report.
    with_bets = tuple(bettor for bettor in control_bettors if bettor.log_payoffs.any())
    pairs = [(bettor, control_bettor) for bettor in panel if (control_bettor := counterpart(bettor, with_bets)) is not None]
    return [
        ControlComparison(
            name=bettor.name,
            # ``last`` marks the ends of answers, over which the standard error is taken.
            difference=difference(
                Earnings(log_payoffs=bettor.log_payoffs, last=observed.slots.last),
                Earnings(log_payoffs=control_bettor.log_payoffs, last=control.slots.last),
            ),
            needed=needed,
            control_peak=float(control_bettor.log_payoffs.cumsum().max(initial=0.0)),
        )
        for bettor, control_bettor in pairs
    ]
