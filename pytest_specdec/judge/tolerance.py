"""A tolerance: how far below the baseline's best token a correct server's may lie, by the noise that the run has measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.greedy_gap import distinct_gaps
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
    "ASK_AGAIN",
    "OPEN_AT",
    "REPEAT_AT",
    "STATED",
    "VERIFY_FACTOR",
    "Tolerance",
    "allowed_gap",
    "describe_jumps",
    "describe_noise",
    "jump_rate",
    "logit_noise",
    "tolerance",
]

STATED = 0.25
"""Nats: the floor where nothing is measured; a wrongly emitted draft token exceeds it in 86 to 90 % of cases."""

_GAP_PER_NOISE = 8.0
"""Noise is measured between two computations: s on both sides reads sqrt2 s.

No gap of 6.4 million simulated tokens exceeded 8 sqrt2 s.
"""

VERIFY_FACTOR = 5.0
"""Times the noise of decoding up to which the noise of a verify kernel is lawful numerics: k + 1 tokens take other tiles and splits. Three
times was seen."""
_SURELY_NOISIER = 1.1
"""Times the lawful noise above which a verify kernel is surely not lawful (size: tests/stats/test_noise.py, by simulation)."""
_VERIFY_FLOOR_HALF, _VERIFY_FLOOR_SINGLE = NORMAL_UP_TO, EXACT
"""Nats of noise that are lawful in a verify kernel, however exact decoding is; where one boot of the baseline answered and scored,
the noise that two boots may have between them if that is more."""
_MARGIN = 1.3
"""Factor on the measured differences: they differ between the tokens that show them and those that are judged."""
_UNKNOWN = 0.125
"""Nats of noise granted in half precision where nothing was reported that could show it."""
_OFTEN, _SURELY = 5e-3, 1e-4
"""A baseline repeats itself unless more than five in a thousand of its own tokens lie beyond the tolerance, at the second's level."""
ASK_AGAIN = "the same requests again, by --specdec-continue: a fault comes back, a jump does not"
OPEN_AT = 100.0
"""Evidence, 1 : 1/p, from which wrong tokens are too many to be put down to noise: a correct server comes here in 1 of 100 at most."""
REPEAT_AT = 10.0
"""The same where the run can ask again, which costs a correct server time and no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest gap that noise explains, where it comes from, and how often the peers lie beyond it."""

    gap: float
    """Nats."""
    reason: str
    calibration: Calibration
    """Of decoding, by the baseline."""
    noise: float
    """Nats of one logit, granted to the judged arm."""
    verify_factor: float
    """Noise of the verify kernel over that of decoding; 1 where it is no noisier, or not known."""
    trustworthy: bool
    """Whether the baseline repeats itself well enough to judge."""

    flips: FlipNoise
    """The noise that flips near-ties."""
    sigma_reason: str

    exact: bool
    """Whether the servers were shown not to jump: then one token beyond the tolerance is proof. Never of the control, which shows it."""
    peer_events: int
    """Tokens beyond the tolerance, of the baseline's own boots and of the calibration."""
    peer_tokens: int
    own_events: int
    """Those of the baseline's own boots alone."""
    own_tokens: int
    boot_noise: BootNoise | None = None
    """What a boot of the baseline keeps; None where that is not seen."""
    open_at: float = OPEN_AT
    """Evidence from which a count is left open."""

    def round(self, events: int, tokens: int) -> EventCount:
        """Return the events of an arm beside those of the baseline's own boots, as a round of its own."""
        return EventCount(events=events, tokens=tokens, peer_events=self.own_events, peer_tokens=self.own_tokens)

    def log_evidence(self, events: int, tokens: int, repeats: Sequence[EventCount] = ()) -> float:
        """Return the natural log of the evidence against an arm with so many tokens beyond the tolerance, whether or not one is proof.

        ``repeats`` are the rounds in which the same was asked again.
        """
        first = EventCount(events=events, tokens=tokens, peer_events=self.peer_events, peer_tokens=self.peer_tokens)
        return excess.log_evidence([first, *repeats])

    def is_wrong(self, events: int, tokens: int, alpha: float, repeats: Sequence[EventCount] = ()) -> bool:
        """Whether so many tokens beyond the tolerance are the server's fault, at ``alpha``."""
        evidence = self.log_evidence(events, tokens, repeats)
        return bool(events) and (self.exact or (alpha > 0.0 and evidence >= -log(alpha)))

    def is_open(self, events: int, tokens: int, repeats: Sequence[EventCount] = ()) -> bool:
        """Whether the same is to be asked again: they are too many for noise and too few for an alarm, and came back so far."""
        if not events or len(repeats) >= ROUNDS or (repeats and not any(each.events for each in repeats)):
            return False
        return self.log_evidence(events, tokens, repeats) >= log(self.open_at)

    @property
    def chance(self) -> float:
        """The rate of tokens beyond the tolerance without any fault, an upper limit at 99 %; 0 where the servers do not jump."""
        return 0.0 if self.exact else proportions.limits(self.peer_events, self.peer_tokens, 0.98).high

    def ruled_out(self, tokens: int, alpha: float) -> float:
        """Return the rate of wrong tokens that would have raised an alarm with probability 0.99; 1 where no rate would."""
        if self.exact:
            return proportions.ruled_out(tokens)
        least = excess.alarm_at(tokens, self.peer_events, self.peer_tokens, alpha)
        return 1.0 if least is None else proportions.limits(least - 1, tokens, 0.98).high


