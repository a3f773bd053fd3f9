"""Laws of emitted tokens on a coarsened outcome space: the K most probable tokens are atoms, everything else is one tail atom.

A chosen token outside the atoms is the tail atom, whatever else is known of it: to look would be to choose the partition after the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Bools", "Floats", "Ints", "Law", "Processing", "Raw", "requested"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

SLACK = 1e-6
"""Smallest mass of the tail atom: float32 servers and rounded logprobs know a sum of probabilities no better."""
NUCLEUS_MARGIN = 0.05
"""Cumulative mass on either side of ``top_p`` in which nothing is bet: scoring noise moves tokens across the boundary."""
RANK_MARGIN = 2
"""Ranks on either side of ``top_k`` in which nothing is bet."""
VIOLATION = 1e-4
"""Upper bound on the chance that noise alone puts a token beyond the margins."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Raw:
    """The unprocessed law (temperature 1, nothing truncated) at N tokens, with K atoms each by falling probability."""

    ids: Ints
    """[N, K]; -1 where a position has fewer atoms."""
    logprobs: Floats
    """[N, K], natural logs; -inf where a position has fewer atoms."""
    chosen: Ints
    """[N], the emitted token ids."""
    chosen_logprobs: Floats
    """[N], of the emitted tokens, also outside the atoms."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Processing:
    """What the requests ask to be done to the raw law, in this order: temperature, top-k, top-p; arrays [N]."""

    temperature: Floats
    """Above 0."""
    top_k: Ints
    """0 for all tokens."""
    top_p: Floats
    """1 for all tokens."""

    @property
    def truncates(self) -> Bools:
        """[N], whether top-k or top-p cuts anything off."""
        return (self.top_k > 0) | (self.top_p < 1.0)

    def at(self, tokens: Bools) -> Processing:
        """Return what is asked at the marked ``tokens`` [N] only."""
        return Processing(temperature=self.temperature[tokens], top_k=self.top_k[tokens], top_p=self.top_p[tokens])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Law:
    """The requested law at N tokens over K atoms and, last, the tail atom."""

    p: Floats
    """[N, K+1], normalised; exact up to one factor inside ``core``, an estimate elsewhere."""
    core: Bools
    """[N, K+1], outcomes among which the law is known exactly given that one of them occurs."""
    violation: Bools
    """[N, K+1], outcomes that a correct server hardly ever emits."""
    violation_bound: Floats
    """[N], upper bound on the probability of ``violation`` under a correct server."""
    outcome: Ints
    """[N], index of the emitted token in 0..K."""
    chosen: Floats
    """[N], probability of the emitted token itself; an estimate where ``p`` is."""
    chosen_bound: Floats
    """[N], upper bound on the probability of the emitted token itself; inf where truncation leaves none."""

    @property
    def information(self) -> float:
        """Return the sum over tokens of Var_p(log p) in nats squared, which a peaked law does not have: the informative tokens."""
        p = np.where(self.core, self.p, 0.0)
        p = p / p.sum(axis=1, keepdims=True)
        surprise = np.log(np.where(p > 0, p, 1.0))
        mean = (p * surprise).sum(axis=1)
        return float(((p * surprise**2).sum(axis=1) - mean**2).sum())

    def __repr__(self) -> str:
        return f"<Law of {len(self.outcome)} tokens over {self.p.shape[1] - 1} atoms>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weights:
    """Unnormalised masses after temperature, relative to the most probable token."""

    atoms: Floats
    """[N, K]."""
    tail: Floats
    """[N], estimated; exact at temperature 1."""
    tail_bound: Floats
    """[N], upper bound; inf above temperature 1."""


def requested(raw: Raw, processing: Processing) -> Law:
    """Return the law that ``processing`` makes of ``raw``, applied exactly once.

    Temperature 1 is exact. Otherwise the mass of the tail after temperature is bounded only, so the core is the atoms; below temperature 1
    the bound makes the tail an outcome that can be bet on. Under truncation the core ends a margin before the boundary and the violations
    begin a margin behind it: with 0.01 logit noise a test that takes tokens outside its own nucleus for impossible alarms in 83 of 100
    correct runs (facts/statistics.md section 2).
    """
    outcome = _outcomes(raw)
    weights = _tempered(raw, processing.temperature)
    ranks = _by_rank(weights, processing.top_k)
    nucleus = _by_mass(weights, ranks.kept, processing)
    p = _estimate(weights, nucleus.kept, processing.top_p)
    core = ranks.core & nucleus.core
    core[:, :-1] &= weights.atoms > 0
    core[:, -1] = (processing.temperature == 1.0) & ~processing.truncates
    violation = (ranks.far | nucleus.far) & processing.truncates[:, None]
    cooled = ~processing.truncates & (processing.temperature < 1.0)
    violation[:, -1] |= cooled
    bound = np.where(cooled, _cooled_tail(weights), VIOLATION)
    relative = np.exp((raw.chosen_logprobs - raw.logprobs[:, 0]) / processing.temperature)
    return Law(
        p=p,
        core=core,
        violation=violation,
        violation_bound=bound,
        outcome=outcome,
        chosen=np.where(np.take_along_axis(p, outcome[:, None], axis=1)[:, 0] > 0, relative * p[:, 0], 0.0),
        chosen_bound=np.where(processing.truncates, np.inf, _chosen_bound(raw, relative / weights.atoms.sum(axis=1), processing)),
    )


def _outcomes(raw: Raw) -> Ints:
    hits = raw.ids == raw.chosen[:, None]
    return np.asarray(np.where(hits.any(axis=1), hits.argmax(axis=1), raw.ids.shape[1]), dtype=np.int64)


def _tempered(raw: Raw, temperature: Floats) -> _Weights:
    """Bound the tail by ``tail * p_K^(1/T-1)``: none of its tokens is more probable than the last atom."""
    mass = np.exp(raw.logprobs)
    seen = raw.ids == raw.chosen[:, None]
    unseen = np.where(seen.any(axis=1), 0.0, np.exp(raw.chosen_logprobs))
    # The emitted token's own mass is part of the tail: a larger denominator, so a smaller payoff, whatever the outcome.
    tail = np.maximum(np.maximum(1.0 - mass.sum(axis=1), SLACK), unseen)
    power = 1.0 / temperature
    top = raw.logprobs[:, :1]
    atoms = np.exp(power[:, None] * (raw.logprobs - top))
    scale = np.exp(-power * top[:, 0])
    last = np.where(mass > 0, mass, 1.0).min(axis=1)
    bound = np.where(power >= 1.0, tail * last ** (power - 1.0) * scale, np.inf)
    estimate = np.where(power == 1.0, bound, tail * (last / 2.0) ** (power - 1.0) * scale)
    return _Weights(atoms=atoms, tail=estimate, tail_bound=bound)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cut:
    """What a truncation does to the outcomes, masks [N, K+1]."""

    kept: Bools
    core: Bools
    """Safely kept."""
    far: Bools
    """Safely cut."""


def _by_rank(weights: _Weights, top_k: Ints) -> _Cut:
    """Cut by top-k; the tail begins at rank K."""
    rank = np.arange(weights.atoms.shape[1] + 1)[None, :]
    k = np.where(top_k > 0, top_k, np.iinfo(np.int64).max - RANK_MARGIN)[:, None]
    return _Cut(kept=rank < k, core=(rank < k - RANK_MARGIN) | (rank == 0), far=rank >= k + RANK_MARGIN)


def _by_mass(weights: _Weights, kept: Bools, processing: Processing) -> _Cut:
    """Cut what top-k ``kept`` by top-p, each way with the normaliser that is the less favourable."""
    mass = np.where(kept, np.concatenate([weights.atoms, weights.tail[:, None]], axis=1), 0.0)
    before = mass.cumsum(axis=1) - mass
    cumulative = weights.atoms.cumsum(axis=1)
    least, most = _least(weights, processing.top_k), _most(weights, processing.top_k)
    until = np.concatenate([cumulative / least[:, None], np.ones((len(least), 1))], axis=1)
    since = np.concatenate([np.zeros((len(most), 1)), cumulative], axis=1) / most[:, None]
    limit, whole = processing.top_p[:, None], (processing.top_p >= 1.0)[:, None]
    core = whole | (until <= limit - NUCLEUS_MARGIN)
    core[:, 0] = True
    return _Cut(
        kept=kept & (whole | (before < limit * mass.sum(axis=1, keepdims=True))),
        core=core,
        far=~whole & (since >= limit + NUCLEUS_MARGIN),
    )


def _least(weights: _Weights, top_k: Ints) -> Floats:
    """Return the smallest sum of masses [N] that top-p may have seen after top-k."""
    k = top_k[:, None]
    surely = (k == 0) | (np.arange(weights.atoms.shape[1])[None, :] < np.maximum(k - RANK_MARGIN, 1))
    exact_tail = (top_k == 0) & (weights.tail == weights.tail_bound)
    return np.asarray(np.where(surely, weights.atoms, 0.0).sum(axis=1) + np.where(exact_tail, weights.tail, 0.0))


def _most(weights: _Weights, top_k: Ints) -> Floats:
    """Return the largest sum of masses [N] that top-p may have seen after top-k."""
    k, width = top_k[:, None], weights.atoms.shape[1]
    perhaps = (k == 0) | (np.arange(width)[None, :] < k + RANK_MARGIN)
    open_tail = (top_k == 0) | (top_k + RANK_MARGIN > width)
    return np.asarray(np.where(perhaps, weights.atoms, 0.0).sum(axis=1) + np.where(open_tail, weights.tail_bound, 0.0))


def _estimate(weights: _Weights, kept: Bools, top_p: Floats) -> Floats:
    """Return the law [N, K+1] over what is ``kept``; of a tail that the nucleus ends in, the part inside."""
    mass = np.where(kept, np.concatenate([weights.atoms, weights.tail[:, None]], axis=1), 0.0)
    total = weights.atoms.sum(axis=1) + weights.tail
    room = np.where(top_p < 1.0, np.maximum(top_p * total - mass[:, :-1].sum(axis=1), 0.0), np.inf)
    mass[:, -1] = np.minimum(mass[:, -1], room)
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _cooled_tail(weights: _Weights) -> Floats:
    """Return the upper bound [N] on the tail's probability, a tenth wider for the noise of the last atom."""
    bound = np.where(np.isfinite(weights.tail_bound), weights.tail_bound, 0.0)
    return np.asarray(np.minimum(1.1 * bound / (weights.atoms.sum(axis=1) + bound) + VIOLATION, 1.0))


def _chosen_bound(raw: Raw, without_tail: Floats, processing: Processing) -> Floats:
    """Return the emitted token's probability [N], exact at temperature 1; elsewhere as if the tail had none."""
    return np.where(processing.temperature == 1.0, np.exp(raw.chosen_logprobs), without_tail)
