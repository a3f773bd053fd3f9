"""Log-probabilities: the reported values are the baseline's, on the scale of the baseline's own.

The reported numbers are checked, not the sampled tokens: servers have reported the draft's probabilities of correctly drawn tokens, and a
verifier with wrong numerics shows here long before its tokens do. A verify kernel may be noisier than decode by a bounded factor, since it
is another kernel: its noise is then reported and not failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, isnan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.baseline_logprobs import IMPOSSIBLE, MIDDLING, check_echo, compare_with_baseline
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.logprob_lists import wrong_lists
from pytest_specdec.judge.prerequisites import refusal, speculating, unscorable
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.promise import CheckedTokens
from pytest_specdec.model.transcript import Position
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.logprob_noise import squares
from pytest_specdec.stats.noise_comparison import (
    EXACT,
    TOLERATED,
    LogprobSample,
    compare,
    detectable,
    tolerated_floor,
)
from pytest_specdec.stats.request_params import sampling_params
from pytest_specdec.stats.token_distribution import raw_distribution, requested
from pytest_specdec.stats.verify_slots import slots_from_windows, unknown_slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.noise_comparison import NoiseComparison

__all__ = ["LEAST_TOKENS", "ReportedLogprobs", "ReportedToken", "judge", "reported_logprobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedToken:
    """One token's log-probability, as its arm reported and as the baseline scored it."""

    where: str
    reported: float
    scored: float
    accepted: bool | None
    """Whether it was an accepted draft token; None if its window is unknown or may have been cut."""

    @property
    def delta(self) -> float:
        """The reported minus the scored log-probability, in nats."""
        return self.reported - self.scored

    @property
    def middling(self) -> bool:
        """Whether its probability is neither near 0 nor near 1."""
        return MIDDLING[0] < exp(self.scored) < MIDDLING[1]

    def __str__(self) -> str:
        place = {True: ", an accepted draft token", False: ", no draft token", None: ""}[self.accepted]
        return f"{self.where}: reported {self.reported:.4f}, scored {self.scored:.4f}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLogprobs:
    """Log-probabilities that one arm reported."""

    arm: str
    tokens: tuple[ReportedToken, ...]
    squares: tuple[float, ...]
    """Estimates of the squared logit noise, one from every token that is not all but certain."""
    unmatched: tuple[str, ...]
    """A line for each answer that lacks log-probabilities, has more or fewer than tokens, or has a value that cannot be one."""

    @property
    def distances(self) -> tuple[float, ...]:
        """Distances between reported and scored values at tokens of middling probability, in nats."""
        return tuple(abs(token.delta) for token in self.tokens if token.middling)


def reported_logprobs(captured: Captured, arm: str, *, after: int = 0) -> ReportedLogprobs:
    """Return the reported log-probabilities of ``arm``, each beside its score.

    A score is the baseline's log-probability of the same token, in nats: of the raw distribution if the baseline reports raw
    log-probabilities, else after the request's sampling parameters. The baseline decides this for the variant too, since a variant that
    reports another distribution is at fault. The first ``after`` tokens of each answer are left out.
    """
    transcript = _transcript(captured, arm)
    scores = {score.key: score.positions for score in captured.scores.get(arm, ())}
    answers = [] if transcript is None else [answer for answer in transcript.answers if answer.ok and answer.choice.token_ids]
    baseline = captured.capabilities.get(BASELINE)
    requests = captured.workload.by_id
    tokens: list[ReportedToken] = []
    pairs: list[tuple[float, Position]] = []
    for answer in answers:
        positions, logprobs = scores.get(answer.key, ()), answer.choice.logprobs
        if logprobs is None or len(positions) != len(logprobs):
            continue
        distribution = (
            positions if baseline is None or baseline.raw_logprobs else _process_positions(positions, requests[answer.request_id], captured)
        )
        tokens += _logprob_tokens(captured, answer, distribution, after)
        pairs += [
            (value - position.logprob, position)
            for value, position in zip(logprobs[after:], distribution[after:], strict=True)
            if not isnan(position.logprob)
        ]
    unmatched = tuple(fault for answer in answers if (fault := _unmatched_reports(answer)))
    return ReportedLogprobs(arm=arm, tokens=tuple(tokens), squares=tuple(squares(pairs)), unmatched=unmatched)