def tolerance(captured: Captured, peers: Sequence[ScoredAnswer]) -> Tolerance:
    """Return what :func:`allowed` does for ``peers``, the answers of the baseline's other boots."""
    return allowed_gap(captured, distinct_gaps(captured.workload, peers))


def allowed_gap(captured: Captured, peer_gaps: Iterable[float]) -> Tolerance:
    """Return max(0.25, 8 s), s being the measured noise of the judged arm, and how many of ``peer_gaps`` exceed it.

    The noise is that of decoding, by the baseline's calibration, or that of the variant's verify kernel where this is larger, up to
    VERIFY_FACTOR times as large; a kernel that is surely noisier than that is not lawful, and excuses nothing.

    Tokens beyond the tolerance are counted against the peers' and the calibration's. Differences beyond it are at least as frequent as
    gaps, since a gap takes a difference and a near-tie as well. One token is proof where calibration and peers show nothing but rounding.
    """
    gaps = np.array(list(peer_gaps), dtype=np.float64)
    calibration, decode = logit_noise(captured), kernel_noise(captured.calibration)
    granted = _grant(captured, calibration)
    gap = max(STATED, _GAP_PER_NOISE * granted.noise)
    beyond = decode.beyond(gap)
    own = int((gaps > gap).sum())
    return Tolerance(
        gap=gap,
        reason="fixed minimum" if gap == STATED else f"8 x {granted.reason}",
        calibration=calibration,
        noise=granted.noise,
        verify_factor=granted.factor,
        trustworthy=calibration.valid and proportions.greater_than_rate(own, len(gaps), _OFTEN) > _SURELY,
        flips=FlipNoise(
            sigma=sigma_of(granted.noise, granted.floor),
            unseen=max(UNSEEN, decode.beyond(gap / 2.0).rate),
            tail=_MARGIN * granted.noise / calibration.noise * decode.of_logit if calibration.noise else decode.of_logit,
        ),
        sigma_reason=f"1.3 sqrt2 x {granted.reason}" if sigma_of(granted.noise, 0.0) > granted.floor else granted.floor_reason,
        exact=not captured.is_control and _is_exact(captured, calibration, decode) and float(gaps.max(initial=0.0)) <= EXACT,
        peer_events=own + beyond.jumps,
        peer_tokens=len(gaps) + beyond.tokens,
        own_events=own,
        own_tokens=len(gaps),
        boot_noise=boot_noise(answer_scales(captured.calibration.answers), answer_scales(captured.same_boot_calibration.answers)),
        open_at=REPEAT_AT if captured.repeatable else OPEN_AT,
    )


def describe_noise(tolerance: Tolerance) -> str:
    """Return the noise of the run in a few words."""
    if tolerance.exact:
        return "numbers are exact"
    jumps = f"at most 1 jump in {1.0 / tolerance.chance:,.0f} tokens" if tolerance.chance < 1.0 else "jumps unknown"
    return f"noise {tolerance.noise:.3f} nats, {jumps}"


