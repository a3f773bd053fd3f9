"""A tolerance: the largest gap of a correct server's token to the baseline's best one, in nats, from the measured noise of the run.

Noise is the standard deviation of one logit between two computations of it. An event is a token beyond the tolerance; a jump is one that
comes from rounding, as where another expert of a mixture moves all logits. The calibration has plain draws of the baseline, each with its
reported and its scored log-probability. A round is the same requests sent again. The control is the baseline booted again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.greedy_gap import distinct_gaps
from pytest_specdec.judge.verdicts import power_of_ten
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.stats import excess, proportions
from pytest_specdec.stats.excess import EventCount
from pytest_specdec.stats.jumps import JUMP_RATE
from pytest_specdec.stats.logprob_noise import NORMAL_UP_TO, Calibration, calibrate
from pytest_specdec.stats.near_ties import HALF_PRECISION, SINGLE_PRECISION, UNSEEN, FlipNoise, sigma_of
from pytest_specdec.stats.noise import EXACT, ROUNDING, BootNoise, KernelNoise, answer_scales, boot_noise, is_noisier, kernel_noise
from pytest_specdec.stats.noise_comparison import tolerated_floor
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Position

__all__ = [
    "OPEN_AT",
    "REPEAT_AT",
    "STATED",
    "VERIFY_FACTOR",
    "Tolerance",
    "allowed_gap",
    "describe_jumps",
    "describe_noise",
    "describe_remedy",
    "has_exact_kernels",
    "jump_rate",
    "logit_noise",
    "tolerance",
]

STATED = 0.25
"""Nats: the least tolerance. A wrongly emitted draft token exceeds it in 86 to 90 % of cases."""

_GAP_PER_NOISE = 8.0
"""Tolerance over measured noise.