def _transcript(captured: Captured, arm: str) -> Transcript | None:
    if arm == captured.arm:
        return captured.speculative
    return captured.baseline if arm == BASELINE else captured.control


def _unmatched_reports(answer: Answer) -> str:
    """Return a description of log-probabilities not matching the tokens.

    They are missing, too few or too many, or one is NaN or above 0. Empty if they match.
    """
    logprobs, tokens = answer.choice.logprobs, len(answer.choice.token_ids)
    if logprobs is None:
        return f"{answer.request_id}: no log-probabilities"
    if len(logprobs) != tokens:
        return f"{answer.request_id}: {len(logprobs)} log-probabilities of {tokens} tokens"
    wrong = next((value for value in logprobs if isnan(value) or value > 0.0), None)
    return "" if wrong is None else f"{answer.request_id}: {wrong!r} is no log-probability"


def _logprob_tokens(captured: Captured, answer: Answer, distribution: Sequence[Position], after: int) -> Iterator[ReportedToken]:
    """Yield the scored tokens of an answer, from index ``after`` on.

    ``distribution`` has one position per token. Verify windows, if known, show whether a token was an accepted draft token.
    """
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    slots = unknown_slots(count) if windows is None else slots_from_windows(windows, count, lambda _: captured.pair.variant.draft.tokens)
    for index, (value, position) in enumerate(zip(answer.choice.logprobs or (), distribution, strict=True)):
        if index >= after and not isnan(position.logprob):
            # A window ends with the recovered or the bonus token. Only an answer's last one may end with a draft token: a limit may cut it.
            is_known = slots.known[index] and not (slots.ended[index] and slots.last[index])
            accepted = not (slots.ended[index] or slots.drafted[index] == 0) if is_known else None
            where = f"{answer.request_id}, token {index + 1}"
            yield ReportedToken(where=where, reported=value, scored=position.logprob, accepted=accepted)


def _process_positions(positions: Sequence[Position], request: Request, captured: Captured) -> list[Position]:
    """Return positions with log-probabilities after the request's sampling parameters.

    Serves a baseline that reports these instead of raw log-probabilities: temperature, top-k, top-p and min-p are applied. At temperature 0
    the values stay raw; penalties and biases are not applied, and no request of this family has any. A token to which the parameters leave
    no probability gets NaN, as one without a score does, and is skipped by the caller.
    """
    given = raw_distribution(positions, captured.workload.top_tokens)
    distribution = requested(given, sampling_params(request.body).processing(len(positions)))
    with np.errstate(divide="ignore"):
        top_tokens, chosen = np.log(distribution.p[:, :-1]), np.where(distribution.chosen > 0, np.log(distribution.chosen), np.nan)
    return [
        Position(
            token_id=position.token_id,
            logprob=float(chosen[index]),
            top_ids=tuple(given.ids[index].tolist()),
            top_logprobs=tuple(top_tokens[index].tolist()),
        )
        for index, position in enumerate(positions)
    ]


LEAST_TOKENS = 100
"""Tokens with an estimate of noise that a verdict needs from the arm and from the baseline."""
LATE = 256
"""Tokens of an answer after which the rest is also compared separately: among all tokens, a fault that begins late is hidden."""
WRONG = "reported log-probabilities or verifier numerics"
OF_ACCEPTED = "reported log-probabilities of accepted draft tokens"


_CHANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogprobAnalysis:
    """The reported log-probabilities of the arm compared with those of the baseline."""

    arm: ReportedLogprobs
    baseline: ReportedLogprobs
    comparison: NoiseComparison
    alpha: float
    """Of each test."""
    exact: bool
    """Whether the run has shown that its servers never jump: one token beyond the limit is then proof."""

    @property
    def far(self) -> tuple[ReportedToken, ...]:
        """The arm's tokens of middling probability that are off by more than the limit."""
        return tuple(token for token in self.arm.tokens if token.middling and abs(token.delta) > self.comparison.limit)

    @property
    def wrong(self) -> bool:
        """True if noise or jumps exceed what is tolerated by more than chance explains.

        One token beyond the limit is enough if the servers are exact, or if it is off further than any jump.
        """
        if any(self.exact or abs(token.delta) > IMPOSSIBLE for token in self.far):
            return True
        return min(self.comparison.p_jumps, self.comparison.p_noise) <= self.alpha