def describe_jumps(tolerance: Tolerance) -> str:
    """Return in words how rarely tokens of the baseline lie beyond the tolerance, what boots keep, and how noisy the verify kernel is."""
    if tolerance.exact:
        jumps = "the servers do not jump: one token beyond the tolerance is proof"
    else:
        jumps = f"at most 1 token in {1.0 / tolerance.chance:,.0f} jumps beyond the tolerance (99%)"
    kernel = f"; the verify kernel is {tolerance.verify_factor:.1f} times as noisy as decode" if tolerance.verify_factor > 1.0 else ""
    between_boots = f"; {tolerance.boot_noise}" if tolerance.boot_noise else ""
    return jumps + between_boots + kernel


def _is_exact(captured: Captured, calibration: Calibration, decode: KernelNoise) -> bool:
    if calibration.noise is None and not captured.calibration:
        return _single_precision(captured)
    return decode.exact if captured.calibration else calibration.largest <= EXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Granted:
    """The noise of one logit that the judged arm may have, nats."""

    noise: float
    reason: str
    factor: float = 1.0
    floor: float
    floor_reason: str = field(default="")


def _grant(captured: Captured, calibration: Calibration) -> _Granted:
    single = _single_precision(captured)
    floor, kind = (SINGLE_PRECISION, "float32") if single else (HALF_PRECISION, "half precision")
    least = f"minimum for {kind}"
    if calibration.noise is None:
        noise = 0.0 if single else _UNKNOWN
        reason = f"logit noise {noise:g}, granted to {kind}: nothing was reported that shows it"
        return _Granted(noise=noise, reason=reason, floor=floor, floor_reason=least)
    decode, verify = calibration.noise, kernel_noise(captured.verify_calibration).scale or 0.0
    stated = _VERIFY_FLOOR_SINGLE if single else _VERIFY_FLOOR_HALF
    most = max(VERIFY_FACTOR * decode, stated, tolerated_floor(single_precision=single, one_boot=captured.one_boot))
    is_lawful = not is_noisier(answer_scales(captured.verify_calibration.answers), _SURELY_NOISIER * most)
    noise = max(decode, min(verify, most)) if is_lawful else decode
    factor = verify / decode if decode > ROUNDING and verify > decode else 1.0
    reason = (
        f"logit noise {decode:.4f}, measured over {calibration.tokens:,} tokens"
        if noise == decode
        else f"logit noise {noise:.4f} of the verify kernel"
    )
    return _Granted(noise=noise, reason=reason, factor=factor, floor=floor, floor_reason=least)


def _single_precision(captured: Captured) -> bool:
    known = captured.capabilities.get(BASELINE)
    return known is not None and known.single_precision


def jump_rate(captured: Captured) -> float:
    """Return the rate of positions at which the distribution may be any other one: 0 where the run shows that its servers are exact."""
    calibration, decode = logit_noise(captured), kernel_noise(captured.calibration)
    if _is_exact(captured, calibration, decode):
        return 0.0
    return max(JUMP_RATE, decode.beyond(max(STATED, _GAP_PER_NOISE * (calibration.noise or 0.0))).rate)


def logit_noise(captured: Captured) -> Calibration:
    """Return how what the baseline's boots reported lies about its teacher forcing; empty where nothing raw was reported.

    The whole run tells it, where the run is there; else these answers do.
    """
    if captured.calibration:
        return calibrate(captured.calibration)
    own = (pair for arm in (BASELINE, CONTROL) for pair in _reported_logprobs(captured, arm))
    return calibrate(own, unprocessed=all(request.unprocessed for request in captured.workload.requests))


def _reported_logprobs(captured: Captured, arm: str) -> Iterator[tuple[float, Position]]:
    transcript = captured.baseline if arm == BASELINE else captured.control
    known = captured.capabilities.get(arm) or captured.capabilities.get(BASELINE)
    if transcript is None or (known is not None and not known.raw_logprobs):
        return
    # Some engines report what penalties left, also where they report nothing else that was processed.
    penalised = {request.id for request in captured.workload.requests if not penalties(request.body).neutral}
    answers = {answer.key: answer.choice for answer in transcript.answers if answer.ok and answer.request_id not in penalised}
    for score in captured.scores.get(arm, ()):
        choice = answers.get(score.key)
        if choice is not None and choice.logprobs is not None:
            yield from zip(choice.logprobs, score.positions, strict=False)
