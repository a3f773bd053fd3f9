"""Token distributions: the raw distribution after a request's sampling parameters, over the K top tokens and one remainder.

An adjustment is what biases and penalties add to logits; truncation, or a cut, is min-p, top-k and top-p. Masses are probabilities up to a
factor, of N tokens. A change by an unknown amount, as by a repetition penalty, makes a token unsure. The core has the outcomes whose
probabilities are known up to one factor. An emitted token outside the top tokens counts as the remainder, even if its own probability is
known: a separate outcome for it would choose the partition after the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pytest_specdec.stats.raw_distribution import SLACK, raw_probabilities
from pytest_specdec.stats.truncation import (
    InnerNucleus,
    Nucleus,
    TopP,
    Truncation,
    Weights,
    by_mass,
    by_rank,
    by_share,
    inner_nucleus,
    intersection,
    margin,
    nucleus_margin,
)

if TYPE_CHECKING:
    from pytest_specdec.stats.penalties import Adjustment
    from pytest_specdec.stats.raw_distribution import RawDistribution

__all__ = [
    "NOISE",
    "Bools",
    "Floats",
    "Ints",
    "Processing",
    "TokenDistribution",
    "requested",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
VIOLATION = 1e-4
"""Upper bound on the probability that noise alone puts a token beyond the margins."""
NOISE = 0.05
"""Least standard deviation of scoring noise, in nats of log-ratio, that the null hypothesis is widened for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Processing:
    """Sampling parameters, applied in this order: adjustment, temperature, min-p, top-k, top-p; arrays [N]."""

    temperature: Floats
    """Above 0."""
    top_k: Ints
    """0 for all tokens."""
    top_p: Floats
    """1 for all tokens."""
    min_p: Floats | None = None
    """0 for all tokens; None if no request sets it."""
    adjustment: Adjustment | None = None
    """The adjustment by biases and penalties; None if no request sets any."""

    @property
    def shares(self) -> Floats:
        """[N], min-p."""
        return np.zeros(len(self.top_p)) if self.min_p is None else self.min_p

    @property
    def truncates(self) -> Bools:
        """[N], positions cut by min-p, top-k or top-p."""
        return (self.top_k > 0) | (self.top_p < 1.0) | (self.shares > 0.0)

    def adapt_to_bias(self, scoring_bias: float) -> Processing:
        """Return the same parameters, corrected for scores with a bias.

        The raw distribution is the scores to the power ``1 + scoring_bias``, normalised. Temperature and adjustment are divided by it, so
        that the scores give the requested distribution.
        """
        power = 1.0 + scoring_bias
        adjustment = None if self.adjustment is None else self.adjustment.times(1.0 / power)
        return replace(self, temperature=self.temperature / power, adjustment=adjustment)

    def at(self, tokens: Bools) -> Processing:
        """Return the parameters at the marked ``tokens`` [N], without the adjustment.

        The result is for a distribution with other top tokens, as a drafter's; the adjustment has amounts for this one's only.
        """
        min_p = self.shares[tokens]  # 0 if unset
        return Processing(temperature=self.temperature[tokens], top_k=self.top_k[tokens], top_p=self.top_p[tokens], min_p=min_p)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDistribution:
    """The requested distribution at N tokens over K top tokens and, last, the remainder."""

    p: Floats
    """[N, K+1], normalised; exact up to one factor inside ``core``, an estimate outside."""
    core: Bools
    """[N, K+1], outcomes with an exactly known distribution, given that one of them occurs."""
    violation: Bools
    """[N, K+1], outcomes that a correct server emits with probability ``violation_bound`` at most."""
    violation_bound: Floats
    """[N], upper bound on the probability of ``violation`` under a correct server."""
    outcome: Ints
    """[N], index of the emitted token in 0..K."""
    chosen: Floats
    """[N], probability of the emitted token itself; an estimate if ``p`` is."""
    chosen_bound: Floats
    """[N], upper bound on the probability of the emitted token itself; inf if truncation leaves none."""
    chosen_floor: Floats
    """[N], lower bound on it: over all tokens these bounds add up to one at most; 0 if none is known."""
    raw: Floats
    """[N, K+1], the distribution before any sampling parameter."""
    chosen_raw: Floats
    """[N], the raw probability of the emitted token itself; 0 if unknown."""
    inner: InnerNucleus | None = None
    """The nucleus of top_p squared; None if no request sets top_p."""
    top_p: TopP | None = None
    """What top-p cuts; None if no request sets it."""
    noise: Floats | float = NOISE
    """[N] or one for all: the noise of the requested distribution, in nats of log-ratio, that the null hypothesis is widened for.
    Temperature divides logits and noise."""
    jump_rate: float = 0.0
    """Largest share of positions, 0..1, at which a correct server may have any other distribution (stats/jumps.py)."""

    @property
    def information(self) -> float:
        """The sum of Var_p(log p) over tokens, in nats squared, within the core.

        It measures the informative tokens: one with a peaked distribution adds nothing, since it has no choice to show a fault.
        """
        p = np.where(self.core, self.p, 0.0)
        p = p / p.sum(axis=1, keepdims=True)
        surprise = np.log(np.where(p > 0, p, 1.0))
        mean = (p * surprise).sum(axis=1)
        return float(((p * surprise**2).sum(axis=1) - mean**2).sum())

    @property
    def narrower_payoffs(self) -> Floats:
        """[N, K+1], log payoffs of a bet on a nucleus of top_p squared; 0 without top_p."""
        return np.zeros(self.p.shape) if self.inner is None else self.inner.log_payoffs(self.jump_rate)

    def __repr__(self) -> str:
        return f"<Distribution of {len(self.outcome)} tokens over {self.p.shape[1] - 1} top tokens>"