def judge(captured: Captured) -> Verdict:
    """Return the verdict on reported log-probabilities beside their scores.

    Two tests, each at ``captured.alpha``, can FAIL. Noise: it exceeds four times the baseline's, less for a noisy one, and also the floor
    (.01 nats in single precision, .05 in half, .15 if one boot of the baseline both answered and scored). Jumps: the share of tokens of
    probability .02 to .98 that are off by half a nat or more exceeds the baseline's. Half of alpha goes to the tokens after the first 256
    of an answer, if there are enough. A single jump fails only if the run has shown that its servers do not jump, or if it is of 20 nats.

    FAIL too if requested log-probabilities are missing or do not match the tokens, or if lists of most probable tokens are incomplete or
    out of order. INCONCLUSIVE if tokens are few or the engine gives no scores. In a workload without scores the baseline's reports stand in
    for them: those of prompts, and at temperature 0 those of the tokens that both arms answered.
    """
    broken = server_failure(captured) or refusal(captured) or check_echo(captured) or check_endings(captured) or wrong_lists(captured)
    if broken is not None:
        return broken
    if not captured.workload.scored:
        return compare_with_baseline(captured)
    return unscorable(captured, rejecting=False) or _compare_logprobs(captured)


def _compare_logprobs(captured: Captured) -> Verdict:
    """Return the verdict on reported values beside scored ones.

    Those after the first 256 tokens of an answer are also compared separately if there are enough, and both comparisons then have half of
    alpha. INVALID if the baseline has none to compare with.
    """
    arm, baseline = reported_logprobs(captured, captured.arm), _baseline_logprobs(captured)
    if not baseline.tokens:
        why = baseline.unmatched[0] if baseline.unmatched else "none of its answers was scored"
        return say(captured, Outcome.INVALID, f"the baseline reported no log-probabilities to compare with: {why}")
    if arm.unmatched:
        return _fail_unmatched(captured, arm)
    fewest = min(len(arm.squares), len(baseline.squares))
    if fewest < LEAST_TOKENS:
        headline = f"not enough evidence: {fewest} informative log-probabilities, {LEAST_TOKENS} needed"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle=f"{LEAST_TOKENS - fewest} more such tokens")
    late = reported_logprobs(captured, captured.arm, after=LATE)
    parts = [arm, late] if len(late.squares) >= LEAST_TOKENS else [arm]
    analyses = [_analyse(captured, part, baseline, captured.alpha / len(parts)) for part in parts]
    wrong = next((analysis for analysis in analyses if analysis.wrong), None)
    if wrong is not None:
        return _fail_logprobs(captured, wrong, place="" if wrong.arm is arm else f" after token {LATE:,}")
    return speculating(captured, rejecting=False) or _pass_logprobs(captured, analyses[0])


def _baseline_logprobs(captured: Captured) -> ReportedLogprobs:
    """Return the reported log-probabilities of one boot of the baseline.

    The arm's are compared with them. A boot scored by another boot is preferred, since the variant was scored by another server too:
    reports and scores of one boot share its noise. If the preferred boot has no scored token, the other boot's are returned.
    """
    scored_themselves = set(captured.scored_by)
    arms = [boot.arm for boot in captured.baseline_boots]
    preferred, *others = (reported_logprobs(captured, arm) for arm in sorted(arms, key=lambda arm: arm in scored_themselves))
    return next((boot for boot in (preferred, *others) if boot.tokens), preferred)


