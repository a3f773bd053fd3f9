"""Measurements: the figures of one stored run that a trend follows, by variant and workload.

A level is the typical value of a measure over a stretch of runs. A promise is what a verdict has measured. Evidence is against a correct
sampler, as a power of ten. Noise is that of log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING

from pytest_specdec.model.promise import AcceptedLength, SampledTokens, Speedup
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.report.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFigures:
    """The figures of one verdict that no promise holds, by their names in run.json; None where it has none."""

    noise_nats: float | None = None
    """Of log-probabilities between kernels, batches and boots."""
    wrong_tokens: float | None = None
    acceptance_length_low: float | None = None
    """The lower 95 % limit of the tokens per verify step."""
    acceptance_length_high: float | None = None
    """The upper limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is measured."""

    title: str
    number_format: str
    higher_is_better: bool
    is_ratio: bool = True
    """Whether changes are by a factor; False where 0 is an ordinary value."""

    def show(self, value: float) -> str:
        """Return a value with its unit."""
        return self.number_format.format(value)

    def show_short(self, value: float) -> str:
        """Return a value without a unit in words, for the label of a scale."""
        return self.show(value).partition(" ")[0]

    def is_worse(self, before: float, after: float) -> bool:
        """Return True if a change from ``before`` to ``after`` is for the worse."""
        return after < before if self.higher_is_better else after > before


SPEEDUP = Measure(title="speedup", number_format="{:.2f}x", higher_is_better=True)
ACCEPTANCE = Measure(title="acceptance", number_format="{:.2f} tokens per step", higher_is_better=True)
DECODE = Measure(title="decode speed", number_format="{:,.4g} tokens/s", higher_is_better=True)
BASELINE_DECODE = Measure(title="decode speed of the baseline", number_format="{:,.4g} tokens/s", higher_is_better=True)
NOISE = Measure(title="noise", number_format="{:.3g} nats", higher_is_better=False)
EVIDENCE = Measure(title="evidence against the sampler", number_format="10^{:.1f}", higher_is_better=False, is_ratio=False)
WRONG = Measure(title="wrong tokens", number_format="{:,.4g}", higher_is_better=False, is_ratio=False)
SECONDS = Measure(title="time of the capture", number_format="{:,.1f} s", higher_is_better=False)
MEASURES = (SPEEDUP, ACCEPTANCE, DECODE, BASELINE_DECODE, NOISE, EVIDENCE, WRONG, SECONDS)
"""In the order of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A measure on a workload."""

    measure: Measure
    workload: str = ""
    """Empty for a figure of all workloads."""

    @property
    def title(self) -> str:
        """The measure and the workload, in words."""
        return f"{self.measure.title}, {self.workload}" if self.workload else self.measure.title


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A change of a measure's level between two stretches of runs."""

    measure: Measure
    before: float
    after: float
    is_of_means: bool
    """Whether the levels are means; else they are medians."""

    @property
    def is_worse(self) -> bool:
        """True if the change is for the worse."""
        return self.measure.is_worse(self.before, self.after)

    def __str__(self) -> str:
        """Return the change in words: ``1.82x → 1.64x (-9.9 %, worse)``.

        The percentage is left out for measures that are no ratios, and where the level before was 0.
        """
        factor = f"{100.0 * (self.after / self.before - 1.0):+.1f} %, " if self.measure.is_ratio and self.before > 0.0 else ""
        direction = "no difference" if self.before == self.after else f"{factor}{'worse' if self.is_worse else 'better'}"
        average = " on average" if self.is_of_means else ""
        return f"{self.measure.show(self.before)} → {self.measure.show(self.after)}{average} ({direction})"


