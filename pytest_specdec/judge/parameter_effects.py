"""Parameter effects: the tokens of one arm under the rules of its requests, and which rules they break beyond chance.

A rule is named by its parameter, or by several joined with commas. It binds at a token where it changes which token comes. A token's chance
is the probability that a correct server breaks its rule there: 0 for an exact token, 1 for an unmeasured one, of which nothing tells it.
Unmeasured tokens are compared with those of the baseline's boots, the ``peers``. ``hits`` are broken tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_specdec.judge.parameter_rules import (
    CheckedToken,
    blame_parameters,
    check_binding,
    check_departures,
    check_tokens,
    parameter_rules,
    set_parameters,
)
from pytest_specdec.stats import proportions
from pytest_specdec.stats.token_distribution import NOISE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript

__all__ = [
    "ArmEffects",
    "ParameterEffect",
    "arm_effects",
    "describe_detectable",
    "describe_first_differences",
    "parameters_of",
    "split_names",
]

_AT_FIRST_DIFFERENCES: Final = ("bad_words", "repetition_penalty")
"""Parameters whose loss shows only where an answer first differs from the baseline's, so that no share of tokens can be stated."""


class ParameterEffect(StrEnum):
    """What a server does with a parameter."""

    HONOURED = "honoured"
    REFUSED = "refused"
    IGNORED = "ignored"
    HARMFUL = "harmful"
    """Answered with a 5xx, or the server died or hung because of it."""
    UNKNOWN = "did not bind"
    """No answer shows an effect."""
    UNDECIDED = "not decided"
    """It shows an effect on the baseline, and too few tokens to tell whether chance or a fault broke its rule."""
    ABSENT = "not asked"
    """No request sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmEffects:
    """The tokens of one arm under the rules of its requests, with the baseline's boots."""

    arm: Transcript
    tokens: tuple[CheckedToken, ...]
    alpha: float
    """Significance level of the test of a rule that chance may break."""
    peers: tuple[ArmEffects, ...] = ()
    """The baseline's boots, the measure of unmeasured tokens; empty for these boots themselves."""

    @property
    def ignored(self) -> set[str]:
        """The parameters with a rule broken beyond chance.

        The baseline may have some too: its engine may cut the distribution in another order, for instance.
        """
        return parameters_of(self.broken_beyond_chance)

    @property
    def broken_beyond_chance(self) -> tuple[CheckedToken, ...]:
        """Tokens that break a rule which is broken beyond chance."""
        beyond = {name for name in {token.parameter for token in self.tokens} if self._is_beyond_chance(name)}
        return tuple(token for token in self.tokens if token.broken and token.parameter in beyond)

    def under(self, name: str) -> tuple[CheckedToken, ...]:
        """Return the tokens under the rule of ``name``, one or several parameters."""
        return tuple(token for token in self.tokens if token.parameter == name)

    def _is_beyond_chance(self, name: str) -> bool:
        """Return True if chance does not explain the broken tokens of a rule.

        One broken token is enough if it is exact. Else a binomial test at the mean chance decides, and for unmeasured tokens Fisher's exact
        test against those of the baseline's boots; one of the two is enough. Both are at ``alpha``.
        """
        under = self.under(name)
        broken = [token for token in under if token.broken]
        if not broken:
            return False
        if any(token.is_exact for token in broken):
            return True
        if self._exceeds_rate(name, sum(not token.is_unmeasured for token in broken)):
            return True
        return self._exceeds_peers(name, sum(token.broken for token in _distinct_unmeasured(under)))

    def _exceeds_rate(self, name: str, hits: int) -> bool:
        """Return True if chance does not explain ``hits`` broken tokens.

        The test is binomial, at ``alpha``. Trials are the tokens under the rule ``name`` whose chance is known, and their mean chance is
        the rate.
        """
        chances = [token.chance for token in self.under(name) if not token.is_unmeasured]
        return proportions.greater_than_rate(hits, len(chances), sum(chances) / max(1, len(chances))) <= self.alpha

    def _exceeds_peers(self, name: str, hits: int) -> bool:
        """Return True if ``hits`` broken unmeasured tokens surely exceed the baseline's.

        Fisher's exact test at ``alpha`` compares the unmeasured tokens under the rule ``name``. In ``hits`` too a repeated computation
        counts once, since it is no new trial.
        """
        tokens = len(_distinct_unmeasured(self.under(name)))
        baseline = _distinct_unmeasured(token for peer in self.peers for token in peer.under(name))
        return proportions.greater_than_other(hits, tokens, sum(token.broken for token in baseline), len(baseline)) <= self.alpha

    def exceeds_boots(self, name: str, hits: int) -> bool:
        """Return True if ``hits`` broken tokens exceed those of the baseline.

        Fisher's exact test compares all tokens under the rule ``name`` with those of the baseline's boots. If these break none, the result
        is True without a test: the computed chance then decides alone. If they break some, their rate is a better measure than that chance.
        """
        boot_tokens = [token for peer in self.peers for token in peer.under(name)]
        boot_hits = sum(token.broken for token in boot_tokens)
        return not boot_hits or proportions.greater_than_other(hits, len(self.under(name)), boot_hits, len(boot_tokens)) <= self.alpha

    def detectable_shares(self) -> dict[str, float]:
        """Return the least share of broken tokens caught, by rule.

        Shares are of the tokens at which a rule binds and whose chance is known. Caught means a FAIL with probability .99. A share is 1 if
        even all tokens broken would not fail. Left out are rules that a boot of the baseline ignores, and those whose loss shows only where
        an answer first differs from the baseline's.
        """
        ignored = set[str]().union(*(peer.ignored for peer in self.peers))
        names = {token.parameter for token in self.tokens if token.binds and not token.is_unmeasured} - set(_AT_FIRST_DIFFERENCES)
        return {name: self._detectable_share(name) for name in sorted(names) if ignored.isdisjoint(split_names(name))}

    def _detectable_share(self, name: str) -> float:
        """Return the least share of broken tokens caught under one rule.

        It is of the tokens at which the rule binds and whose chance is known; caught means a FAIL with probability .99. Broken tokens fail
        in two ways, of which one is enough, so that the smaller share is returned.
        """
        bound = [token for token in self.under(name) if token.binds and not token.is_unmeasured]
        # Exact tokens, which chance never breaks, fail if they exceed those of the baseline's boots. Others have to exceed chance as well.
        share_of_exact = _least_share(sum(token.is_exact for token in bound), lambda hits: self.exceeds_boots(name, hits))
        share = _least_share(len(bound), lambda hits: self._exceeds_rate(name, hits) and self.exceeds_boots(name, hits))
        return min(share_of_exact, share)

    def detectable_unmeasured_shares(self) -> dict[str, float]:
        """Return the least share of broken unmeasured tokens caught, by rule.

        Caught means a FAIL with probability .99; a share is 1 if even all of them broken would not be caught.
        """
        shares = {}
        for name in sorted({token.parameter for token in self.tokens if token.is_unmeasured}):
            shares[name] = _least_share(len(_distinct_unmeasured(self.under(name))), partial(self._exceeds_peers, name))
        return shares

    def surely_broken_shares(self) -> dict[str, float]:
        """Return how large a share of unmeasured tokens surely breaks each rule.

        A token under a rule shows whether it breaks the rule. Unmeasured is only the chance that a correct server does so there. The keys
        are the names of the rules that such tokens break, the values lower confidence limits at 99 %.
        """
        shares = {}
        for rule in sorted({token.parameter for token in self.tokens if token.broken and token.is_unmeasured}):
            # A token that another answer to the same request repeats, after the same tokens, is no further trial.
            trials = _distinct_unmeasured(token for token in self.tokens if token.parameter == rule)
            broken = sum(token.broken for token in trials)
            # Two-sided limits at 98 % are one-sided ones at 99 %.
            shares[rule] = proportions.limits(broken, len(trials), 0.98).low
        return shares