Noise is measured between two computations, so that s on both sides is measured as sqrt2 s. No gap of 6.4 million simulated tokens exceeded
8 sqrt2 s.
"""

VERIFY_FACTOR = 5.0
"""Times the noise of decoding up to which the noise of a verify kernel is tolerated: k + 1 tokens take other tiles and splits. Three times
was measured."""
_SURELY_NOISIER = 1.1
"""Times the tolerated noise above which a verify kernel is surely too noisy (size: tests/stats/test_noise.py, by simulation)."""
_VERIFY_FLOOR_HALF, _VERIFY_FLOOR_SINGLE = NORMAL_UP_TO, EXACT
"""Nats of noise that are tolerated in a verify kernel, however exact decoding is. If one boot of the baseline answered and scored, the
noise that two boots may have between them is tolerated too."""
_MARGIN = 1.3
"""Factor on the measured differences: they differ between the tokens that show them and those that are judged."""
_UNKNOWN = 0.125
"""Nats of noise assumed in half precision if no log-probabilities were reported that could show it."""
_OFTEN, _LEVEL = 5e-3, 1e-4
"""A baseline repeats itself unless surely more than five in a thousand of its own tokens lie beyond the tolerance, by a test at the level
1e-4."""
_ASK_AGAIN = "the same requests again, by --specdec-continue: a fault comes back, a jump does not"
_RUN_AGAIN = (
    "another run: a fault comes back, a jump does not; rounds within a run send no long prompts, pictures or minutes of traffic again, "
    "which take too long"
)
OPEN_AT = 100.0
"""Evidence, 1/p, from which on wrong tokens are too many for noise: a correct server reaches it in 1 of 100 cases at most."""
REPEAT_AT = 10.0
"""The same if the run can send the requests again, which costs a correct server time and no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest gap explained by noise, its origin, and how often the baseline exceeds it."""

    gap: float
    """Nats."""
    reason: str
    """The origin of the gap, in words."""
    calibration: Calibration
    """The noise of decoding, measured on the baseline."""
    noise: float
    """Noise of one logit that the judged arm may have, in nats."""
    verify_factor: float
    """Noise of the verify kernel over that of decoding; 1 if it is no noisier, or unknown."""
    trustworthy: bool
    """Whether the baseline repeats itself well enough to judge."""

    flips: FlipNoise
    """The noise that flips near-ties."""
    sigma_reason: str
    """The origin of the standard deviation in ``flips``, in words."""

    exact: bool
    """Whether the calibration and the baseline's boots show no jumps: one token beyond the tolerance is then proof. False for the control,
    whose own answers are part of what shows it."""
    peer_events: int
    """Tokens beyond the tolerance, of the baseline's own boots and of the calibration."""
    peer_tokens: int
    """All tokens of both."""
    boot_events: int
    """Tokens beyond the tolerance, of the baseline's own boots alone."""
    boot_tokens: int
    """All tokens of these boots."""
    boot_noise: BootNoise | None = None
    """Noise that a boot of the baseline adds to a logit at every call alike; None if the run does not show it."""
    open_at: float = OPEN_AT
    """Evidence from which on a count is undecided."""
    between_boots: bool = False
    """Whether the events of the baseline's boots are differences between these: boots that compute alike show no jumps."""

    @property
    def peer_excess(self) -> str:
        """The baseline's own tokens beyond the tolerance, in words."""
        return f"{self.peer_events:,} of {self.peer_tokens:,} of the baseline's"

    def describe_excess(self, events: int, tokens: int, repeats: Sequence[EventCount] = ()) -> str:
        """Return a clause on tokens beyond the tolerance that are no alarm.

        They are ``events`` of ``tokens``, and those of the rounds ``repeats``. Empty without events.
        """
        return (
            f" ({events:,} beyond the noise, too few for an alarm: {self.peer_excess}{self._describe_rounds(events, tokens, repeats)})"
            if events
            else ""
        )

    def _describe_rounds(self, events: int, tokens: int, repeats: Sequence[EventCount]) -> str:
        """Return the counts of rounds with the requests sent again, in words; empty without a round."""
        if not repeats:
            return ""
        arm = f"{sum(count.events for count in repeats):,} of {sum(count.tokens for count in repeats):,} asked again"
        peers = f"{sum(count.peer_events for count in repeats):,} of {sum(count.peer_tokens for count in repeats):,} of the baseline's"
        return f"; {arm}, {peers}; evidence of all {power_of_ten(self.log_evidence(events, tokens, repeats))}"

    def count_round(self, events: int, tokens: int) -> EventCount:
        """Return an arm's events of one repeat, beside the baseline's own."""
        return EventCount(events=events, tokens=tokens, peer_events=self.boot_events, peer_tokens=self.boot_tokens)

    def log_evidence(self, events: int, tokens: int, repeats: Sequence[EventCount] = ()) -> float:
        """Return the natural log of the evidence for a fault.

        ``events`` of ``tokens`` lie beyond the tolerance; ``repeats`` are the counts of rounds with the same requests sent again. The
        evidence is that the arm has more events per token than the baseline (stats/excess.py).
        """
        first = EventCount(events=events, tokens=tokens, peer_events=self.peer_events, peer_tokens=self.peer_tokens)
        evidence = excess.log_evidence([first, *repeats])
        if not self._is_held_to_calibration:
            return evidence
        # The least of two: the calibration alone has to show it too, for all rounds together.
        all_events, all_tokens = events + sum(count.events for count in repeats), tokens + sum(count.tokens for count in repeats)
        return min(evidence, excess.log_evidence([self._calibration_count(all_events, all_tokens)]))

    @property
    def _is_held_to_calibration(self) -> bool:
        """True if there must be evidence against the calibration alone too.

        Needed if the baseline's events are differences of two boots: two that compute alike show no jumps, and beside them a correct arm's
        jumps could be an alarm. Possible if the calibration has tokens, which ``peer_tokens`` includes.
        """
        return self.between_boots and self.peer_tokens > self.boot_tokens

    def _calibration_count(self, events: int, tokens: int) -> EventCount:
        """Return an arm's events beside those of the calibration alone."""
        peer_events, peer_tokens = self.peer_events - self.boot_events, self.peer_tokens - self.boot_tokens
        return EventCount(events=events, tokens=tokens, peer_events=peer_events, peer_tokens=peer_tokens)

    def is_wrong(self, events: int, tokens: int, alpha: float, repeats: Sequence[EventCount] = ()) -> bool:
        """Return True if so many tokens beyond the tolerance are a fault.

        On exact servers one is enough. Otherwise the evidence must reach 1/alpha; it never does if ``alpha`` is 0.
        """
        evidence = self.log_evidence(events, tokens, repeats)
        return bool(events) and (self.exact or (alpha > 0.0 and evidence >= -log(alpha)))

    def is_open(self, events: int, tokens: int, repeats: Sequence[EventCount] = ()) -> bool:
        """Return True if another round of the requests should decide.

        The count must be too high for noise, and rounds must be left. After a first round without such tokens no other is needed. Callers
        call :meth:`is_wrong` first, so that the count is too low for an alarm.
        """
        if not events or len(repeats) >= ROUNDS or (repeats and not any(count.events for count in repeats)):
            return False
        return self.log_evidence(events, tokens, repeats) >= log(self.open_at)

    @property
    def chance(self) -> float:
        """The rate at which a correct server's tokens exceed the tolerance.

        It is the one-sided upper limit at 99 %, which is that of two-sided limits at 98 %. It is 0 if the servers are exact, so that they
        do not jump.
        """
        return 0.0 if self.exact else proportions.limits(self.peer_events, self.peer_tokens, 0.98).high

    @property
    def is_chance_unknown(self) -> bool:
        """True if the chance is not known to be below 1, as without a token of the baseline's."""
        return self.chance >= 1.0

    def ruled_out(self, tokens: int, alpha: float, checked: int = 0) -> float:
        """Return the least rate of wrong tokens caught with probability .99.

        Caught means an alarm at ``alpha`` over ``tokens``, or over ``checked`` ones if these are more. Each of ``tokens`` is taken to be
        wrong independently of the others; the result does not hold for wrong tokens that gather in a few answers. It is 1 if no rate would
        be caught.
        """
        return _least_rate(self._alarm_at(max(tokens, checked), alpha), tokens)

    def ruled_out_answers(self, lengths: Sequence[int], tokens: int, alpha: float) -> float:
        """Return the least share of wrong answers caught with probability .99.

        Caught means an alarm at ``alpha`` over all ``tokens``. Answers are taken to be wrong independently of each other. A wrong one adds
        as many wrong tokens as ``lengths`` has for it. It is 1 if no share would be caught.
        """
        least = self._alarm_at(tokens, alpha)
        if least is None:
            return 1.0
        # The wrong answers are assumed to be the shortest, so that the most are needed.
        alarming = [number for number, reached in enumerate(accumulate(sorted(lengths)), 1) if reached >= least]
        return _least_rate(min(alarming, default=None), len(lengths))

    def describe_ruled_out(self, rate: float, share: float) -> str:
        """Return a sentence on the rates of :meth:`ruled_out` and :meth:`ruled_out_answers`."""
        answers = f", or {share:.1%} of the answers wrong throughout," if share < 1.0 else ""
        return f"wrong tokens spread evenly at a rate above {rate:.2%}{answers} would have been caught (99%)"

    def _alarm_at(self, tokens: int, alpha: float) -> int | None:
        """Return the least number of wrong tokens for an alarm; None if all would be too few."""
        if self.exact:
            return 1
        peers = [(self.peer_events, self.peer_tokens)]
        if self._is_held_to_calibration:  # the alarm must also be one beside the calibration alone
            peers.append((self.peer_events - self.boot_events, self.peer_tokens - self.boot_tokens))
        alarms = [excess.alarm_at(tokens, *counts, alpha) for counts in peers]
        return None if None in alarms else max(count for count in alarms if count is not None)


