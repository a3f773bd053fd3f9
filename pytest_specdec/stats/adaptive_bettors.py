"""Adaptive bettors: bets that learn from earlier tokens how the unknown distribution of a drafter differs from the target's.

A view is the distribution m that a bettor expects in place of the target's p; a window is the tokens of one verify step. The view on a
token depends on the tokens before it and on whether their windows went on, never on the token itself or its own window: it is a predictable
plug-in (Waudby-Smith and Ramdas, arXiv 2010.09686, section 3), so that its mean payoff under a correct server is one at most. A recovered
token replaces a rejected draft token. In a correct verify step ``P(recovered | x) = max(0, 1 - q(x)/p(x))``: earlier windows show token by
token how far the draft's q falls short of p. Arrays are over N tokens, or M of them, and K top tokens with the remainder.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_specdec.stats import betting
from pytest_specdec.stats.betting import Bettor, unit_bettor
from pytest_specdec.stats.draft_distribution import at_drafts
from pytest_specdec.stats.fault_models import CATALOGUE, Fault
from pytest_specdec.stats.verify_slots import REMAINDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, TokenDistribution
    from pytest_specdec.stats.verify_slots import Observed

__all__ = [
    "ADAPTIVE_BETTORS",
    "ALLOWANCE",
    "GUESSES",
    "AdaptiveBettor",
    "AdaptiveInputs",
    "adaptive_inputs",
    "adaptive_panel",
    "core_distribution",
    "guess_draft",
]

ALLOWANCE = 0.01
"""Distance of a correct server's distribution p' from the scored p, at every context anew: the root of ``sum p (p'/p - 1)^2``."""
STEEPEST = 8.0
"""Largest exponent of a tilt, so that no exponential overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveBettor:
    """A learner of slopes s of the view ``m = p exp(s . features)``, normalised, with a bettor for each of its ``spreads``.

    It learns by online Newton steps on the likelihood of the emitted tokens. All slopes start at 0 except that on the rate of recovered
    tokens, since any fault of acceptance or recovery makes the tokens that are often recovered less probable.
    """

    start: float
    """First slope on that rate."""
    prior_tokens: float
    """Weight of the first slopes, as Fisher information in tokens."""
    spreads: tuple[float, ...] = (0.0,)
    """Standard deviations of ``ln m/p`` around the tilt at each context, estimated from the counts at it; 0 for none."""
    bonus: bool = False
    """Whether it learns and bets at bonus slots instead of draft slots."""

    @property
    def plain_name(self) -> str:
        """Name of the bettor on the tilt alone, at draft slots."""
        return f"learned {'boldly' if self.start < ADAPTIVE_BETTORS[0].start else 'carefully'}"

    def name(self, spread: float) -> str:
        """Return the name of the bettor with this ``spread``."""
        return self.plain_name + (f", and by context ({spread:g})" if spread else "") + (" at the bonus" if self.bonus else "")

    def learn_views(self, distribution: TokenDistribution, features: Floats) -> Floats:
        """Return the view learned so far, at each token of ``distribution``.

        It is [M, K+1], from ``features`` [M, K+1, F]; the last is the rate, the estimated probability that the token, once emitted,
        replaced a rejected draft token. p and view are conditioned on the core, the outcomes whose p is known up to one factor: a token
        emitted outside has no likelihood. Slopes change after each block of tokens, so that a view depends on earlier blocks only. The
        change is a Newton step: the gradient of the log-likelihood of the block's emitted tokens, divided by the Fisher information so far.
        """
        p, views = core_distribution(distribution), np.empty(distribution.p.shape)
        slopes, information = np.zeros(features.shape[2]), self.prior_tokens * np.eye(features.shape[2])
        slopes[-1] = self.start  # the first guess at the slope on the rate
        in_core = betting.at_outcome(distribution.core.astype(np.float64), distribution)  # 1 if emitted there, else 0
        for first in range(0, len(p), BLOCK):
            block = slice(first, first + BLOCK)
            views[block] = m = _normalise(p[block] * np.exp((features[block] @ slopes).clip(-STEEPEST, STEEPEST)))
            # The gradient of log m by the slopes, for each outcome.
            centred = features[block] - (m[:, :, None] * features[block]).sum(axis=1, keepdims=True)
            # The Fisher information of the block: the sum over its tokens of the features' covariance under m.
            weighted = (np.sqrt(m)[:, :, None] * centred).reshape(-1, len(slopes))
            information = information + weighted.T @ weighted
            gradients = np.take_along_axis(centred, distribution.outcome[block, None, None], axis=1)[:, 0]  # at the emitted tokens
            slopes = slopes + np.linalg.solve(information, in_core[block] @ gradients)
        return views


ADAPTIVE_BETTORS = (
    AdaptiveBettor(start=-0.06, prior_tokens=1000.0, spreads=(0.0, 0.1, 0.2)),
    AdaptiveBettor(start=-0.16, prior_tokens=1000.0, spreads=(0.0, 0.1)),
    AdaptiveBettor(start=-0.16, prior_tokens=200.0, bonus=True),
)


GUESSES = tuple(
    alternative for alternative in CATALOGUE if alternative.name in {"lenient acceptance 1.25 p/q", "lenient acceptance 1.05 p/q"}
)
"""Faults that are bet on with a guess at the draft's distribution from the learned rates; more faults earned no more."""
OF_GUESS = " of drafts as accepted before"


def adaptive_panel(observed: Observed, *, allowance: float = ALLOWANCE) -> tuple[Bettor, ...]:
    """Return the bettors learning an unknown drafter, of equal weights.

    They are those of ADAPTIVE_BETTORS, and those on the faults in GUESSES with a draft guessed from the learned rates; empty if contexts or
    previous tokens are unknown. Tokens are in the order in which they are judged, answer by answer. The bets are valid for every
    distribution p' within ``allowance`` of p, the root of ``sum p (p'/p - 1)^2``, over the core, the outcomes of known p. The mean of a
    payoff e is at most ``1 + allowance sd_p(e)`` under p' (Cauchy and Schwarz), and each payoff is divided by that.
    """
    if observed.contexts is None or observed.previous is None:
        return ()
    slots, learned = observed.slots, adaptive_inputs(observed, observed.contexts, observed.previous)
    # A token of an unknown window may be at a draft slot, and is bet on too; nothing is learned of its recovery.
    at_draft = slots.draft_slot | ~slots.known
    adapted: list[Bettor] = []
    for adaptive in ADAPTIVE_BETTORS:
        here = slots.bonus_slot if adaptive.bonus else at_draft
        adapted.extend(_learned_bettors(adaptive, observed.distribution, learned, here, allowance))
    return (*adapted, *_guess_bettors(observed, learned, allowance))


def guess_draft(distribution: TokenDistribution, learned: AdaptiveInputs) -> Floats:
    """Return the draft distribution learned from rates of recovered tokens.

    It is ``q ~ p (1 - rate)``, normalised, in the core, the outcomes of known p, and 0 outside, [N, K+1]. A token x that a correct server
    emitted at a draft slot replaced a rejected draft token with probability ``max(0, 1 - q(x)/p(x))``. ``rate`` is the learned estimate of
    that: q falls short of p by it. Rates do not show by how much q exceeds p at other tokens; that mass is spread in proportion. If no
    windows are known, the result is p in the core.
    """
    # With the floor some mass is left to normalise, even if all rates are 1.
    return _normalise(core_distribution(distribution) * np.maximum(1.0 - learned.rate, LEAST_ACCEPTED))


def _guess_bettors(observed: Observed, learned: AdaptiveInputs, allowance: float) -> Iterator[Bettor]:
    """Yield the bettors on acceptance faults (GUESSES) with a guessed draft.

    The draft's distribution q is estimated from ``learned``, the rates of recovered tokens among earlier ones (:func:`guess_draft`). They
    bet at known draft slots only. ``allowance`` is a correct server's distance from p that the payoffs are lowered for.
    """
    at_drafts_only = observed.slots.draft_slot
    part = _select_tokens(observed.distribution, at_drafts_only)
    p = core_distribution(observed.distribution)[at_drafts_only]
    q = guess_draft(observed.distribution, learned)[at_drafts_only]
    for alternative in GUESSES:
        paid = np.zeros(observed.tokens)
        paid[at_drafts_only] = _log_payoffs(part, at_drafts(alternative, p, q), allowance)
        yield unit_bettor(alternative.name + OF_GUESS, Fault.RULE, paid, guessed=True, variation_of=(alternative.name,))


def _learned_bettors(
    adaptive: AdaptiveBettor, distribution: TokenDistribution, learned: AdaptiveInputs, here: Bools, allowance: float
) -> Iterator[Bettor]:
    """Yield the bettors of ``adaptive``, one for each of its spreads.

    They learn and bet at the tokens marked by ``here`` [N] only. The view learned over all contexts is moved towards the tokens seen at a
    token's own context (prompt and answer so far): a ``spread`` is the standard deviation of ``ln m/p`` that contexts are taken to have
    around that view, 0 for none. ``allowance`` is a correct server's distance from p that the payoffs are lowered for.
    """
    part, seen = _select_tokens(distribution, here), learned.seen[here]
    view = adaptive.learn_views(part, learned.features[here])
    for spread in adaptive.spreads:
        paid = np.zeros(len(here))
        paid[here] = _log_payoffs(part, tilt_by_counts(view, seen, spread), allowance)
        name, fault = adaptive.name(spread), Fault.BONUS if adaptive.bonus else Fault.RULE
        # All others are variations of the bettor without a spread, at draft slots.
        variation_of = (adaptive.plain_name,) if name != adaptive.plain_name else ()
        yield unit_bettor(name, fault, paid, guessed=True, variation_of=variation_of)


def tilt_by_counts(view: Floats, seen: Floats, spread: float) -> Floats:
    """Return a view tilted by earlier tokens at the same context.

    It is ``m = v exp((n - N v) / (N v + 1 / spread^2))``, normalised, [M, K+1], for M tokens. v is ``view`` [M, K+1], and ``seen`` [M, K+1]
    has n: of N earlier tokens at the context n were this outcome, N v being expected. The exponent estimates ``t = ln m/v``. By the prior t
    is normal around 0 with standard deviation ``spread``, and n is Poisson with mean ``N v e^t``: to first order in t, the exponent is
    then the most probable t. Without earlier tokens, or with a ``spread`` of 0, it is 0.
    """
    expected = seen.sum(axis=1, keepdims=True) * view
    return _normalise(view * np.exp(spread**2 * (seen - expected) / (1.0 + spread**2 * expected)))


def _normalise(weight: Floats) -> Floats:
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def _select_tokens(distribution: TokenDistribution, here: Bools) -> TokenDistribution:
    """Return the distribution at the tokens marked by ``here`` [N] only.

    What its top-p cuts, and its inner nucleus, are left out: adaptive bets do not use them.
    """
    values = {field.name: getattr(distribution, field.name) for field in fields(distribution)}
    arrays: dict[str, Any] = {name: value[here] for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(distribution, inner=None, top_p=None, **arrays)


def _log_payoffs(distribution: TokenDistribution, m: Floats, allowance: float) -> Floats:
    """Return the log payoffs of view ``m``, lowered by the allowance.

    They are [N], and 0 at tokens outside the core. Each payoff e is divided by ``1 + allowance sd_p(e)``, so that its mean is one at most
    for every distribution within ``allowance`` of p (:func:`adaptive_panel`).
    """
    # But for what noise and jumps lower it by, e has the mean one within the core: its deviation is the root mean of (e - 1)^2.
    paid = betting.table(distribution, m)
    deviation = np.sqrt((core_distribution(distribution) * np.expm1(paid) ** 2).sum(axis=1, keepdims=True))
    return betting.at_outcome(np.where(distribution.core, paid - np.log1p(allowance * deviation), 0.0), distribution)


BLOCK = 64
"""Tokens whose views share what was learned from all earlier blocks."""
PRIOR_AT_CONTEXT = 3.0
"""Weight of the rate over all contexts, in tokens at one context."""
PRIOR_RATE = 0.25
"""Rate of recovered tokens before any token, with the weight of RIDGE tokens."""
RIDGE = 3.0
PRIOR_AT_PREVIOUS = 4.0
"""Weight of the mean distribution of all tokens, in tokens after one previous token."""
FEATURES = 6
LEAST_PROBABILITY = 1e-7
"""Least probability whose logarithm is used."""
RATE_SD = 0.2
"""Typical standard deviation of rates at one context."""
LEAST_ACCEPTED = 1e-3
"""Least fraction of accepted drafts of a token, 0..1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptiveInputs:
    """Features known before each of N tokens, [N, K+1]."""

    rate: Floats
    """Estimated probability, 0..1, that a token emitted at a draft slot was recovered rather than accepted."""
    seen: Floats
    """Number of times that the same token was emitted at the same context, at a draft slot or in an unknown window."""
    features: Floats
    """[N, K+1, F], of about unit size and mean 0 under p; the last is that of the rate."""


def core_distribution(distribution: TokenDistribution) -> Floats:
    """Return p conditioned on the core, [N, K+1].

    The core has the outcomes whose probabilities are known up to one factor; the others get 0.
    """
    p = np.where(distribution.core, distribution.p, 0.0)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def adaptive_inputs(observed: Observed, contexts: Ints, previous: Ints) -> AdaptiveInputs:
    """Return the features known before each token, from earlier blocks.

    ``contexts`` [N] numbers the contexts, a prompt with the answer so far, and ``previous`` [N] has the token id before each token. A token
    at a draft slot was recovered if its window ended with it. Over all contexts, the rate of that is a ridge regression on p, on the mean
    distribution so far, and on that after the same previous token: a drafter is a worse model and prefers frequent tokens. The rate at one
    context is shrunk towards it. :class:`_Features` has the regressors, :class:`_ContextCounts` the counts by context.
    """
    slots, distribution = observed.slots, observed.distribution
    in_core = np.take_along_axis(distribution.core, distribution.outcome[:, None], axis=1)[:, 0]
    counted = (slots.draft_slot | ~slots.known) & in_core
    # Whether a token was recovered is known in known windows; the last one of an answer may be cut.
    flagged = counted & slots.known & ~slots.last
    tokens = _token_numbers(observed)
    regressors = _Features.of(distribution, tokens, previous)
    counts = _ContextCounts.of(observed, tokens, contexts)
    # The normal equations of the ridge regression; its prior is PRIOR_RATE on the constant, the last regressor. The others are the features
    # less their means under p, and these means: a difference between positions is none between tokens (Mundlak 1978).
    gram = RIDGE * np.eye(2 * FEATURES + 1)
    moment = PRIOR_RATE * gram[-1]
    rate, seen = np.empty(distribution.p.shape), np.empty(distribution.p.shape)
    centred = np.empty((*distribution.p.shape, FEATURES + 1))
    for first in range(0, observed.tokens, BLOCK):
        # The rates of a block by earlier blocks alone, and only then the block's own tokens.
        block = slice(first, first + BLOCK)
        features = regressors.at(block)
        common = (features @ np.linalg.solve(gram, moment)).clip(0.0, 1.0)
        rate[block], seen[block] = counts.recovery_rates(block, common)
        centred[block, :, :FEATURES] = features[:, :, :FEATURES]
        emitted = np.take_along_axis(features, distribution.outcome[block, None, None], axis=1)[:, 0][flagged[block]]
        gram = gram + emitted.T @ emitted
        moment = moment + emitted.T @ slots.ended[block][flagged[block]]
        regressors.learn(block)
        counts.learn(block, counted[block], flagged[block])
    # The last feature is the rate, less its mean under p and in units of about one standard deviation.
    centred[:, :, -1] = (rate - (regressors.p * rate).sum(axis=1, keepdims=True)) / RATE_SD
    return AdaptiveInputs(rate=rate, seen=np.where(distribution.core, seen, 0.0), features=centred)


def _token_numbers(observed: Observed) -> Ints:
    """Return every outcome's token id, renumbered from 0, [N, K+1].

    Equal ids have equal numbers in all rows. The remainder counts as one token.
    """
    ids = np.column_stack([observed.ids, np.full(observed.tokens, REMAINDER)])
    return np.asarray(np.unique(ids, return_inverse=True)[1], dtype=np.int64).reshape(ids.shape)


def _number_pairs(groups: Ints, tokens: Ints) -> tuple[Ints, int]:
    """Return a number for each pair of group and token.

    It is the index under which sums over a pair are stored. Numbers [N, K+1] are from 0, equal for equal pairs, for ``groups`` [N] and
    ``tokens`` [N, K+1]; the second value is the number of different pairs.
    """
    kinds = np.unique(groups, return_inverse=True)[1].reshape(-1, 1)
    pairs, cells = np.unique(kinds * (tokens.max() + 1) + tokens, return_inverse=True)
    return np.asarray(cells, dtype=np.int64).reshape(tokens.shape), len(pairs)


@dataclass(slots=True, kw_only=True, eq=False)
class _Mean:
    """The mean distribution of the tokens so far, by group and token id."""

    cells: Ints
    """[N, K+1], the number of each pair of group and token id."""
    groups: Ints
    """[N], the group of each token, from 0."""
    mass: Floats
    """Sum of probabilities so far, by cell."""
    tokens: Floats
    """Number of tokens so far, by group."""

    @classmethod
    def of(cls, groups: Ints, tokens: Ints) -> _Mean:
        """Return the means with nothing learned yet, for ``groups`` [N] and token numbers ``tokens`` [N, K+1]."""
        cells, count = _number_pairs(groups, tokens)
        kinds, group = np.unique(groups, return_inverse=True)
        return cls(cells=cells, groups=group.reshape(-1), mass=np.zeros(count), tokens=np.zeros(len(kinds)))

    def at(self, here: slice, prior_tokens: float, prior: Floats) -> Floats:
        """Return the mean distribution; ``prior`` [M, K+1] counts as ``prior_tokens`` tokens."""
        return np.asarray((self.mass[self.cells[here]] + prior_tokens * prior) / (self.tokens[self.groups[here]][:, None] + prior_tokens))

    def learn(self, here: slice, p: Floats) -> None:
        """Add the distributions ``p`` [M, K+1] of the tokens that ``here`` selects."""
        np.add.at(self.mass, self.cells[here], p)
        np.add.at(self.tokens, self.groups[here], 1.0)


@dataclass(slots=True, kw_only=True, eq=False)
class _Features:
    """The regressors of the rate of recovered tokens over all contexts."""

    p: Floats
    fixed: Floats
    """[N, K+1, 4], features of p alone."""
    usual: _Mean
    """Over all tokens."""
    following: _Mean
    """Over the tokens after the same previous token."""

    @classmethod
    def of(cls, distribution: TokenDistribution, tokens: Ints, previous: Ints) -> _Features:
        """Return the regressors at all tokens, with nothing learned yet.

        ``tokens`` [N, K+1] has every outcome's number, equal for equal token ids, and ``previous`` [N] the token id before each. The fixed
        features are log p, its square, a mark of the remainder and p, scaled by constants to about unit size.
        """
        p, one_group = core_distribution(distribution), np.zeros_like(previous)
        surprise = np.log(np.maximum(p, LEAST_PROBABILITY))
        remainder = np.broadcast_to(np.arange(p.shape[1]) == p.shape[1] - 1, p.shape)
        return cls(
            p=p,
            fixed=np.stack([surprise / 1.5, surprise**2 / 7.5, 3.0 * remainder, 4.0 * p], axis=2),
            usual=_Mean.of(one_group, tokens),
            following=_Mean.of(previous, tokens),
        )

    def at(self, here: slice) -> Floats:
        """Return the centred features, their means under p, and a constant.

        They are [M, K+1, 2 FEATURES + 1], for the M tokens that ``here`` selects. Four features are fixed, by p alone. Two are logs of mean
        distributions of earlier tokens, over 3 to be of about unit size. That over all tokens is shrunk towards equal probabilities by the
        weight of one token, that after the same previous token towards that over all, by PRIOR_AT_PREVIOUS tokens.
        """
        usual = self.usual.at(here, 1.0, np.asarray(1.0 / len(self.usual.mass)))  # mass has one entry for each different token
        distributions = np.log(np.stack([usual, self.following.at(here, PRIOR_AT_PREVIOUS, usual)], axis=2)) / 3.0
        values = np.concatenate([self.fixed[here], distributions], axis=2)
        mean = (self.p[here][:, :, None] * values).sum(axis=1, keepdims=True)
        return np.concatenate([values - mean, np.broadcast_to(mean, values.shape), np.ones((*values.shape[:2], 1))], axis=2)

    def learn(self, here: slice) -> None:
        """Add the distributions of the tokens that ``here`` selects to both means."""
        self.usual.learn(here, self.p[here])
        self.following.learn(here, self.p[here])


@dataclass(slots=True, kw_only=True, eq=False)
class _ContextCounts:
    """Counts of emitted tokens at each context, by token id."""

    cells: Ints
    """[N, K+1], the number of each pair of context and token id."""
    emitted: Ints
    """[N], the cell of each emitted token."""
    ended: Bools
    """[N], whether the token ended its window."""
    seen: Floats
    """Tokens so far that were emitted at a draft slot or in an unknown window, by cell."""
    flagged: Floats
    """Those at a known draft slot whose window may not have been cut, by cell."""
    recovered: Floats
    """Those of the flagged that ended their window, by cell."""

    @classmethod
    def of(cls, observed: Observed, tokens: Ints, contexts: Ints) -> _ContextCounts:
        """Return the counts by context and token, all still 0, for token numbers ``tokens`` [N, K+1] and ``contexts`` [N]."""
        cells, count = _number_pairs(contexts, tokens)
        emitted = np.take_along_axis(cells, observed.distribution.outcome[:, None], axis=1)[:, 0]
        seen, flagged, recovered = np.zeros((3, count))
        return cls(cells=cells, emitted=emitted, ended=observed.slots.ended, seen=seen, flagged=flagged, recovered=recovered)

    def recovery_rates(self, here: slice, common: Floats) -> tuple[Floats, Floats]:
        """Return each outcome's rate of recovery and count of emissions, both [M, K+1].

        ``here`` selects M of the N tokens. Rate and count are of the outcome's earlier emissions at the same context. The rate is the share
        that replaced a rejected draft token, of those known to be at a draft slot (``flagged``), shrunk towards ``common`` [M, K+1], the
        rate over all contexts. The count also takes in those in an unknown window (``seen``).
        """
        cells = self.cells[here]
        return (PRIOR_AT_CONTEXT * common + self.recovered[cells]) / (PRIOR_AT_CONTEXT + self.flagged[cells]), self.seen[cells]

    def learn(self, here: slice, counted: Bools, flagged: Bools) -> None:
        """Count the emitted tokens that ``here`` selects.

        Those ``counted`` [M] count in ``seen``. The ``flagged`` [M] are those at a known draft slot whose window may not have been cut: a
        token is then recovered, in place of a rejected draft token, if its window ended with it.
        """
        np.add.at(self.seen, self.emitted[here], counted)
        np.add.at(self.flagged, self.emitted[here], flagged)
        np.add.at(self.recovered, self.emitted[here], flagged & self.ended[here])