def requested(
    raw: RawDistribution, processing: Processing, noise: float = NOISE, jump_rate: float = 0.0, *, exact: bool = False
) -> TokenDistribution:
    """Return the distribution requested by sampling parameters, applied exactly once.

    It is that of ``raw`` under ``processing``. ``noise`` is that of one logit, nats; ``exact`` servers are off by rounding only.
    ``jump_rate`` is the share of positions, 0..1, at which a correct server may have any other distribution.

    Violations are outcomes that a correct server emits with a bounded probability only. Core and violations follow from what is known:

    - At temperature 1 all outcomes are in the core, and at any temperature if the top tokens are the whole vocabulary. Otherwise only a
      bound of the remainder's mass is known: the core is the top tokens, and below temperature 1 the remainder is a violation.
    - Biases and penalties change top tokens by known amounts: these stay in the core, and so does the remainder if none of its tokens is
      changed. A top token scaled by a repetition penalty leaves the core.
    - Under truncation the core ends a margin before the boundary and violations begin a margin after it: with 0.01 logit noise, a test that
      counts tokens outside the computed nucleus as impossible alarms in 83 of 100 correct runs. Truncation of changed top tokens is known
      only if they are the whole vocabulary; otherwise the core is one token.
    """
    adjusted = _adjust(raw, processing.adjustment)
    weights = _apply_temperature(raw, adjusted, processing.temperature)
    nucleus = nucleus_margin(processing.top_p, processing.temperature, noise, exact=exact)
    cut = _truncate(weights, processing, nucleus, noise)
    distribution = _distribution(_Masses(raw=raw, adjusted=adjusted, weights=weights, processing=processing), cut)
    is_only_cut = _is_cut_by_top_p_alone(processing, adjusted)
    server_noise = (0.0 if exact else noise) / processing.temperature  # by which the server's own nucleus varies
    sets_top_p = bool((processing.top_p < 1.0).any())
    # From the order of the adjusted masses back to that of the scores; the remainder stays last.
    order = np.argsort(np.column_stack([adjusted.order, np.full(len(adjusted.order), adjusted.order.shape[1])]), axis=1)
    return replace(
        distribution,
        p=np.take_along_axis(distribution.p, order, axis=1),
        core=np.take_along_axis(distribution.core, order, axis=1),
        violation=np.take_along_axis(distribution.violation, order, axis=1),
        inner=inner_nucleus(weights, nucleus, is_only_cut) if sets_top_p else None,
        top_p=TopP.of(weights, processing.top_p, is_only_cut, server_noise) if sets_top_p else None,
        noise=noise / processing.temperature,
        jump_rate=jump_rate,
    )


def _truncate(weights: Weights, processing: Processing, nucleus: Nucleus, noise: float) -> Truncation:
    """Return what min-p, top-k and top-p leave, with margins for logit ``noise``."""
    factor = margin(processing.temperature, noise)
    before_top_p = intersection(by_rank(weights, processing.top_k, factor), by_share(weights, processing.shares, factor))
    return by_mass(weights, before_top_p, processing.top_k, nucleus)


