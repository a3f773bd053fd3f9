"""The control's veto of an alarm: it needs evidence of its own."""

from __future__ import annotations

from math import log

import pytest

from pytest_specdec.judge.sampling import ControlComparison
from pytest_specdec.stats.betting import ControlDifference


@pytest.mark.parametrize(
    "score, control_peak, holds",
    [
        pytest.param(1.0, 0.0, True, id="a control that earned nothing excuses nothing, however few bets both made"),
        pytest.param(1.0, log(9.9), True, id="nor one whose bet came to less than ten"),
        pytest.param(1.0, log(10.1), False, id="the same bet pays on the control as well"),
        pytest.param(4.0, log(10.1), True, id="it pays clearly better on the variant"),
    ],
)
def test_a_veto_needs_wealth_of_the_controls_own(score, control_peak, holds):
    found = ControlDifference(arm=0.1 * score, control=0.0, error=0.1, answers=40)
    assert ControlComparison(name="tilt", found=found, needed=2.5, control_peak=control_peak).holds is holds