def _least_share(tokens: int, fails: Callable[[int], bool]) -> float:
    """Return the least share of broken tokens caught with probability .99.

    ``fails`` returns True for a number of broken tokens, of ``tokens`` in all, that is enough for a FAIL; it has to be so for all larger
    numbers too. If a server breaks more than the returned share, it reaches such a number with probability .99. It is 1 if no number fails.
    """
    # The place of the first number that fails, counted from 0, is the largest number that does not.
    too_few = bisect_left(range(1, tokens + 1), x=True, key=fails)
    # Two-sided limits at 98 % are one-sided ones at 99 %.
    return 1.0 if too_few == tokens else proportions.limits(too_few, tokens, 0.98).high


def _distinct_unmeasured(checked: Iterable[CheckedToken]) -> tuple[CheckedToken, ...]:
    """Return the unmeasured tokens, repeated computations once.

    A repeated computation is the same token after the same tokens, in another answer to the same request.
    """
    unmeasured = (token for token in checked if token.is_unmeasured)
    return tuple({(token.answer.request_id, token.answer.choice.token_ids[: token.index + 1]): token for token in unmeasured}.values())


def arm_effects(captured: Captured, arm: Transcript, tolerance: Tolerance, peers: tuple[ArmEffects, ...] = ()) -> ArmEffects:
    """Return an arm's tokens, each checked by its request's rules.

    ``peers`` are the baseline's boots; empty for these themselves. Scores do not show bad_words and repetition penalties. These rules are
    checked where an arm's answer first differs from the baseline's; the baseline's own tokens under them only show where they bind.
    """
    noise = max(NOISE, tolerance.calibration.noise or 0.0)
    checked = (*check_tokens(captured, arm, tolerance.gap, noise, tolerance.chance), *_compare_with_baseline(captured, arm, tolerance))
    binding = check_binding(captured, tolerance.gap) if arm is captured.baseline else ()
    return ArmEffects(arm=arm, tokens=(*checked, *binding), alpha=_test_level(captured), peers=peers)


