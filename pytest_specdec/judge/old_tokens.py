"""Old tokens: what the baseline before an upgrade answered, under the scores of the one after it.

At temperature 0 an old token is wrong if its gap to the new best one is more than both runs' noise explains. Sampled tokens are bet on: a
bet gains evidence as tokens differ from the scores' distribution, and alarms if the scoring baseline's own tokens do not show the same. In
every ``captured`` the judged tokens stand in the variant's place, and the baseline is the one that scored them. Requests without sampling
parameters show the servers' defaults. Every old token counts, also after the first that the new baseline would have chosen otherwise.

Old tokens hardly show what a new build adds, as a lost mask does: they have none of it, and pay a bet ε nats each where it took ε of the
mass. The new baseline's sampled tokens under the old one's scores do, where a run has both engines. With 2 % of the mass on tokens that the
old model excluded, and noise of .03 nats in both, 864 old tokens of the reference engine paid 10^.4, 888 new ones 10^83, and nothing else
showed a change; simulated, six runs of 896 tokens each, the new ones alarmed six times from 1 % on and three times at .5 %,
the old ones never below 5 %. At temperature 0, and of default parameters, old tokens show a difference as well as new ones would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan, log
from typing import TYPE_CHECKING

from pytest_specdec.judge.greedy_gap import scored_answers
from pytest_specdec.judge.sampling.control import compare_at_bias
from pytest_specdec.judge.sampling.data import gather
from pytest_specdec.judge.verdicts import LN_10
from pytest_specdec.model.workload import Route
from pytest_specdec.stats import default_parameters
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.raw_distribution import raw_distribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Position, Score, Transcript
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.default_parameters import DefaultsComparison

__all__ = ["ALPHA", "NewTokens", "OldTokens", "SampledBet", "TokenDifference", "examine", "examine_new"]

ALPHA = 1e-3
"""Level of the bets on old and of those on new sampled tokens, all workloads together, and of the test of default parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDifference:
    """A token at temperature 0, and the other run's choice in its place."""

    request_id: str
    index: int
    """From 0."""
    old_id: int
    new_id: int
    gap: float
    """Nats between the two by the scores of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBet:
    """The evidence that one workload's tokens do not follow the distribution of the other run's baseline."""

    workload: str
    tokens: int
    log10_evidence: float
    """The evidence of all bets at its highest, as a power of ten."""
    name: str
    """The difference that the best bet is on, by name."""
    nats_per_token: float
    """What the best bet gained; the divergence of the two distributions is at least as large, on average."""
    is_alarm: bool
    """Whether it reached the level of its alarm, and the scoring baseline's own tokens do not show the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTokens:
    """The old baseline's tokens under the new baseline's scores."""

    answers: int
    """Scored answers."""
    tokens: int
    """Tokens of the scored answers."""
    unscored: int = 0
    """Answers that the new baseline did not score."""
    likeliest: int = 0
    """Scored answers at temperature 0."""
    wrong: tuple[TokenDifference, ...] = ()
    """Tokens at temperature 0 that noise does not explain, the widest gap first, each with the new baseline's best one."""
    wrong_answers: int = 0
    """Answers with such a token."""
    bets: tuple[SampledBet, ...] = ()
    """By workload, the strongest first."""
    defaults: DefaultsComparison | None = None
    """None without requests that state no sampling parameter in both runs."""

    @property
    def draws_otherwise(self) -> bool:
        """True if sampled tokens do not follow the new distribution."""
        return any(bet.is_alarm for bet in self.bets)

    @property
    def has_other_defaults(self) -> bool:
        """True if the servers' default sampling parameters are not the same."""
        return self.defaults is not None and self.defaults.log_evidence >= -log(ALPHA)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """The new baseline's sampled tokens under the old baseline's scores."""

    answers: int
    """Scored answers."""
    tokens: int
    """Tokens of the scored answers."""
    unscored: int
    """Answers that the old baseline did not score."""
    bets: tuple[SampledBet, ...]
    """By workload, the strongest first; empty where the noise is unknown."""

    @property
    def draws_otherwise(self) -> bool:
        """True if they do not follow the old distribution."""
        return any(bet.is_alarm for bet in self.bets)


