"""Parameter effects: the tokens of one arm under the rules of its requests, and which rules they break beyond chance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.parameter_rules import (
    CheckedToken,
    blame_parameters,
    first_departures,
    parameter_rules,
    set_parameters,
    suppressed_tokens,
    tokens,
)
from pytest_specdec.stats import proportions
from pytest_specdec.stats.token_distribution import NOISE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript

__all__ = ["ArmEffects", "ParameterEffect", "arm_effects", "parameters_of", "split_names"]


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
    """The tokens of one arm under the rules of its requests."""

    arm: Transcript
    tokens: tuple[CheckedToken, ...]
    alpha: float
    """Significance level of the test of a rule that chance may break."""
    peers: tuple[ArmEffects, ...] = ()
    """The baseline's boots, the measure of rules of which nothing shows the chance; empty for these boots themselves."""

    @property
    def ignored(self) -> set[str]:
        """The parameters with a rule broken beyond chance.

        The baseline may have some too: its engine may cut the distribution in another order, for instance.
        """
        return parameters_of(self.broken)

    @property
    def broken(self) -> tuple[CheckedToken, ...]:
        """Tokens that break a rule which is broken beyond chance."""
        beyond = {name for name in {token.parameter for token in self.tokens} if self._beyond_chance(name)}
        return tuple(token for token in self.tokens if token.broken and token.parameter in beyond)

    def under(self, name: str) -> tuple[CheckedToken, ...]:
        """Return the tokens under the rule of ``name``, one or several parameters."""
        return tuple(token for token in self.tokens if token.parameter == name)

    def _beyond_chance(self, name: str) -> bool:
        """Return True if chance does not explain the broken tokens of a rule.

        One token is enough if it is never broken without a fault; else a binomial test at the mean chance decides, and for tokens of which
        nothing shows the chance Fisher's exact test against those of the baseline's boots.
        """
        under = self.under(name)
        hits = [token for token in under if token.broken]
        if not hits:
            return False
        if any(not token.chance for token in hits):
            return True
        measured = [token for token in under if token.chance < 1.0]
        rate = sum(token.chance for token in measured) / max(1, len(measured))
        if proportions.greater_than_rate(sum(token.broken for token in measured), len(measured), rate) <= self.alpha:
            return True
        return self._exceeds_peers(name, sum(token.broken for token in _distinct_unmeasured(under)))

    def _exceeds_peers(self, name: str, hits: int) -> bool:
        """Return True if ``hits`` broken tokens surely exceed the baseline's.

        Counted are tokens under the rule ``name`` of which nothing shows the chance; a repeated computation counts once, since it is no new
        trial. The test is Fisher's exact one at ``alpha``.
        """
        tokens = len(_distinct_unmeasured(self.under(name)))
        baseline = _distinct_unmeasured(token for peer in self.peers for token in peer.under(name))
        return proportions.greater_than_other(hits, tokens, sum(token.broken for token in baseline), len(baseline)) <= self.alpha

    def unmeasured_shares(self) -> dict[str, float]:
        """Return the least share of broken tokens caught with probability .99.

        It is that of rules of which nothing shows the chance, by their parameters; 1 if even all tokens broken would not be caught.
        """
        shares = {}
        for name in sorted({token.parameter for token in self.tokens if token.chance >= 1.0}):
            tokens = len(_distinct_unmeasured(self.under(name)))
            least = next((hits for hits in range(1, tokens + 1) if self._exceeds_peers(name, hits)), None)
            shares[name] = 1.0 if least is None else proportions.limits(least - 1, tokens, 0.98).high
        return shares

    def surely_broken_shares(self) -> dict[str, float]:
        """Return the share of tokens that the arm surely breaks, at 99 %.

        It is that of rules which it breaks and of which nothing shows the chance, by their parameters.
        """
        shares = {}
        for name in sorted({token.parameter for token in self.tokens if token.broken and token.chance >= 1.0}):
            tokens = _distinct_unmeasured(self.under(name))
            shares[name] = proportions.limits(sum(token.broken for token in tokens), len(tokens), 0.98).low
        return shares


def _distinct_unmeasured(checked: Iterable[CheckedToken]) -> tuple[CheckedToken, ...]:
    """Return the tokens of which nothing shows the chance, one for each prefix."""
    unmeasured = (token for token in checked if token.chance >= 1.0)
    return tuple({(token.answer.request_id, token.answer.choice.token_ids[: token.index + 1]): token for token in unmeasured}.values())


def arm_effects(captured: Captured, arm: Transcript, tolerance: Tolerance, peers: tuple[ArmEffects, ...] = ()) -> ArmEffects:
    """Return an arm's tokens, each checked by its request's rules.

    ``peers`` are the baseline's boots; empty for these themselves. For the baseline the tokens include its own under bad_words and
    repetition penalties, which show where these rules bind. For other arms these rules are checked at first differences from the baseline.
    """
    noise = max(NOISE, tolerance.calibration.noise or 0.0)
    checked = (*tokens(captured, arm, tolerance.gap, noise, tolerance.chance), *_compare_with_baseline(captured, arm, tolerance))
    suppressed = suppressed_tokens(captured, tolerance.gap) if arm is captured.baseline else ()
    return ArmEffects(arm=arm, tokens=(*checked, *suppressed), alpha=_test_level(captured), peers=peers)


def _test_level(captured: Captured) -> float:
    """Return the significance level of one test: an even share of alpha.

    There is a test for each combination of cuts, for each combination of parameters blamed for wrong greedy choices, and one for
    bad_words and repetition penalties together.
    """
    by_request = [parameter_rules(request.body) for request in captured.workload.requests]
    cuts = {rules.cuts for rules in by_request if rules.cuts}
    choices = {blame_parameters(rules) for rules in by_request if rules.greedy}
    return captured.alpha / max(1, len(cuts) + len(choices) + any(rules.has_bad_words or rules.repetition != 1.0 for rules in by_request))


def _compare_with_baseline(captured: Captured, arm: Transcript, tolerance: Tolerance) -> tuple[CheckedToken, ...]:
    """Return the arm's checked tokens at first differences from the baseline.

    They are of requests with bad_words or repetition penalties. Those under a repetition penalty are returned only if they break its rule
    more often than the control's, by Fisher's exact test. Empty for the baseline itself.
    """
    if arm is captured.baseline:
        return ()
    departures = first_departures(captured, arm, tolerance.gap, tolerance.chance)
    hits = sum(token.broken and token.parameter == "repetition_penalty" for token in departures)
    trials = sum("repetition_penalty" in set_parameters(request.body) for request in captured.workload.requests)
    control_hits = 0
    if captured.control is not None and arm is not captured.control:
        of_control = first_departures(captured, captured.control, tolerance.gap)
        control_hits = sum(token.broken and token.parameter == "repetition_penalty" for token in of_control)
    if hits and proportions.greater_than_other(hits, max(trials, hits), control_hits, max(trials, control_hits)) <= _test_level(captured):
        return departures
    return tuple(token for token in departures if token.parameter != "repetition_penalty")


def split_names(parameter: str) -> list[str]:
    """Return the names of the parameters under one rule, which :attr:`CheckedToken.parameter` joins by a comma."""
    return parameter.split(", ")


def parameters_of(checked: Sequence[CheckedToken]) -> set[str]:
    """Return the parameters whose rules bind these tokens."""
    return {name for token in checked for name in split_names(token.parameter)}