def _least_rate(hits: int | None, trials: int) -> float:
    """Return the rate at which at least ``hits`` of ``trials`` hit with probability .99; 1 if even all are too few."""
    # Two-sided limits at 98 % are one-sided ones at 99 %.
    return 1.0 if hits is None or hits > trials else proportions.limits(hits - 1, trials, 0.98).high


def tolerance(captured: Captured, peers: Sequence[ScoredAnswer]) -> Tolerance:
    """Return the tolerance by the gaps of ``peers``, the baseline's answers.

    Repeated computations count once, see :func:`allowed_gap` for the rest.
    """
    return allowed_gap(captured, distinct_gaps(captured.workload, peers))


def allowed_gap(captured: Captured, peer_gaps: Iterable[float]) -> Tolerance:
    """Return the tolerance max(0.25, 8 s) nats, for logit noise s.

    s is the noise of decoding, by the baseline's calibration, or of the variant's verify kernel, as far as :func:`_allow_noise` allows it.

    The result also counts how often the baseline is beyond the tolerance: by ``peer_gaps``, its own gaps in nats, and by the calibration's
    differences. These are at least as frequent as gaps, since a gap needs a difference and a near-tie as well. ``flips`` has the noise that
    may flip near-ties of a correct arm.
    """
    gaps = np.array(list(peer_gaps), dtype=np.float64)
    calibration, decode = logit_noise(captured), kernel_noise(captured.calibration)
    allowed = _allow_noise(captured, calibration)
    gap = max(STATED, _GAP_PER_NOISE * allowed.noise)
    beyond = decode.beyond(gap)
    boot_events = int((gaps > gap).sum())
    return Tolerance(
        gap=gap,
        reason="fixed minimum" if gap == STATED else f"8 x {allowed.reason}",
        calibration=calibration,
        noise=allowed.noise,
        verify_factor=allowed.factor,
        # Not if surely more than _OFTEN of the baseline's own tokens lie beyond.
        trustworthy=calibration.valid and proportions.greater_than_rate(boot_events, len(gaps), _OFTEN) > _LEVEL,
        flips=FlipNoise(
            sigma=sigma_of(allowed.noise, allowed.floor),
            unseen=max(UNSEEN, decode.beyond(gap / 2.0).rate),
            # The measured differences, scaled up to the noise that is allowed.
            tail=_MARGIN * allowed.noise / calibration.noise * decode.of_logit if calibration.noise else decode.of_logit,
        ),
        sigma_reason=f"1.3 sqrt2 x {allowed.reason}" if sigma_of(allowed.noise, 0.0) > allowed.floor else allowed.floor_reason,
        # Calibration and baseline show nothing but rounding.
        exact=not captured.is_control and _is_exact(captured, calibration, decode) and float(gaps.max(initial=0.0)) <= EXACT,
        peer_events=boot_events + beyond.jumps,
        peer_tokens=len(gaps) + beyond.tokens,
        boot_events=boot_events,
        boot_tokens=len(gaps),
        boot_noise=boot_noise(answer_scales(captured.calibration.answers), answer_scales(captured.same_boot_calibration.answers)),
        open_at=REPEAT_AT if captured.repeatable else OPEN_AT,
    )