def examine_new(new_answers: Sequence[Captured], *, is_noise_known: bool) -> NewTokens | None:
    """Return the evidence of new sampled tokens under the old scores.

    ``new_answers`` has one item per workload, with the new baseline's answers in the variant's place; None without a workload. No bets are
    made if ``is_noise_known`` is False, since they have to allow for noise.
    """
    if not new_answers:
        return None
    # Only requests that ask for a temperature above 0 have a known distribution.
    workloads = [_select(captured, lambda request: request.draws_as_asked) for captured in new_answers]
    scored = [_keep_scored(captured) for captured in workloads]
    answers = [answer for captured in scored for answer in captured.speculative.answers]
    return NewTokens(
        answers=len(answers),
        tokens=sum(len(answer.choice.token_ids) for answer in answers),
        unscored=sum(len(captured.speculative.answers) for captured in workloads) - len(answers),
        bets=_bet_strongest_first(scored) if is_noise_known else (),
    )


def examine(old_answers: Sequence[Captured], *, near_tie: float) -> OldTokens | None:
    """Return the evidence of old tokens under the new scores.

    ``old_answers`` has one item per workload, with the old baseline's answers in the variant's place; None without a workload.
    ``near_tie`` is the largest gap of two tokens that noise explains, in nats; 0 if the noise is unknown. Then no token is called wrong and
    no bets are made. Bets allow for the noise of the run that scored; noise of .15 nats in the other one brought no evidence in tests.
    """
    workloads = [_keep_scored(captured) for captured in old_answers]
    if not workloads:
        return None
    is_noise_known = near_tie > 0.0
    answers = [answer for captured in workloads for answer in captured.speculative.answers]
    likeliest = list(_likeliest_answers(workloads))  # at temperature 0, so that each token should be the likeliest
    wrong = [difference for answer in likeliest for difference in _wrong_tokens(answer, near_tie)] if is_noise_known else []
    return OldTokens(
        answers=len(answers),
        tokens=sum(len(answer.choice.token_ids) for answer in answers),
        unscored=sum(len(captured.speculative.answers) for captured in old_answers) - len(answers),
        likeliest=len(likeliest),
        wrong=tuple(sorted(wrong, key=lambda difference: (-difference.gap, difference.request_id, difference.index))),
        wrong_answers=sum(max(answer.gaps) > near_tie for answer in likeliest) if is_noise_known else 0,
        bets=_bet_strongest_first(workloads) if is_noise_known else (),
        defaults=_compare_defaults(workloads),
    )


def _keep_scored(captured: Captured) -> Captured:
    """Return ``captured`` with fully scored answers of the first pass alone.

    The scoring baseline's own answers are cut down likewise. They are put in the control's place too: bets compare the judged answers with
    the control's.
    """
    judged = _drop_unscored(captured.speculative, captured.scores.get(captured.arm, ()))
    baseline = _drop_unscored(captured.baseline, captured.scores.get(captured.baseline.arm, ()))
    return replace(captured, speculative=judged, baseline=baseline, control=baseline)


def _drop_unscored(transcript: Transcript, scores: Sequence[Score]) -> Transcript:
    """Return ``transcript`` with the scored answers of the first pass alone.

    An answer is scored if ``scores`` have each of its tokens, with its log-probability (nan if unknown) or the top tokens there.
    """
    informative = (score for score in scores if all(position.top_logprobs or not isnan(position.logprob) for position in score.positions))
    token_ids = {score.key: tuple(position.token_id for position in score.positions) for score in informative}
    answers = (answer for answer in transcript.answers if answer.ok and not answer.pass_index and answer.choice.token_ids)
    return replace(transcript, answers=tuple(answer for answer in answers if token_ids.get(answer.key) == answer.choice.token_ids))


def _select(captured: Captured, is_wanted: Callable[[Request], bool]) -> Captured:
    """Return ``captured`` with both arms' answers to wanted requests alone.

    The scoring baseline's own are put in the control's place too: bets compare the judged answers with the control's.
    """
    ids = {request.id for request in captured.workload.requests if is_wanted(request)}
    judged, baseline = (
        replace(transcript, answers=tuple(answer for answer in transcript.answers if answer.request_id in ids))
        for transcript in (captured.speculative, captured.baseline)
    )
    return replace(captured, speculative=judged, baseline=baseline, control=baseline)


def _likeliest_answers(workloads: Iterable[Captured]) -> Iterator[ScoredAnswer]:
    """Yield the old answers at temperature 0 with their gaps.

    ``workloads`` have the old baseline's answers in the variant's place, with their scores. Answers to requests with fields that change the
    distribution are left out: their tokens need not be the likeliest.
    """
    for captured in workloads:
        likeliest = _select(captured, lambda request: request.takes_likeliest)
        yield from scored_answers(likeliest.speculative, captured.scores[captured.arm])


