"""Baseline noise: how far the scores of two runs' baselines may lie apart though nothing changed.

Each run has draws: sampled tokens, each with the log-probability that its server reported and a score, that of the baseline's prefill. How
far these two lie apart is the run's noise, in nats of one logit. A boot is one start of a server.

A logit that a server computes after a prefix is the model's, plus what its boot adds there at every call alike (standard deviation b), plus
what the call adds by its kernel: prefill (p), which scores, decode (d) or verify (v). In variance:

    a draw of the baseline and its score, of one boot           d² + p²
    the same, scored by another boot of the baseline            d² + p² + 2 b²
    a draw of a variant and its score by the baseline           v² + p² + 2 b²
    the scores of two runs                                      p² + b² of the old one and p² + b² of the new one

One boot of the baseline does not identify b. Its variants are other boots of the same build, and the third line limits b from above. It
is no measure of b, since a verify kernel may be noisier than others by itself. So there are two limits: within the lower one noise
explains a shift, beyond the upper one it does not, and between them it is not known. They are one where both runs had two boots.

Medians of other than normal noise need not keep such sums: both limits are :data:`MARGIN` times as large, in variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pytest_specdec.stats import logit_shift
from pytest_specdec.stats.noise_comparison import tolerated_floor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_specdec.model.baseline_record import BaselineRecord
    from pytest_specdec.model.captured import ReportedDraws
    from pytest_specdec.stats.logit_shift import Beyond, LogitShift

__all__ = ["NUMERICS_UP_TO", "RESOLUTION", "SIGMAS", "AllowedShift", "BaselineNoise", "measure"]

RESOLUTION = 1e-3
"""Nats per logit that never count as a change: far less than any kernel's noise but that of single precision."""
NUMERICS_UP_TO = 0.1
"""Nats per logit up to which a shift is one of kernels or precision, and a run's noise counts: bfloat16 across engines shows .03."""
SIGMAS = 6.0
"""Standard deviations of the difference of two logits within which two choices at temperature 0 are a near-tie."""
MARGIN = 2.0
"""Times the variance of both runs' noise that is tolerated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedShift:
    """A shift that noise of both runs explains, and the draws that show this noise."""

    nats: float
    """Per logit."""
    draws: tuple[ReportedDraws, ...]
    """Of the old run, and of the new one."""

    def count_beyond(self, nats: float, *, largest: bool = False) -> Beyond:
        """Return how many answers of the draws lie beyond ``nats`` of their scores.

        An answer's tokens, as reported and as scored, have a shift with two estimates, by the median and by the upper tenth of the
        differences. Both must be beyond, or with ``largest`` one of them: that finds a shift at a part of the positions.
        """
        return logit_shift.count_beyond(chain.from_iterable(draws.answers for draws in self.draws), nats, largest=largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineNoise:
    """The noise of two runs' baselines, as each run measured it."""

    new: LogitShift
    """Between draws of the new baseline and their scores."""
    old_up_to: float
    """Upper limit of the old noise between a draw and its score, nats per logit, of as many boots as drew and scored in the new run."""
    measured: AllowedShift
    """The shift that the baselines' own draws explain."""
    with_boots: AllowedShift
    """The shift explained if differences between boots are added; ``measured`` itself where both runs had two boots of the baseline."""
    is_exact: bool
    """Whether no draw shows noise, those of other boots included."""


def measure(old: BaselineRecord, new: BaselineRecord) -> BaselineNoise | None:
    """Return the noise of two runs' baselines, from the draws of both.

    None if one run has too few draws to limit it.
    """
    # Of two estimates of a noise, by median and by upper tenth, the larger one counts: a shift has to exceed it.
    old_noise, new_noise = (logit_shift.measure(record.draws.answers, largest=True) for record in (old, new))
    if old_noise is None or new_noise is None:
        return None
    # Of each run, an upper limit of the noise between two boots.
    old_boots, new_boots = _BetweenBoots.from_record(old, old_noise), _BetweenBoots.from_record(new, new_noise)
    # The two runs' noises are compared too. If the new draws alone show noise between boots, that is added to the old ones' limit.
    old_up_to = old_noise.high if old.boots >= new.boots else old_boots.nats
    return BaselineNoise(
        new=new_noise,
        old_up_to=old_up_to,
        measured=AllowedShift(nats=_limit((old_noise.high, new_noise.high)), draws=(old.draws, new.draws)),
        with_boots=AllowedShift(nats=_limit((old_boots.nats, new_boots.nats)), draws=(old_boots.draws, new_boots.draws)),
        is_exact=old_boots.is_exact and new_boots.is_exact,
    )


def _limit(noises: Iterable[float]) -> float:
    """Return the largest shift that the noises of two runs explain.

    All are in nats per logit. Variances add up, and twice their sum is tolerated (:data:`MARGIN`). A noise above :data:`NUMERICS_UP_TO`
    counts as that much, so that a noisy run cannot hide every shift. At least :data:`RESOLUTION` is explained, also without any noise.
    """
    return math.sqrt(RESOLUTION**2 + MARGIN * sum(min(noise, NUMERICS_UP_TO) ** 2 for noise in noises))


@dataclass(frozen=True, slots=True, kw_only=True)
class _BetweenBoots:
    """What is known of the noise between two boots of one run's build."""

    nats: float
    """Upper limit, per logit; no less than that within one boot."""
    draws: ReportedDraws
    """Those of another boot than scored them; of the same boot where there are none."""
    is_exact: bool

    @classmethod
    def from_record(cls, record: BaselineRecord, noise: LogitShift) -> _BetweenBoots:
        """Return an upper limit of a run's noise between two boots.

        ``noise`` is that of the baseline's draws, scored by the same boot or by another one. Draws are exact if none shows any noise.
        """
        is_exact = _is_noiseless(record.draws)
        if record.boots > 1:  # one boot drew and another scored, so that the noise has the part between boots in it
            return cls(nats=noise.high, draws=record.draws, is_exact=is_exact)
        # Each variant is another boot of the build. Its draws, scored by the baseline, have the noise between boots in them, and its verify
        # kernel's besides: each limits the former from above, so that the lowest counts. It errs with a probability of
        # ``logit_shift.ERROR`` times the number of variants at most.
        limits = [(shift.high, draws) for draws in record.variant_draws if (shift := logit_shift.measure(draws.answers, largest=True))]
        if not limits:
            # Nothing shows it: what judges grant to a run of one boot is taken. Only in single precision two boots may be exact as well.
            granted = tolerated_floor(single_precision=record.single_precision, one_boot=True)
            return cls(nats=max(noise.high, granted), draws=record.draws, is_exact=record.single_precision and is_exact)
        lowest, draws = min(limits, key=lambda limit: limit[0])
        return cls(nats=max(noise.high, lowest), draws=draws, is_exact=is_exact and _is_noiseless(draws))


def _is_noiseless(draws: ReportedDraws) -> bool:
    """Return True if no draw is off its score by more than :data:`RESOLUTION` explains."""
    return max((abs(reported - position.logprob) for reported, position in draws), default=0.0) <= SIGMAS * RESOLUTION
