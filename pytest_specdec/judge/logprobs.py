"""Log-probabilities: the reported values are the baseline's, on the scale of the baseline's own.

The reported numbers are checked, not the sampled tokens: servers have reported the draft's probabilities of correctly drawn tokens, and a
verifier with wrong numerics shows here long before its tokens do. A verify kernel that is noisier than decode by a bounded factor is
lawful, and said.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, isnan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.baseline_logprobs import beside_the_baselines, echo
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

MIDDLING = (0.02, 0.98)
"""Probabilities between which a single token's difference is looked at: far tails are noisy, certain tokens still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedToken:
    """One token's log-probability as reported and as scored."""

    where: str
    reported: float
    scored: float
    accepted: bool | None
    """Whether it was an accepted draft token; None where windows are unknown."""

    @property
    def delta(self) -> float:
        """Reported minus scored, nats."""
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
    """An estimate of the logit noise's square from every token with a choice in it."""
    unmatched: tuple[str, ...]
    """A line for each answer without log-probabilities, with more or fewer than it has tokens, or with a value that cannot be one."""

    @property
    def distances(self) -> tuple[float, ...]:
        """How far the tokens of middling probability are off, nats."""
        return tuple(abs(token.delta) for token in self.tokens if token.middling)


def reported_logprobs(captured: Captured, arm: str, *, after: int = 0) -> ReportedLogprobs:
    """Return what ``arm`` reported beside the raw distribution, or the processed one where the baseline reports that.

    The first ``after`` tokens of each answer are left out. The variant has no say in which distribution: another one than the baseline's
    may be its fault.
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
            positions
            if baseline is None or baseline.raw_logprobs
            else _requested_positions(positions, requests[answer.request_id], captured)
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
    logprobs, tokens = answer.choice.logprobs, len(answer.choice.token_ids)
    if logprobs is None:
        return f"{answer.request_id}: no log-probabilities"
    if len(logprobs) != tokens:
        return f"{answer.request_id}: {len(logprobs)} log-probabilities of {tokens} tokens"
    wrong = next((value for value in logprobs if isnan(value) or value > 0.0), None)
    return "" if wrong is None else f"{answer.request_id}: {wrong!r} is no log-probability"


def _logprob_tokens(captured: Captured, answer: Answer, distribution: Sequence[Position], after: int) -> Iterator[ReportedToken]:
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    slots = unknown_slots(count) if windows is None else slots_from_windows(windows, count, lambda _: captured.pair.variant.draft.tokens)
    for index, (value, position) in enumerate(zip(answer.choice.logprobs or (), distribution, strict=True)):
        if index >= after and not isnan(position.logprob):
            # A window ends with the recovered or the bonus token; the last one may end with a draft, where a limit or a stop cut it off.
            is_known = slots.known[index] and not (slots.ended[index] and slots.last[index])
            accepted = not (slots.ended[index] or slots.drafted[index] == 0) if is_known else None
            where = f"{answer.request_id}, token {index + 1}"
            yield ReportedToken(where=where, reported=value, scored=position.logprob, accepted=accepted)


def _requested_positions(positions: Sequence[Position], request: Request, captured: Captured) -> list[Position]:
    """Return the distribution that the request asks for in the raw one's place."""
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
"""Informative tokens that a verdict needs of either side."""
LATE = 256
"""Tokens of an answer whose later tokens also get a comparison of their own: among all tokens a fault that begins late is hidden."""
WRONG = "reported log-probabilities or verifier numerics"
OF_ACCEPTED = "reported log-probabilities of accepted draft tokens"


_CHANCE = 0.01
IMPOSSIBLE = 20.0
"""Nats by which no jump of a logit takes a token: such a value is a mark, -9999 say, and no log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogprobAnalysis:
    """Reported log-probabilities of the arm and the baseline."""

    arm: ReportedLogprobs
    baseline: ReportedLogprobs
    comparison: NoiseComparison
    alpha: float
    """Of each test."""
    exact: bool
    """Whether the run has shown that its servers do not jump: then one token is proof."""

    @property
    def far(self) -> tuple[ReportedToken, ...]:
        """The arm's tokens beyond the limit."""
        return tuple(token for token in self.arm.tokens if token.middling and abs(token.delta) > self.comparison.limit)

    @property
    def wrong(self) -> bool:
        """Whether noise or jumps are more than what is lawful and chance explain."""
        if any(self.exact or abs(token.delta) > IMPOSSIBLE for token in self.far):
            return True
        return min(self.comparison.p_jumps, self.comparison.p_noise) <= self.alpha


