"""Suspicion: evidence that is high and short of the alarm, until later answers settle it."""

from __future__ import annotations

from math import log

__all__ = ["SHORT_BY", "suspicious"]

SHORT_BY = 10.0
"""Suspicion begins at the odds of the alarm divided by this.

Under a correct server evidence reaches ``1/x`` with probability x at most (Ville 1939), so one is suspicious at ``SHORT_BY`` times the
judgement's share of alpha at most. The shares of all judgements that bet add up to less than 8e-4: over a whole run that is 8 in 1,000 at
most. Under a fault that shows, evidence grows by a constant factor per token, and the last factor of ten is a fraction of the way: in
between are runs that were too short by that fraction.
"""


def suspicious(log_peak: float, log_end: float, alpha: float) -> bool:
    """Whether evidence short of the alarm at ``1/alpha`` is not to be passed over; natural logs of its highest and its last value.

    Bets that later answers took back whole, so that less is left than was staked at the beginning, clear it: a correct server loses by
    further answers about what the same fault would win by them.
    """
    return log_peak >= -log(alpha) - log(SHORT_BY) and log_end > 0.0
