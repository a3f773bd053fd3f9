"""Reported log-probabilities beside scores, and whether they lie as near to them as the baseline's do."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, isnan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.transcript import Position
from pytest_specdec.stats.logprob_noise import squares
from pytest_specdec.stats.noise_comparison import EXACT, LogprobSample, compare, lawful_floor
from pytest_specdec.stats.request_params import sampling_params
from pytest_specdec.stats.token_distribution import raw_distribution, requested
from pytest_specdec.stats.verify_slots import slots_from_windows, unknown_slots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.noise_comparison import NoiseComparison

__all__ = ["LogprobAnalysis", "ReportedLogprobs", "ReportedToken", "analyse", "peer", "reported", "rms"]

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
    """Answers whose log-probabilities are missing or are not one number per token."""

    @property
    def distances(self) -> tuple[float, ...]:
        """How far the tokens of middling probability are off, nats."""
        return tuple(abs(token.delta) for token in self.tokens if token.middling)


def reported(captured: Captured, arm: str, *, after: int = 0, only: Collection[str] | None = None) -> ReportedLogprobs:
    """Return what ``arm`` reported beside the raw distribution, or the processed one where the baseline reports that.

    The first ``after`` tokens of each answer are left out, and of requests outside ``only``, where it is given, all. The variant has no say
    in which distribution: another one than the baseline's may be its fault.
    """
    transcript = _transcript(captured, arm)
    scores = {score.key: score.positions for score in captured.scores.get(arm, ())}
    answers = [] if transcript is None else [answer for answer in transcript.answers if answer.ok and answer.choice.token_ids]
    answers = [answer for answer in answers if only is None or answer.request_id in only]
    known = captured.capabilities.get(BASELINE)
    requests = {request.id: request for request in captured.workload.requests}
    tokens: list[ReportedToken] = []
    pairs: list[tuple[float, Position]] = []
    for answer in answers:
        positions, logprobs = scores.get(answer.key, ()), answer.choice.logprobs
        if logprobs is None or len(positions) != len(logprobs):
            continue
        distribution = positions if known is None or known.raw_logprobs else _processed(positions, requests[answer.request_id], captured)
        tokens += _tokens(captured, answer, distribution, after)
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


def _tokens(captured: Captured, answer: Answer, distribution: Sequence[Position], after: int) -> Iterator[ReportedToken]:
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    slots = unknown_slots(count) if windows is None else slots_from_windows(windows, count, lambda _: captured.pair.variant.draft.tokens)
    for index, (value, position) in enumerate(zip(answer.choice.logprobs or (), distribution, strict=True)):
        if index >= after and not isnan(position.logprob):
            # A window ends with the recovered or the bonus token; the last one may end with a draft, where a limit or a stop cut it off.
            is_known = slots.known[index] and not (slots.ended[index] and slots.last[index])
            accepted = not (slots.ended[index] or slots.drafted[index] == 0) if is_known else None
            where = f"{answer.request_id}, token {index + 1}"
            yield ReportedToken(where=where, reported=value, scored=position.logprob, accepted=accepted)


def _processed(positions: Sequence[Position], request: Request, captured: Captured) -> list[Position]:
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


IMPOSSIBLE = 20.0
"""Nats by which no jump of a logit takes a token: such a value is a mark, -9999 say, and no log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobAnalysis:
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
        return any(self.exact or abs(token.delta) > IMPOSSIBLE for token in self.far) or self.p_value <= self.alpha

    @property
    def p_value(self) -> float:
        """The smaller one of both tests."""
        return min(self.comparison.p_jumps, self.comparison.p_noise)


def peer(captured: Captured, only: Collection[str] | None = None) -> ReportedLogprobs:
    """Return what the baseline's boot reported that was scored by another boot, as the variant was; else what its other boot did."""
    boots = [BASELINE, *([] if captured.is_control or captured.control is None else [CONTROL])]
    first, *others = (reported(captured, arm, only=only) for arm in sorted(boots, key=lambda arm: arm in captured.scored_by))
    return next((each for each in (first, *others) if each.tokens), first)


def analyse(captured: Captured, arm: ReportedLogprobs, baseline: ReportedLogprobs, alpha: float) -> LogprobAnalysis:
    """Compare what the judged arm reported with what the baseline did, neither empty; each of two tests is made at ``alpha``."""
    known = captured.capabilities.get(BASELINE)
    single = known is not None and known.single_precision
    calibration = _calibration(captured)
    distances = (*baseline.distances, *calibration)
    comparison = compare(
        LogprobSample(squares=arm.squares, distances=arm.distances),
        LogprobSample(squares=_squares_of_two_boots(captured, baseline), distances=distances),
        lawful_floor(single_precision=single, one_boot=captured.one_boot),
    )
    return LogprobAnalysis(
        arm=arm, baseline=baseline, comparison=comparison, alpha=alpha, exact=single and max(distances, default=0.0) <= EXACT
    )


def _squares_of_two_boots(captured: Captured, baseline: ReportedLogprobs) -> Sequence[float]:
    """Return the baseline's, or those of the calibration where the baseline scored itself and the judged control was scored by it."""
    if not captured.is_control or captured.scored_by != (baseline.arm,) or not _calibration(captured):
        return baseline.squares
    return squares((value - position.logprob, position) for value, position in captured.calibration if not isnan(position.logprob))


def _calibration(captured: Captured) -> tuple[float, ...]:
    """Return how far the baseline's values in the run's calibration are off, at tokens of middling probability."""
    known = captured.capabilities.get(BASELINE)
    if known is not None and not known.raw_logprobs:
        return ()
    scored = ((value - position.logprob, position.logprob) for value, position in captured.calibration)
    return tuple(abs(delta) for delta, logprob in scored if MIDDLING[0] < exp(logprob) < MIDDLING[1])


def rms(tokens: Sequence[ReportedToken]) -> float:
    """Return how far ``tokens`` are off, nats, as a root mean square over those that are numbers; 0 of none."""
    known = [token.delta for token in tokens if isfinite(token.delta)]
    return sqrt(sum(delta * delta for delta in known) / len(known)) if known else 0.0