def _test_level(captured: Captured) -> float:
    """Return the significance level of one test: an even share of alpha.

    There is a test for each combination of cuts (top_k, top_p, min_p), for each combination of parameters blamed for wrong greedy choices,
    and one for bad_words and repetition penalties together.
    """
    by_request = [parameter_rules(request.body) for request in captured.workload.requests]
    cuts = {rules.cuts for rules in by_request if rules.cuts}
    choices = {blame_parameters(rules) for rules in by_request if rules.greedy}
    return captured.alpha / max(1, len(cuts) + len(choices) + any(rules.has_bad_words or rules.repetition != 1.0 for rules in by_request))


def _compare_with_baseline(captured: Captured, arm: Transcript, tolerance: Tolerance) -> tuple[CheckedToken, ...]:
    """Return the arm's checked tokens at first differences from the baseline.

    They are of requests with bad_words or repetition penalties. Those under a repetition penalty are returned only if they break its rule
    more often than the control's, by Fisher's exact test, since the control shows what noise brings. Empty for the baseline itself.
    """
    if arm is captured.baseline:
        return ()
    # ``chance`` only matters for tokens under bad_words, which are not counted below.
    departures = check_departures(captured, arm, tolerance.gap, tolerance.chance)
    hits = _count_lost_penalties(departures)
    requests = sum("repetition_penalty" in set_parameters(request.body) for request in captured.workload.requests)
    control_hits = 0
    if captured.control is not None and arm is not captured.control:
        control_hits = _count_lost_penalties(check_departures(captured, captured.control, tolerance.gap))
    # Trials are the requests, since an answer first differs once at most, unless several passes over them make more hits.
    trials, control_trials = max(requests, hits), max(requests, control_hits)
    if hits and proportions.greater_than_other(hits, trials, control_hits, control_trials) <= _test_level(captured):
        return departures
    return tuple(token for token in departures if token.parameter != "repetition_penalty")  # those under bad_words


def _count_lost_penalties(departures: Sequence[CheckedToken]) -> int:
    """Return the number of broken tokens under a repetition penalty."""
    return sum(token.broken and token.parameter == "repetition_penalty" for token in departures)


def describe_detectable(judged: ArmEffects) -> str:
    """Describe the share of broken tokens caught under the weakest rule.

    The weakest rule has the largest such share (:meth:`ArmEffects.detectable_shares`). Rules that bind too rarely for an alarm are listed
    after it.
    """
    shares = judged.detectable_shares()
    bound = Counter(token.parameter for token in judged.tokens if token.binds and not token.is_unmeasured)
    caught = {name: share for name, share in shares.items() if share < 1.0}
    rare = [" with ".join(split_names(name)) for name in shares if name not in caught]
    weakest = max(caught, key=lambda name: caught[name], default="")
    return (
        f"{sum(bound[name] for name in shares):,} tokens at which a parameter binds"
        + (f", {bound[weakest]:,} of them under {' with '.join(split_names(weakest))}, the weakest rule: " if weakest else "")
        + (f"a share of these above {caught[weakest]:.1%} that breaks it would have been caught (99%)" if weakest else "")
        + (f"; untested: {', '.join(rare)}, which bind too rarely" if rare else "")
    )


def describe_first_differences(judged: ArmEffects) -> str:
    """Return a clause on bad_words and repetition penalties; empty if neither binds.

    Scores do not show their effect. Their loss is seen only where an answer first differs from the baseline's.
    """
    binding = {token.parameter for effects in (judged, *judged.peers) for token in effects.tokens if token.binds}
    names = " and ".join(name for name in _AT_FIRST_DIFFERENCES if name in binding)
    return f"; the loss of {names} shows at first differences alone" if names else ""


def split_names(parameter: str) -> list[str]:
    """Return the names of the parameters under one rule, which :attr:`CheckedToken.parameter` joins by a comma."""
    return parameter.split(", ")


def parameters_of(checked: Sequence[CheckedToken]) -> set[str]:
    """Return the parameters under whose rules these tokens are."""
    return {name for token in checked for name in split_names(token.parameter)}