def _is_cut_by_top_p_alone(processing: Processing, adjusted: _AdjustedTokens) -> Bools:
    """Return a mask [N] of positions at which top-p alone cuts tokens.

    Top-k, min-p (``shares``), biases and penalties are unset there. The temperature is 1 or below: some engines cut before it, and one
    above 1 then takes mass from the nucleus.
    """
    sets_top_p = (processing.top_p > 0.0) & (processing.top_p < 1.0)
    sets_others = (processing.top_k != 0) | (processing.shares != 0.0) | adjusted.is_changed
    return np.asarray(sets_top_p & ~sets_others & (processing.temperature <= 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _EmittedToken:
    """The requested probability of each emitted token itself, [N], with its limits."""

    estimate: Floats
    upper: Floats
    """inf if truncation leaves none."""
    lower: Floats
    """0 if none is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Masses:
    """The masses at N positions before truncation, top tokens in their adjusted order, and what is known of them."""

    raw: RawDistribution
    adjusted: _AdjustedTokens
    weights: Weights
    processing: Processing

    @property
    def is_unsure(self) -> Bools:
        """[N], positions with a top token changed by an unknown amount."""
        return np.asarray(self.adjusted.unsure.any(axis=1))

    @property
    def is_unresolved(self) -> Bools:
        """[N], positions at which the tokens that truncation cuts off depend on unknown masses."""
        return np.asarray(self.processing.truncates & self.adjusted.is_changed & (~self.raw.lists_vocabulary | self.is_unsure))

    @property
    def is_cooled(self) -> Bools:
        """[N], positions whose remainder a temperature below 1 makes improbable by a known bound."""
        cools = ~self.processing.truncates & (self.processing.temperature < 1.0)
        return np.asarray(cools & np.isfinite(self.weights.remainder_bound) & ~self.is_unsure & ~self.raw.lists_vocabulary)

    def core(self, cut: Truncation) -> Bools:
        """Return the outcomes [N, K+1] of probabilities known up to one factor.

        ``cut`` is what truncation leaves. A top token is left out if it has no mass or is changed by an unknown amount. The remainder is in
        at temperature 1 without truncation, if it has tokens and none of them is changed. Where truncation depends on unknown masses
        (``is_unresolved``) no outcome is in. At a position without any outcome the most probable token stands alone: a bet within a single
        outcome pays nothing.
        """
        core = cut.core.copy()
        core[:, :-1] &= (self.weights.top_tokens > 0) & ~self.adjusted.unsure
        is_plain = (self.processing.temperature == 1.0) & ~self.processing.truncates
        has_remainder = ~self.raw.lists_vocabulary  # the top tokens are not the whole vocabulary
        core[:, -1] = is_plain & has_remainder & ~self.adjusted.elsewhere
        core[self.is_unresolved] = False
        core[~core.any(axis=1), 0] = True
        return core

    def violation(self, cut: Truncation) -> Bools:
        """Return the outcomes [N, K+1] that a correct server hardly emits.

        They are the outcomes that ``cut`` excludes, except at positions where unlisted or unsure tokens decide on that
        (``is_unresolved``). A remainder that a temperature below 1 makes improbable (``is_cooled``) is one too.
        """
        violation = cut.excluded & (self.processing.truncates & ~self.is_unresolved)[:, None]
        violation[:, -1] |= self.is_cooled
        return violation

    def emitted_token(self, p: Floats) -> _EmittedToken:
        """Return the probability of each emitted token itself, with limits.

        ``p`` [N, K+1] is the requested distribution. The emitted token's mass relative to the most probable token's is known, or bounded
        from above. Over the least possible sum of all such masses it gives the upper limit, over the largest the lower one. At temperature
        1, without truncation, biases and penalties, both are the scored probability itself, if the scores have it.
        """
        adjusted, temperature, truncates = self.adjusted, self.processing.temperature, self.processing.truncates
        relative, scored = np.exp((adjusted.chosen - adjusted.logprobs[:, 0]) / temperature), np.exp(adjusted.chosen)
        unchanged = (temperature == 1.0) & ~adjusted.is_changed
        is_left = np.take_along_axis(p, adjusted.outcome(self.raw), axis=1)[:, 0] > 0
        estimate = np.where(is_left, np.minimum(relative * p[:, 0], 1.0), 0.0)
        # A token changed by an unknown amount may have no mass. A sum of 0 bounds nothing: the upper limit is then 1.
        least_sum = np.where(adjusted.unsure, 0.0, self.weights.top_tokens).sum(axis=1)
        upper = np.where(unchanged, scored, np.minimum(relative / np.where(least_sum > 0, least_sum, 1.0), 1.0))
        # A lower limit needs the token's own mass, all top tokens' masses and a bound of the remainder's; the 1.0 is not used.
        has_lower = ~(truncates | adjusted.chosen_is_bound | self.is_unsure) & np.isfinite(self.weights.remainder_bound)
        largest_sum = self.weights.top_tokens.sum(axis=1) + np.where(has_lower, self.weights.remainder_bound, 1.0)
        return _EmittedToken(
            # Half of a mass that is only bounded from above.
            estimate=np.where(adjusted.chosen_is_bound, estimate / 2.0, estimate),
            # Truncation takes an unknown mass from the sum, so that no upper limit is left.
            upper=np.where(truncates, np.inf, np.where(least_sum > 0, upper, 1.0)),
            lower=np.where(has_lower, np.where(unchanged, scored, relative / largest_sum), 0.0),
        )


def _distribution(masses: _Masses, cut: Truncation) -> TokenDistribution:
    """Return the requested distribution, its top tokens in their adjusted order.

    ``p``, ``core`` and ``violation`` are by falling mass after biases and penalties: the caller brings them to the order of the scores,
    which ``outcome`` and ``raw`` have already. ``cut`` is what truncation leaves. Violations are tokens cut off, with the bound VIOLATION,
    and a remainder that a temperature below 1 makes improbable.
    """
    p = _probabilities(masses.weights, cut.included, masses.processing.top_p)
    emitted, raw = masses.emitted_token(p), masses.raw
    return TokenDistribution(
        p=p,
        core=masses.core(cut),
        violation=masses.violation(cut),
        violation_bound=np.where(masses.is_cooled, _cooled_remainder(masses.weights), VIOLATION),
        outcome=raw.outcome,
        chosen=emitted.estimate,
        chosen_bound=emitted.upper,
        chosen_floor=emitted.lower,
        raw=raw_probabilities(raw),
        chosen_raw=np.where(np.isnan(raw.chosen_logprobs), 0.0, np.exp(raw.chosen_logprobs)),
    )


def _probabilities(weights: Weights, included: Bools, top_p: Floats) -> Floats:
    """Return the distribution [N, K+1] over the ``included`` outcomes.

    ``included`` [N, K+1] marks what truncation leaves. If the nucleus cuts the remainder, only its mass inside the nucleus counts.
    """
    mass = np.where(included, np.concatenate([weights.top_tokens, weights.remainder[:, None]], axis=1), 0.0)
    total = weights.top_tokens.sum(axis=1) + weights.remainder
    # What the top tokens leave of the nucleus's mass.
    room = np.where(top_p < 1.0, np.maximum(top_p * total - mass[:, :-1].sum(axis=1), 0.0), np.inf)
    mass[:, -1] = np.minimum(mass[:, -1], room)
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _cooled_remainder(weights: Weights) -> Floats:
    """Return an upper bound [N] on the remainder's probability below temperature 1.

    It is a tenth larger than computed, since the score of the last top token, by which it is computed, is noisy; ``VIOLATION`` is added for
    noise larger than that. It means nothing where the remainder's mass has no finite bound: callers leave these tokens out.
    """
    bound = np.where(np.isfinite(weights.remainder_bound), weights.remainder_bound, 0.0)
    return np.asarray(np.minimum(1.1 * bound / (weights.top_tokens.sum(axis=1) + bound) + VIOLATION, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AdjustedTokens:
    """The top tokens after biases and penalties, by falling mass, with marks of uncertainty."""

    order: Ints
    """[N, K], indices of the raw top tokens."""
    logprobs: Floats
    """[N, K], not normalised."""
    chosen: Floats
    """[N], log-probability of the emitted token on the same scale; an upper bound if unknown."""
    chosen_is_bound: Bools
    """[N], whether ``chosen`` is only that bound."""
    unsure: Bools
    """[N, K], top tokens changed by an unknown amount."""
    is_changed: Bools
    """[N], whether any token was changed."""
    elsewhere: Bools
    """[N], whether a token of the remainder was changed."""
    upwards: Bools
    """[N], whether a token of the remainder may have become more probable."""

    def outcome(self, raw: RawDistribution) -> Ints:
        """Return the index [N, 1] of each emitted token in ``order``.

        It is K for the remainder, which is last in either order.
        """
        width = self.order.shape[1]
        hits = self.order == raw.outcome[:, None]
        return np.asarray(np.where(raw.outcome == width, width, hits.argmax(axis=1))[:, None], dtype=np.int64)


def _adjust(raw: RawDistribution, adjustment: Adjustment | None) -> _AdjustedTokens:
    """Return the top tokens after biases and penalties, by falling mass.

    Without an ``adjustment`` they are those of ``raw``, unchanged. If the scores lack the emitted token's log-probability, it is bounded by
    the last top token's and by the remainder's mass. ``elsewhere`` and ``upwards`` mark a remainder that may have changed, or grown.
    """
    count, unlisted = len(raw.ids), np.isnan(raw.chosen_logprobs)
    nowhere = np.zeros(count, dtype=np.bool_)
    # Of the last top token, whose log-probability no token of the remainder exceeds.
    last = np.where(np.isfinite(raw.logprobs), raw.logprobs, 0.0).min(axis=1)
    unlisted_mass = np.log(np.maximum(1.0 - np.exp(raw.logprobs).sum(axis=1), SLACK))
    chosen = np.where(unlisted, np.minimum(last, unlisted_mass), raw.chosen_logprobs)
    if adjustment is None:
        order = np.broadcast_to(np.arange(raw.ids.shape[1], dtype=np.int64), raw.ids.shape)
        unsure = np.zeros(raw.ids.shape, dtype=np.bool_)
        return _AdjustedTokens(
            order=order,
            logprobs=raw.logprobs,
            chosen=chosen,
            chosen_is_bound=unlisted,
            unsure=unsure,
            is_changed=nowhere,
            elsewhere=nowhere,
            upwards=nowhere,
        )
    logprobs = raw.logprobs + adjustment.top_tokens
    order = np.argsort(-logprobs, axis=1, kind="stable")
    has_remainder = ~raw.lists_vocabulary
    return _AdjustedTokens(
        order=order,
        logprobs=np.take_along_axis(logprobs, order, axis=1),
        # A change by an unknown amount leaves no bound.
        chosen=np.where(adjustment.chosen_unsure, np.inf, chosen + adjustment.chosen),
        chosen_is_bound=unlisted | adjustment.chosen_unsure,
        unsure=np.take_along_axis(adjustment.unsure, order, axis=1),
        is_changed=adjustment.moves,
        elsewhere=adjustment.elsewhere & has_remainder,
        upwards=adjustment.upwards & has_remainder,
    )


def _apply_temperature(raw: RawDistribution, adjusted: _AdjustedTokens, temperature: Floats) -> Weights:
    """Return the masses after temperature T, the remainder's estimated and bounded.

    All are relative to the most probable token's. None of the remainder's tokens is more probable than the last top token, p_K. For T up to
    1, ``remainder * p_K^(1/T-1)`` is therefore a bound of its mass, which is exact at T = 1. Above 1, or if a bias may have raised one of
    its tokens, the bound is inf. If the top tokens are the whole vocabulary it is 0 in any case. Where the bound is not exact, the mass is
    estimated with all tokens of the remainder half as probable as p_K. ``last`` of the result bounds the mass of any single one of them.
    """
    mass = np.exp(raw.logprobs)
    is_listed = raw.outcome < raw.ids.shape[1]
    emitted = np.where(is_listed | np.isnan(raw.chosen_logprobs), 0.0, np.exp(raw.chosen_logprobs))
    # The remainder has at least the emitted token's own mass: a larger denominator makes any likelihood ratio smaller.
    remainder = np.where(raw.lists_vocabulary, 0.0, np.maximum(np.maximum(1.0 - mass.sum(axis=1), SLACK), emitted))
    power, best = 1.0 / temperature, adjusted.logprobs[:, :1]
    top_tokens = np.exp(power[:, None] * (adjusted.logprobs - best))
    relative = np.exp(-power * best[:, 0])  # from masses to those relative to the most probable token's
    last = np.where(mass > 0, mass, 1.0).min(axis=1)
    is_bounded = ((power >= 1.0) & ~adjusted.upwards) | raw.lists_vocabulary
    bound = np.where(is_bounded, remainder * last ** (power - 1.0) * relative, np.inf)
    is_exact = (power == 1.0) & is_bounded
    estimate = np.where(is_exact, bound, remainder * (last / 2.0) ** (power - 1.0) * relative)
    largest_token = np.where(adjusted.upwards, np.inf, np.where(raw.lists_vocabulary, 0.0, last**power * relative))
    return Weights(top_tokens=top_tokens, remainder=estimate, remainder_bound=bound, last=largest_token)
