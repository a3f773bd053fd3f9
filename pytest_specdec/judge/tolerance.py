"""A tolerance: the gap that a correct greedy server may show, from what the baseline shows against itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.stats.logprob_noise import NORMAL_UP_TO, Calibration, calibrate
from pytest_specdec.stats.near_ties import HALF_PRECISION, SINGLE_PRECISION, sigma_of
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Position

__all__ = ["Tolerance", "allowed", "logit_noise", "tolerance"]

STATED = 0.25
"""Nats: the floor where nothing is measured; a wrongly emitted draft token exceeds it in 86 to 90 % of cases."""

_GAP_PER_NOISE = 8.0
"""Noise is measured between two computations: s on both sides reads sqrt2 s.

No gap of 6.4 million simulated tokens exceeded 8 sqrt2 s.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest gap that is no fault, and where it comes from."""

    gap: float
    """Nats."""
    reason: str
    calibration: Calibration
    trustworthy: bool
    """Whether the baseline repeats itself well enough to judge."""

    sigma: float
    """Nats: the granted standard deviation of the difference of two candidates' logits."""
    sigma_reason: str


def tolerance(captured: Captured, peers: Sequence[ScoredAnswer]) -> Tolerance:
    """Return max(0.25, 8 s_hat, the largest gap of ``peers``), peers being the other boots of the baseline.

    The control, when it is judged itself, may show as much as the largest normal noise would, 8 x 0.1. If peers show more, or the
    calibration is above its limit, nothing can be judged.
    """
    return allowed(captured, max((gap for peer in peers for gap in peer.gaps), default=0.0))


def allowed(captured: Captured, shown: float) -> Tolerance:
    """Return the same where ``shown`` is the largest gap of the baseline's other boots, nats."""
    calibration = logit_noise(captured)
    noise = calibration.noise or 0.0
    most = _GAP_PER_NOISE * max(noise, NORMAL_UP_TO)
    measured = f"8 x logit noise {noise:.4f}, measured over {calibration.tokens:,} tokens"
    peers = (
        (most, "8 x the largest normal logit noise, 0.1") if captured.is_control else (shown, "largest gap between boots of the baseline")
    )
    known = captured.capabilities.get(BASELINE)
    floor, kind = (SINGLE_PRECISION, "float32") if known is not None and known.single_precision else (HALF_PRECISION, "half precision")
    sigma = sigma_of(noise, floor)
    why = f"1.3 sqrt2 x logit noise {noise:.4f}" if sigma > floor else f"minimum for {kind}"
    gap, reason = max((STATED, "fixed minimum"), (_GAP_PER_NOISE * noise, measured), peers)
    return Tolerance(
        gap=gap,
        reason=reason,
        calibration=calibration,
        trustworthy=calibration.valid and shown <= most,
        sigma=sigma,
        sigma_reason=why,
    )


def logit_noise(captured: Captured) -> Calibration:
    """Return how what the baseline's boots reported lies about its teacher forcing; empty where nothing raw was reported.

    The whole run tells it, where the run is there; else these answers do.
    """
    if captured.calibration:
        return calibrate(captured.calibration)
    own = (pair for arm in (BASELINE, CONTROL) for pair in _reported(captured, arm))
    return calibrate(own, unprocessed=all(request.unprocessed for request in captured.workload.requests))


def _reported(captured: Captured, arm: str) -> Iterator[tuple[float, Position]]:
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
