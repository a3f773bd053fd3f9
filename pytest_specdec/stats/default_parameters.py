"""Default parameters: whether two servers draw under the same sampling parameters where a request states none.

Which parameters a server takes is not known, so that neither side's tokens can be bet on against a known distribution. Each of a grid of
temperatures and truncations gives the tokens of one server a likelihood, from the distribution of one scorer. The evidence is that of
universal inference (Wasserman, Ramdas and Balakrishnan, PNAS 2020): the weighted mean likelihood over the grid, of each server apart, over
the largest that one choice gives to both. Under equal parameters out of the grid its mean is one at most, and by Markov's inequality it
reaches 1/alpha with probability alpha at most. Parameters between those of the grid cost both sides alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from pytest_specdec.stats.raw_distribution import raw_probabilities
from pytest_specdec.stats.token_distribution import Processing, requested

if TYPE_CHECKING:
    from pytest_specdec.stats.raw_distribution import RawDistribution
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["GRID", "DefaultParameters", "DefaultsComparison", "compare", "log_evidence", "log_likelihoods"]

_TEMPERATURES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0)
_TRUNCATIONS = ((0, 1.0), (10, 1.0), (20, 1.0), (40, 1.0), (64, 1.0), (0, 0.95), (0, 0.9), (0, 0.8), (20, 0.95), (20, 0.8), (40, 0.95))
"""top_k and top_p, as published checkpoints and engines have them."""
_LEAK = 1e-3
"""Share of tokens that may be drawn outside of what the parameters leave: noise moves the boundary of a truncation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultParameters:
    """Sampling parameters of the grid."""

    temperature: float
    top_k: int
    """0 for all tokens."""
    top_p: float

    def __str__(self) -> str:
        """Return the line that people read."""
        cuts = (f"top_k {self.top_k}" if self.top_k else "", f"top_p {self.top_p:g}" if self.top_p < 1.0 else "")
        return ", ".join((f"temperature {self.temperature:g}", *filter(None, cuts)))


GRID = tuple(
    DefaultParameters(temperature=temperature, top_k=top_k, top_p=top_p)
    for temperature, (top_k, top_p) in product(_TEMPERATURES, _TRUNCATIONS)
)
NEUTRAL = DefaultParameters(temperature=1.0, top_k=0, top_p=1.0)


def _weights() -> Floats:
    """Return the weights of the grid's parameters in the mean likelihood.

    They are [G], for the G elements of GRID. A third belongs to the neutral parameters, a third to those with a temperature alone, a third
    to all others, evenly within each.
    """
    # 0 for the neutral parameters, 1 for a temperature alone, 2 for a truncation.
    kinds = [(parameters.top_k > 0 or parameters.top_p < 1.0) + (parameters != NEUTRAL) for parameters in GRID]
    return np.array([1.0 / 3.0 / kinds.count(kind) for kind in kinds])


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultsComparison:
    """The likeliest default parameters of two servers, and the evidence that they are not the same."""

    old: DefaultParameters
    new: DefaultParameters
    log_evidence: float
    """Natural log."""
    old_tokens: int
    new_tokens: int


def compare(old: RawDistribution, new: RawDistribution) -> DefaultsComparison:
    """Return the likeliest default parameters of two servers, and the evidence.

    The evidence is that the parameters are not the same. ``old`` and ``new`` have the tokens that each server drew, independently, where
    requests state no parameters, with their distributions by one scorer for both.
    """
    old_likelihoods, new_likelihoods = log_likelihoods(old).sum(axis=1), log_likelihoods(new).sum(axis=1)
    return DefaultsComparison(
        old=GRID[int(old_likelihoods.argmax())],
        new=GRID[int(new_likelihoods.argmax())],
        log_evidence=log_evidence(old_likelihoods, new_likelihoods),
        old_tokens=len(old.chosen),
        new_tokens=len(new.chosen),
    )


def log_evidence(old: Floats, new: Floats) -> float:
    """Return the natural log of the evidence against equal parameters.

    ``old`` and ``new`` are the log-likelihoods [G] of each server's tokens under each element of GRID. The evidence is the weighted mean
    likelihood of either over the grid, multiplied, over the largest likelihood of both under one element. Under equal parameters it is e^x
    or more with probability e^-x at most (module docstring).
    """
    weights = _weights()
    return float(logsumexp(old, b=weights) + logsumexp(new, b=weights) - (old + new).max())


def log_likelihoods(raw: RawDistribution) -> Floats:
    """Return the log-likelihood of each token under each default parameter.

    It is [G, N], for the G elements of GRID and the N emitted tokens of ``raw``. A share _LEAK of tokens may be outside of what the
    parameters leave.
    """
    n, untouched = len(raw.chosen), raw_probabilities(raw)  # untouched by any parameter: the leak is drawn from it
    rows = np.arange(n)
    values = []
    for parameters in GRID:
        processing = Processing(
            temperature=np.full(n, parameters.temperature),
            top_k=np.full(n, parameters.top_k, dtype=np.int64),
            top_p=np.full(n, parameters.top_p),
        )
        distribution = requested(raw, processing)
        chosen = distribution.outcome
        values.append(np.log((1.0 - _LEAK) * distribution.p[rows, chosen] + _LEAK * untouched[rows, chosen] + 1e-300))
    return np.array(values)