def _analyse(captured: Captured, arm: ReportedLogprobs, baseline: ReportedLogprobs, alpha: float) -> _LogprobAnalysis:
    """Return the comparison of ``arm`` with ``baseline``, each test at ``alpha``.

    A jump is a token off by more than the limit of the comparison. The baseline's are counted over the run's calibration too. One jump of
    the arm is proof if the baseline computes in single precision and none of its own tokens is off by more than .05 nats.
    """
    capabilities = captured.capabilities.get(BASELINE)
    single = capabilities is not None and capabilities.single_precision
    calibration = _calibration_distances(captured)
    distances = (*baseline.distances, *calibration)
    comparison = compare(
        LogprobSample(squares=arm.squares, distances=arm.distances),
        LogprobSample(squares=_squares_between_boots(captured, baseline), distances=distances),
        tolerated_floor(single_precision=single, one_boot=captured.one_boot),
    )
    return _LogprobAnalysis(
        arm=arm, baseline=baseline, comparison=comparison, alpha=alpha, exact=single and max(distances, default=0.0) <= EXACT
    )


def _squares_between_boots(captured: Captured, baseline: ReportedLogprobs) -> Sequence[float]:
    """Return the squared logit noise of the baseline, token by token.

    Usually it is that of ``baseline``. For a judged control scored by the baseline's boot it is that of the calibration, if there is one:
    the baseline scored itself then, which hides the noise between boots, and the control shows it.
    """
    if not captured.is_control or captured.scored_by != (baseline.arm,) or not _calibration_distances(captured):
        return baseline.squares
    return squares((value - position.logprob, position) for value, position in captured.calibration if not isnan(position.logprob))


def _calibration_distances(captured: Captured) -> tuple[float, ...]:
    """Return distances of reported from scored values in the baseline's calibration, in nats.

    They are those of tokens of middling probability. Returns none if the baseline reports processed values, since the scores are raw.
    """
    capabilities = captured.capabilities.get(BASELINE)
    if capabilities is not None and not capabilities.raw_logprobs:
        return ()
    scored = ((value - position.logprob, position.logprob) for value, position in captured.calibration)
    return tuple(abs(delta) for delta, logprob in scored if MIDDLING[0] < exp(logprob) < MIDDLING[1])


def _fail_unmatched(captured: Captured, arm: ReportedLogprobs) -> Verdict:
    headline = f"requested log-probabilities missing or not matching the tokens in {len(arm.unmatched)} answers; first: {arm.unmatched[0]}"
    return say(captured, Outcome.FAIL, headline, evidence=arm.unmatched, cell="missing", names="log-probabilities not reported")


def _fail_logprobs(captured: Captured, analysis: _LogprobAnalysis, *, place: str) -> Verdict:
    """Return FAIL, with its own name if only accepted drafts are off.

    A token is off if its probability lies between .02 and .98 and its reported log-probability further from its score than the limit. If
    there is none, the noise over all tokens is at fault; off are then those further from their scores than three times the baseline's
    noise. ``place`` follows the number of tokens in the headline: empty, or `` after token 256``.
    """
    off = analysis.far or tuple(token for token in analysis.arm.tokens if abs(token.delta) > 3.0 * analysis.comparison.granted)
    name = OF_ACCEPTED if _all_accepted(off, analysis.arm.tokens) else WRONG
    worst = max(analysis.arm.tokens, key=lambda token: abs(token.delta))
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: off by {_rms(analysis.arm.tokens):.3g} nats rms over {len(analysis.arm.tokens):,} tokens{place}; "
        f"the baseline by {_rms(analysis.baseline.tokens):.3g}. The sampled tokens are judged apart",
        short=(
            f"worst        {worst}",
            f"noise        {_describe_noise(analysis.comparison)}",
            f"wrong        {_describe_jumps(analysis)}; {_describe_slots(off)}",
        ),
        evidence=_evidence(analysis),
        cell=f"{_rms(analysis.arm.tokens):.2g} nats off",
        names=name,
        figures=_logprob_figures(analysis),
    )