def _wrong_tokens(scored: ScoredAnswer, near_tie: float) -> Iterator[TokenDifference]:
    """Yield the tokens of an answer too improbable for noise.

    Each lies below the new baseline's best token by more than ``near_tie`` nats; the best token is its ``new_id``.
    """
    for index, (position, gap) in enumerate(zip(scored.positions, scored.gaps, strict=True)):
        if gap > near_tie:
            best = max(zip(position.top_logprobs, position.top_ids, strict=True))[1]
            yield TokenDifference(request_id=scored.answer.request_id, index=index, old_id=position.token_id, new_id=best, gap=gap)


def _bet_strongest_first(workloads: Sequence[Captured]) -> tuple[SampledBet, ...]:
    return tuple(sorted(_bets(workloads), key=lambda bet: -bet.log10_evidence))


def _bets(workloads: Sequence[Captured]) -> Iterator[SampledBet]:
    """Yield the bet on each workload's sampled tokens.

    The workloads share :data:`ALPHA` evenly. Requests without a temperature are left out, since the server chooses their distribution.
    """
    sampled = [_select(captured, lambda request: request.draws_as_asked) for captured in workloads]
    sampled = [captured for captured in sampled if captured.speculative.answers]
    for captured in sampled:
        if (bet := _bet(captured, ALPHA / len(sampled))) is not None:
            yield bet


def _bet(captured: Captured, alpha: float) -> SampledBet | None:
    """Return the bet on one workload's tokens; None if unscorable or too noisy.

    Several bettors bet on one difference each; the winner is the best of them. The bet alarms at an evidence of 1/alpha, unless the scoring
    baseline's own tokens, which stand in the control's place, show the winner's difference too.
    """
    gathered = gather(captured, exact=False)  # another run's answers may differ from scores by more than rounding
    if gathered.observed is None or (gathered.calibration is not None and not gathered.calibration.valid):
        return None
    wealth = wealth_process(bettors(gathered.observed))
    is_alarm = wealth.tokens_to(-log(alpha)) is not None  # its log evidence reaches the alarm at some token
    if is_alarm:
        comparison = compare_at_bias(captured, gathered.observed, wealth.winner, scoring_bias=0.0, exact=False)
        # It holds if the judged tokens show the difference by more than the control's; None without a control to compare with.
        is_alarm = comparison is None or comparison.holds
    return SampledBet(
        workload=captured.workload.name,
        tokens=gathered.observed.tokens,
        log10_evidence=wealth.peak / LN_10,
        name=wealth.winner.name,
        nats_per_token=wealth.winner.log_wealth / gathered.observed.tokens,
        is_alarm=is_alarm,
    )


def _compare_defaults(workloads: Sequence[Captured]) -> DefaultsComparison | None:
    """Return the comparison of both baselines' default sampling parameters.

    A server may have other defaults on each route (SGLang takes the checkpoint's for chats alone), so that routes are compared separately
    and the one with the highest evidence is returned. That evidence is divided by the number of routes, since it is the best of several.
    None if no route got requests without sampling parameters on both baselines.
    """
    by_route = [defaults for route in Route if (defaults := _compare_defaults_on(route, workloads)) is not None]
    if not by_route:
        return None
    strongest = max(by_route, key=lambda defaults: defaults.log_evidence)
    return replace(strongest, log_evidence=strongest.log_evidence - log(len(by_route)))


def _compare_defaults_on(route: Route, workloads: Sequence[Captured]) -> DefaultsComparison | None:
    """Return the comparison of the default sampling parameters on one route.

    None if one of the baselines answered no request without sampling parameters there.
    """
    selected = [_select(captured, lambda request: request.route is route and request.draws_by_default) for captured in workloads]
    old = [position for captured in selected for position in _scored_positions(captured.speculative, captured)]
    new = [position for captured in selected for position in _scored_positions(captured.baseline, captured)]
    if not old or not new:
        return None
    top_tokens = max(captured.workload.top_tokens for captured in selected)
    vocabulary = max(captured.vocabulary for captured in selected)
    return default_parameters.compare(*(raw_distribution(positions, top_tokens, vocabulary) for positions in (old, new)))


def _scored_positions(transcript: Transcript, captured: Captured) -> Iterator[Position]:
    """Yield the scored positions of an arm's answers."""
    for answer in scored_answers(transcript, captured.scores.get(transcript.arm, ())):
        yield from answer.positions