def describe_remedy(captured: Captured) -> str:
    """Return what settles an open count of wrong tokens, in words."""
    return _ASK_AGAIN if captured.family in COUNTED else _RUN_AGAIN


def describe_noise(tolerance: Tolerance) -> str:
    """Return the noise of the run in a few words."""
    if tolerance.exact:
        return "numbers are exact"
    jumps = f"at most 1 jump in {1.0 / tolerance.chance:,.0f} tokens" if not tolerance.is_chance_unknown else "jumps unknown"
    return f"noise {tolerance.noise:.3f} nats, {jumps}"


def describe_jumps(tolerance: Tolerance) -> str:
    """Return a line on jumps, boot noise and a verify kernel noisier than decode."""
    if tolerance.exact:
        jumps = "the servers do not jump: one token beyond the tolerance is proof"
    else:
        jumps = f"at most 1 token in {1.0 / tolerance.chance:,.0f} jumps beyond the tolerance (99%)"
    kernel = f"; the verify kernel is {tolerance.verify_factor:.1f} times as noisy as decode" if tolerance.verify_factor > 1.0 else ""
    between_boots = f"; {tolerance.boot_noise}" if tolerance.boot_noise else ""
    return jumps + between_boots + kernel


def _is_exact(captured: Captured, measured: Calibration, decode: KernelNoise) -> bool:
    """Return True if reported log-probabilities differ from scores by rounding alone.

    Both are the baseline's. If the run has a calibration, its ``decode`` noise decides. If not, ``measured`` decides: the noise in the
    judged workload's own answers. Without any measurement, the baseline has to compute in single precision.
    """
    if captured.calibration:
        return decode.exact
    return _single_precision(captured) if measured.noise is None else measured.largest <= EXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class _AllowedNoise:
    """The noise of one logit that the judged arm may have, nats."""

    noise: float
    reason: str
    """The origin of the noise, in words."""
    factor: float = 1.0
    """Noise of the verify kernel over that of decoding; 1 if it is no noisier, or unknown."""
    floor: float
    """Least standard deviation of the difference of two logits, by the precision."""
    floor_reason: str
    """The origin of the floor, in words."""