def judge(captured: Captured) -> Verdict:
    """Return whether the reported log-probabilities lie as near to teacher forcing as those of the baseline's other boots.

    FAIL where their noise exceeds four times the baseline's and what is lawful anywhere (.01 nats in single, .05 in half precision, .15
    where one boot of the baseline answered and scored), and where more tokens of probability .02 to .98 are off by half a nat and more
    than the baseline's: two tests, each at ``captured.alpha``; half of it goes to tokens after the first 256 of an answer by themselves.
    One such token fails only where the run has shown that its servers do not jump, or is off by 20 nats.

    FAIL where asked-for log-probabilities are missing or do not match the tokens. INCONCLUSIVE for few tokens, and where the engine gives
    no scores. Lists of most probable tokens must hold what was asked for, in order. Where a workload is not scored, the values that the
    baseline reported stand in for scores: those of its prompts, and at temperature 0 those of the tokens that both answered.
    """
    broken = server_failure(captured) or refusal(captured) or echo(captured) or check_endings(captured) or wrong_lists(captured)
    if broken is not None:
        return broken
    if not captured.workload.scored:
        return beside_the_baselines(captured)
    return unscorable(captured, rejecting=False) or _compare_logprobs(captured)


def _compare_logprobs(captured: Captured) -> Verdict:
    arm, baseline = reported_logprobs(captured, captured.arm), _peer(captured)
    if not baseline.tokens:
        why = baseline.unmatched[0] if baseline.unmatched else "none of its answers was scored"
        return say(captured, Outcome.INVALID, f"the baseline reported no log-probabilities to compare with: {why}")
    if arm.unmatched:
        return _fail_unmatched(captured, arm)
    few = min(len(arm.squares), len(baseline.squares))
    if few < LEAST_TOKENS:
        headline = f"not enough evidence: {few} informative log-probabilities, {LEAST_TOKENS} needed"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle=f"{LEAST_TOKENS - few} more such tokens")
    late = reported_logprobs(captured, captured.arm, after=LATE)
    parts = [arm, late] if len(late.squares) >= LEAST_TOKENS else [arm]
    analyses = [_analysis(captured, part, baseline, captured.alpha / len(parts)) for part in parts]
    wrong = next((analysis for analysis in analyses if analysis.wrong), None)
    if wrong is not None:
        return _fail_logprobs(captured, wrong, place="" if wrong.arm is arm else f" after token {LATE:,}")
    return speculating(captured, rejecting=False) or _pass_logprobs(captured, analyses[0])


def _peer(captured: Captured) -> ReportedLogprobs:
    """Return what the baseline's boot reported that was scored by another boot, as the variant was; else what its other boot did."""
    arms = [boot.arm for boot in captured.baseline_boots]
    first, *others = (reported_logprobs(captured, arm) for arm in sorted(arms, key=lambda arm: arm in captured.scored_by))
    return next((each for each in (first, *others) if each.tokens), first)


def _analysis(captured: Captured, arm: ReportedLogprobs, baseline: ReportedLogprobs, alpha: float) -> _LogprobAnalysis:
    capabilities = captured.capabilities.get(BASELINE)
    single = capabilities is not None and capabilities.single_precision
    calibration = _calibration(captured)
    distances = (*baseline.distances, *calibration)
    comparison = compare(
        LogprobSample(squares=arm.squares, distances=arm.distances),
        LogprobSample(squares=_squares_of_two_boots(captured, baseline), distances=distances),
        tolerated_floor(single_precision=single, one_boot=captured.one_boot),
    )
    return _LogprobAnalysis(
        arm=arm, baseline=baseline, comparison=comparison, alpha=alpha, exact=single and max(distances, default=0.0) <= EXACT
    )


def _squares_of_two_boots(captured: Captured, baseline: ReportedLogprobs) -> Sequence[float]:
    """Return the baseline's, or those of the calibration where the baseline scored itself and the judged control was scored by it."""
    if not captured.is_control or captured.scored_by != (baseline.arm,) or not _calibration(captured):
        return baseline.squares
    return squares((value - position.logprob, position) for value, position in captured.calibration if not isnan(position.logprob))


def _calibration(captured: Captured) -> tuple[float, ...]:
    """Return how far the baseline's values in the run's calibration are off, at tokens of middling probability."""
    capabilities = captured.capabilities.get(BASELINE)
    if capabilities is not None and not capabilities.raw_logprobs:
        return ()
    scored = ((value - position.logprob, position.logprob) for value, position in captured.calibration)
    return tuple(abs(delta) for delta, logprob in scored if MIDDLING[0] < exp(logprob) < MIDDLING[1])


def _fail_unmatched(captured: Captured, arm: ReportedLogprobs) -> Verdict:
    headline = f"requested log-probabilities missing or not matching the tokens in {len(arm.unmatched)} answers; first: {arm.unmatched[0]}"
    return say(captured, Outcome.FAIL, headline, evidence=arm.unmatched, cell="missing", names="log-probabilities not reported")