def compare_levels(measure: Measure, before: Sequence[float], after: Sequence[float]) -> LevelChange:
    """Return the change of level between the values ``before`` and ``after``.

    Levels are medians. Where these are equal they are means: a fault that strikes in fewer than half of the runs moves no median.
    """
    is_of_means = median(before) == median(after)
    level = fmean if is_of_means else median
    return LevelChange(measure=measure, before=level(before), after=level(after), is_of_means=is_of_means)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One value of a run."""

    value: float
    low: float | None = None
    """The lower 95 % limit; None where run.json holds none, as below."""
    high: float | None = None
    unfit: str = ""
    """Why the value is shown but not compared; empty where it is."""


def measure_run(run: Run) -> dict[Quantity, Measurement]:
    """Return the figures of a whole run: its capture's seconds.

    Empty for an incomplete capture, and if the seconds are no finite number above 0.
    """
    if run.status is None or run.status.state is not State.COMPLETE or not 0.0 < run.status.wall_s < inf:
        return {}
    return {Quantity(measure=SECONDS): Measurement(value=run.status.wall_s)}


def measure_variant(run: Run, stored: Sequence[StoredFigures]) -> dict[Quantity, Measurement]:
    """Return the figures of a run with one variant's judgements.

    ``stored`` has further figures of each judgement, in the order of ``run.judgements``. Invalid verdicts are left out, and so are speed
    and acceptance of a variant with wrong tokens. Evidence, noise (of the greedy family) and wrong tokens are one figure for all workloads:
    the highest of the first two, the sum of the last. Values that are not finite are left out, and those of 0 or below unless 0 is an
    ordinary value of the measure.
    """
    pairs = ((judgement.verdict, figures) for judgement, figures in zip(run.judgements, stored, strict=True))
    valid = [(verdict, figures) for verdict, figures in pairs if verdict and verdict.outcome is not Outcome.INVALID]
    measured: dict[Quantity, Measurement] = {}
    if not run.not_counted:  # the run has this variant alone
        for verdict, figures in valid:
            measured.update(_measure_speed(verdict, figures))
    evidence = [verdict.promise.log10_wealth for verdict, _ in valid if isinstance(verdict.promise, SampledTokens)]
    noise = [figures.noise_nats for verdict, figures in valid if verdict.family is Family.GREEDY and figures.noise_nats is not None]
    wrong = [figures.wrong_tokens for _, figures in valid if figures.wrong_tokens is not None]
    for measure, values, combine in ((EVIDENCE, evidence, max), (NOISE, noise, max), (WRONG, wrong, sum)):
        if values:
            measured[Quantity(measure=measure)] = Measurement(value=float(combine(values)))
    return {quantity: one for quantity, one in measured.items() if isfinite(one.value) and (one.value > 0.0 or quantity.measure in _ZEROS)}


_ZEROS = frozenset({NOISE, EVIDENCE, WRONG})
"""Measures that may be 0."""


def _measure_speed(verdict: Verdict, stored: StoredFigures) -> Iterator[tuple[Quantity, Measurement]]:
    """Yield the speedup, decode speeds and acceptance of one verdict; nothing for another promise.

    A decode speed is in response tokens per second. ``stored`` has limits for verdicts on the accepted length only: the acceptance beside a
    speedup has none. Times that are not the servers' alone have a reason, ``unfit``, against comparing them.
    """
    promise, workload = verdict.promise, verdict.workload
    if isinstance(promise, AcceptedLength):
        low, high = stored.acceptance_length_low, stored.acceptance_length_high
        yield Quantity(measure=ACCEPTANCE, workload=workload), Measurement(value=promise.tokens_per_step, low=low, high=high)
    if not isinstance(promise, Speedup):
        return
    limits, unfit, response = promise.limits, promise.unfit, promise.response
    low, high = (limits.low, limits.high) if limits else (None, None)
    yield Quantity(measure=SPEEDUP, workload=workload), Measurement(value=promise.ratio, low=low, high=high, unfit=unfit)
    yield Quantity(measure=DECODE, workload=workload), Measurement(value=response.speculative, unfit=unfit)
    yield Quantity(measure=BASELINE_DECODE, workload=workload), Measurement(value=response.baseline, unfit=unfit)
    if promise.tokens_per_step is not None:
        yield Quantity(measure=ACCEPTANCE, workload=workload), Measurement(value=promise.tokens_per_step)