def _allow_noise(captured: Captured, calibration: Calibration) -> _AllowedNoise:
    """Return the noise allowed to the judged arm, with its reason.

    It is the baseline's noise of decoding, or the verify kernel's if that is larger, up to a limit. Without reported log-probabilities the
    noise is assumed by the precision: 0 in single, :data:`_UNKNOWN` in half precision.
    """
    single = _single_precision(captured)
    floor, kind = (SINGLE_PRECISION, "float32") if single else (HALF_PRECISION, "half precision")
    floor_reason = f"minimum for {kind}"
    if calibration.noise is None:
        noise = 0.0 if single else _UNKNOWN
        reason = f"logit noise {noise:g}, granted to {kind}: nothing was reported that shows it"
        return _AllowedNoise(noise=noise, reason=reason, floor=floor, floor_reason=floor_reason)
    decode, verify = calibration.noise, kernel_noise(captured.verify_calibration).scale or 0.0
    # However exact decoding is, so much is tolerated in a verify kernel and between two boots.
    verify_floor = _VERIFY_FLOOR_SINGLE if single else _VERIFY_FLOOR_HALF
    boots_floor = tolerated_floor(single_precision=single, one_boot=captured.one_boot)
    limit = max(VERIFY_FACTOR * decode, verify_floor, boots_floor)
    # A verify kernel that is surely above the limit is faulty, and allows no noise of its own.
    is_faulty = is_noisier(answer_scales(captured.verify_calibration.answers), _SURELY_NOISIER * limit)
    noise = decode if is_faulty else max(decode, min(verify, limit))
    factor = verify / decode if decode > ROUNDING and verify > decode else 1.0
    reason = (
        f"logit noise {decode:.4f}, measured over {calibration.tokens:,} tokens"
        if noise == decode
        else f"logit noise {noise:.4f} of the verify kernel"
    )
    return _AllowedNoise(noise=noise, reason=reason, factor=factor, floor=floor, floor_reason=floor_reason)


def _single_precision(captured: Captured) -> bool:
    """Return True if the baseline is known to compute in single precision."""
    capabilities = captured.capabilities.get(BASELINE)
    return capabilities is not None and capabilities.single_precision


def jump_rate(captured: Captured) -> float:
    """Return the rate of jumps in the baseline's distribution.

    A jump is a position at which another distribution takes its place. The rate is 0 if the run shows that its servers are exact. Else it
    is how often the calibration's differences exceed the tolerance, and at least :data:`JUMP_RATE`.
    """
    calibration, decode = logit_noise(captured), kernel_noise(captured.calibration)
    if _is_exact(captured, calibration, decode):
        return 0.0
    gap = max(STATED, _GAP_PER_NOISE * (calibration.noise or 0.0))  # the tolerance by the noise of decoding alone
    return max(JUMP_RATE, decode.beyond(gap).rate)


def has_exact_kernels(captured: Captured) -> bool:
    """Return True if neither decoding nor verifying differs from scores by more than rounding.

    Each kernel shows that by its calibration. For a verify kernel without one, single precision is enough.
    """
    # With a calibration the rate is 0 only if decoding is exact by it.
    if not captured.calibration or jump_rate(captured) > 0.0:
        return False
    return kernel_noise(captured.verify_calibration).exact if captured.verify_calibration else _single_precision(captured)


def logit_noise(captured: Captured) -> Calibration:
    """Return the noise of the baseline's reported log-probabilities against scores.

    The calibration of the whole run is used if there is one, else the judged workload's own answers. Its ``noise`` is None if no raw
    log-probabilities were reported.
    """
    if captured.calibration:
        return calibrate(captured.calibration)
    pairs = (pair for arm in (BASELINE, CONTROL) for pair in _reported_logprobs(captured, arm))
    return calibrate(pairs, unprocessed=all(request.unprocessed for request in captured.workload.requests))


def _reported_logprobs(captured: Captured, arm: str) -> Iterator[tuple[float, Position]]:
    """Yield the log-probabilities reported by a baseline boot, with scores.

    ``arm`` is the baseline or its control. Nothing is yielded if the reported values are not raw. Requests with penalties are left out.
    """
    transcript = captured.baseline if arm == BASELINE else captured.control
    # A control that was not probed is the same server as the baseline.
    capabilities = captured.capabilities.get(arm) or captured.capabilities.get(BASELINE)
    if transcript is None or (capabilities is not None and not capabilities.raw_logprobs):
        return
    # Some engines report log-probabilities after penalties, even if before temperature and truncation.
    penalised = {request.id for request in captured.workload.requests if not penalties(request.body).neutral}
    answers = {answer.key: answer.choice for answer in transcript.answers if answer.ok and answer.request_id not in penalised}
    for score in captured.scores.get(arm, ()):
        choice = answers.get(score.key)
        if choice is not None and choice.logprobs is not None:
            yield from zip(choice.logprobs, score.positions, strict=False)