def _fail_logprobs(captured: Captured, analysis: _LogprobAnalysis, *, place: str) -> Verdict:
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
            f"noise        {_noise(analysis.comparison)}",
            f"wrong        {_jumps(analysis)}; {_logprob_slots(off)}",
        ),
        evidence=_evidence(analysis),
        cell=f"{_rms(analysis.arm.tokens):.2g} nats off",
        names=name,
        figures=_logprob_figures(analysis),
    )


def _pass_logprobs(captured: Captured, analysis: _LogprobAnalysis) -> Verdict:
    tokens = len(analysis.arm.squares)
    shown = detectable(tokens, analysis.baseline.squares, analysis.comparison.floor, analysis.alpha)
    return say(
        captured,
        Outcome.PASS,
        f"{len(analysis.arm.tokens):,} reported log-probabilities off by {_rms(analysis.arm.tokens):.2g} nats rms; "
        f"the baseline by {_rms(analysis.baseline.tokens):.2g}{_kernel(analysis.comparison)}",
        evidence=_evidence(analysis),
        rules_out=f"{tokens:,} tokens checked; logit noise of {shown:.2g} nats would have been caught (99%)",
        cell=f"off by {_rms(analysis.arm.tokens):.2g} nats",
        promise=CheckedTokens(tokens=len(analysis.arm.tokens)),
        figures=_logprob_figures(analysis),
    )


def _all_accepted(tokens: Sequence[ReportedToken], everywhere: Sequence[ReportedToken]) -> bool:
    """Whether all of ``tokens`` of which it is known are accepted draft tokens, where evenly spread ones would hardly all be."""
    known = [token.accepted for token in tokens if token.accepted is not None]
    slots = [token.accepted for token in everywhere if token.accepted is not None]
    return bool(known) and all(known) and (sum(slots) / len(slots)) ** len(known) <= _CHANCE


def _logprob_slots(tokens: Sequence[ReportedToken]) -> str:
    known = [token for token in tokens if token.accepted is not None]
    if not known:
        return "windows unknown"
    accepted = sum(token.accepted is True for token in known)
    return f"{accepted:,} of {len(known):,} are accepted draft tokens"


def _rms(tokens: Sequence[ReportedToken]) -> float:
    deltas = [token.delta for token in tokens if isfinite(token.delta)]
    return sqrt(sum(delta * delta for delta in deltas) / len(deltas)) if deltas else 0.0


def _kernel(comparison: NoiseComparison) -> str:
    """Return how noisy the verify kernel is, where that is more than decode by more than chance and shapes of batches make it."""
    times = comparison.kernel
    return f"; the verify kernel is {times:.1f} times as noisy as decode" if times is not None and times > TOLERATED else ""


def _noise(comparison: NoiseComparison) -> str:
    return (
        f"{comparison.noise:.3g} nats per logit, {comparison.granted:.3g} in the baseline{_kernel(comparison)}; "
        f"lawful are {max(comparison.factor * comparison.granted, comparison.floor):.3g}, p = {comparison.p_noise:.2g}"
    )


def _jumps(analysis: _LogprobAnalysis) -> str:
    comparison = analysis.comparison
    return (
        f"{comparison.jumps:,} of {len(analysis.arm.distances):,} tokens off by more than {comparison.limit:.2g} nats, "
        f"{comparison.other_jumps:,} of the baseline's by {comparison.limit / comparison.factor:.2g}, p = {comparison.p_jumps:.2g}"
    )


def _evidence(analysis: _LogprobAnalysis) -> tuple[str, ...]:
    return (
        f"logit noise, reported against scored: {_noise(analysis.comparison)}",
        f"{len(analysis.arm.squares):,} informative tokens, {len(analysis.baseline.squares):,} of {analysis.baseline.arm}",
        f"single tokens at probabilities of 2% to 98%: {_jumps(analysis)}"
        + ("; one is proof: no server here jumps" if analysis.exact else ""),
        *(str(token) for token in analysis.far[:50]),
    )


def _logprob_figures(analysis: _LogprobAnalysis) -> dict[str, float]:
    return {
        "tokens": len(analysis.arm.tokens),
        "noise_nats": analysis.comparison.noise,
        "granted_nats": analysis.comparison.granted,
        **({} if analysis.comparison.kernel is None else {"verify_noise_times": analysis.comparison.kernel}),
        "rms_nats": _rms(analysis.arm.tokens),
        "baseline_rms_nats": _rms(analysis.baseline.tokens),
        "tokens_far_off": len(analysis.far),
    }
