"""Sampling: emitted tokens follow the baseline's distribution, by a betting test that the control has to pass too.

The baseline's distribution at every emitted token is known, and so are those that known faults would make of it. The evidence, a mixture
of likelihood ratios (stats/betting.py), reaches ``1/alpha`` under a correct server with probability alpha at most, however often one looks.
The test is of the distribution: any exact way of speculating passes.
"""

from __future__ import annotations

from pytest_specdec.judge.sampling.verdict import judge

__all__ = ["judge"]