def _pass_logprobs(captured: Captured, analysis: _LogprobAnalysis) -> Verdict:
    tokens = len(analysis.arm.squares)
    least_noise = detectable(tokens, analysis.baseline.squares, analysis.comparison.floor, analysis.alpha)
    return say(
        captured,
        Outcome.PASS,
        f"{len(analysis.arm.tokens):,} reported log-probabilities off by {_rms(analysis.arm.tokens):.2g} nats rms; "
        f"the baseline by {_rms(analysis.baseline.tokens):.2g}{_describe_kernel(analysis.comparison)}",
        evidence=_evidence(analysis),
        rules_out=f"{tokens:,} tokens checked; logit noise of {least_noise:.2g} nats would have been caught (99%)",
        cell=f"off by {_rms(analysis.arm.tokens):.2g} nats",
        promise=CheckedTokens(tokens=len(analysis.arm.tokens)),
        figures=_logprob_figures(analysis),
    )


def _all_accepted(tokens: Sequence[ReportedToken], everywhere: Sequence[ReportedToken]) -> bool:
    """Return True if all ``tokens`` are accepted draft tokens, beyond chance.

    Tokens of unknown windows are left out. It is chance if as many tokens drawn from ``everywhere``, all tokens of the arm, would all be
    accepted draft tokens with a probability over 1 %.
    """
    accepted = [token.accepted for token in tokens if token.accepted is not None]
    anywhere = [token.accepted for token in everywhere if token.accepted is not None]
    return bool(accepted) and all(accepted) and (sum(anywhere) / len(anywhere)) ** len(accepted) <= _CHANCE


def _describe_slots(tokens: Sequence[ReportedToken]) -> str:
    placed = [token for token in tokens if token.accepted is not None]
    if not placed:
        return "windows unknown"
    accepted = sum(token.accepted is True for token in placed)
    return f"{accepted:,} of {len(placed):,} are accepted draft tokens"


def _rms(tokens: Sequence[ReportedToken]) -> float:
    deltas = [token.delta for token in tokens if isfinite(token.delta)]
    return sqrt(sum(delta * delta for delta in deltas) / len(deltas)) if deltas else 0.0


def _describe_kernel(comparison: NoiseComparison) -> str:
    """Return a clause on a verify kernel noisier than decode; else nothing.

    Up to 1.3 times decode's noise is not worth a word, since chance and other batch shapes make that.
    """
    times = comparison.kernel
    return f"; the verify kernel is {times:.1f} times as noisy as decode" if times is not None and times > TOLERATED else ""


def _describe_noise(comparison: NoiseComparison) -> str:
    return (
        f"{comparison.noise:.3g} nats per logit, {comparison.granted:.3g} in the baseline{_describe_kernel(comparison)}; "
        f"lawful are {max(comparison.factor * comparison.granted, comparison.floor):.3g}, p = {comparison.p_noise:.2g}"
    )


def _describe_jumps(analysis: _LogprobAnalysis) -> str:
    comparison = analysis.comparison
    return (
        f"{comparison.jumps:,} of {len(analysis.arm.distances):,} tokens off by more than {comparison.limit:.2g} nats, "
        f"{comparison.other_jumps:,} of the baseline's by {comparison.limit / comparison.factor:.2g}, p = {comparison.p_jumps:.2g}"
    )


def _evidence(analysis: _LogprobAnalysis) -> tuple[str, ...]:
    """Return the evidence lines of a verdict, PASS or FAIL."""
    return (
        f"logit noise, reported against scored: {_describe_noise(analysis.comparison)}",
        f"{len(analysis.arm.squares):,} informative tokens, {len(analysis.baseline.squares):,} of {analysis.baseline.arm}",
        f"single tokens at probabilities of 2% to 98%: {_describe_jumps(analysis)}"
        + ("; one is proof: no server here jumps" if analysis.exact else ""),
        *(str(token) for token in analysis.far[:50]),
    )


def _logprob_figures(analysis: _LogprobAnalysis) -> dict[str, float]:
    """Return the figures of a verdict, PASS or FAIL."""
    return {
        "tokens": len(analysis.arm.tokens),
        "noise_nats": analysis.comparison.noise,
        "granted_nats": analysis.comparison.granted,
        **({} if analysis.comparison.kernel is None else {"verify_noise_times": analysis.comparison.kernel}),
        "rms_nats": _rms(analysis.arm.tokens),
        "baseline_rms_nats": _rms(analysis.baseline.tokens),
        "tokens_far_off": len(analysis.far),
    }
