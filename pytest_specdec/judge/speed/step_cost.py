"""Step cost: a speedup taken apart into tokens per step and the cost of a step, and the likely cause of a missed gate.

With L tokens per verify step, and r the cost of such a step in plain decode steps, drafting included, the speedup is L / r. The identity
speedup = L * (step gap of the baseline) / (step gap of the variant) checks it by every chunk, pauses left out. The speedup itself is taken
from the first and the last chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from pytest_specdec.judge.speed.step_tokens import NOISE, step_tokens
from pytest_specdec.model.baseline import SPEEDUP
from pytest_specdec.stats.answer_timing import response_tokens_per_s, step_gap_s
from pytest_specdec.stats.paces import compare_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.speed.timing import MeasuredSpeed
    from pytest_specdec.model.captured import Captured

__all__ = ["DEAR", "Identity", "SlowCause", "StepCost", "Suspect", "is_contradicted", "step_cost", "suspect"]

CHEAPEST, DEAR = 0.95, 2.0
"""Limits of a plausible r: a verify step costs at least a plain one, but for noise; published pairs lie between 1.05 and 1.84."""
_USUAL_COST = 1.25
"""The usual r, about the middle of published pairs."""
_USUAL_ACCEPTANCE = 0.6
"""The usual acceptance a of each draft token; k of them bring (1 - a^(k+1)) / (1 - a) tokens per step (Leviathan et al. 2023, equation
1)."""
_TOLERANCE = 0.05
"""Relative difference up to which the identity holds."""
_ERROR = 0.025
"""Chance, one-sided, that an identity is called broken because of the noise of the passes alone."""
_LEAST_PASSES = 2


class SlowCause(StrEnum):
    """The possible causes of a missed speedup."""

    DRAFTER = "the drafter brings too little"
    STEP = "the step is too dear"
    CLIENT = "the client saw it wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The speedup by tokens per step and step gaps, beside the measured one."""

    predicted: float
    """L * (step gap of the baseline) / (step gap of the variant)."""
    measured: float
    broken: bool
    """Whether the two differ by more than 5 % and by more than the passes' own noise explains."""

    def __str__(self) -> str:
        """Return both speedups, and the meaning of a difference."""
        beside = f"tokens per step times the ratio of step gaps make {self.predicted:.2f}x, measured {self.measured:.2f}x"
        return f"{beside}: they contradict each other, so the client or the stream is wrong" if self.broken else f"{beside}: consistent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A measured speedup, taken apart into tokens per step and the cost of a step."""

    tokens_per_step: float
    speedup: float
    identity: Identity | None
    """None if the streams do not show the steps of both arms."""

    @property
    def cost(self) -> float:
        """The cost of a verify step in plain steps: r = L / speedup."""
        return self.tokens_per_step / self.speedup

    def __str__(self) -> str:
        """Return r, with a judgement of its size."""
        if self.cost < CHEAPEST:
            sense = "implausible: more speed than the saved steps can give; check the measurement"
        else:
            sense = "plausible" if self.cost <= DEAR else f"dear: 1 to {DEAR:g} is usual"
        return f"a verify step costs {self.cost:.2f} plain steps (tokens per step / speedup): {sense}"


def step_cost(captured: Captured, measured: MeasuredSpeed) -> StepCost | None:
    """Return the speedup, taken apart into tokens per step and step cost.

    Returns None if whole requests were compared, since their times include the first token's, or if nothing shows the tokens per step.
    """
    tokens_per_step = step_tokens(captured.speculative).known
    if tokens_per_step is None or measured.paces.whole:
        return None
    return StepCost(tokens_per_step=tokens_per_step, speedup=measured.ratio, identity=_identity(captured, tokens_per_step))


def _identity(captured: Captured, tokens_per_step: float) -> Identity | None:
    """Return the measured speedup beside the one predicted by step gaps.

    The prediction is tokens per step times the baseline's step gap over the variant's (seconds from chunk to chunk). Step gaps leave pauses
    out, so they are a measurement of their own. Returns None if the streams do not show the steps, or if step gaps and speeds are not known
    for the same passes.
    """
    gaps, speeds = (compare_figure(figure, captured.baseline_boots, captured.speculative) for figure in (step_gap_s, response_tokens_per_s))
    if gaps is None or speeds is None or len(gaps.log_ratios) != len(speeds.log_ratios) or not _shows_steps(captured):
        return None
    # Logs of the predicted over the measured speedup, pass by pass. Log-ratios are those of the variant over the baseline.
    deviations = [math.log(tokens_per_step) - gap - speed for gap, speed in zip(gaps.log_ratios, speeds.log_ratios, strict=True)]
    mean = math.fsum(deviations) / len(deviations)
    speedup = speeds.speculative / speeds.baseline
    return Identity(
        predicted=speedup * math.exp(mean),
        measured=speedup,
        broken=is_contradicted(deviations),
    )


def is_contradicted(log_deviations: Sequence[float]) -> bool:
    """Return True if the passes surely contradict the identity.

    ``log_deviations`` has the log of predicted over measured speedup of each pass. True means that their mean is beyond 5 %, on either
    side, by Student's t. For an identity that is off by exactly 5 % this happens in 2.5 % of runs, passes taken as independent and normal.
    Always False for one pass.
    """
    count = len(log_deviations)
    if count < _LEAST_PASSES:
        return False
    mean = math.fsum(log_deviations) / count
    variance = math.fsum((deviation - mean) ** 2 for deviation in log_deviations) / (count - 1)
    # The quantile is below 0: it adds the noise of the mean to the tolerance.
    return abs(mean) > math.log1p(_TOLERANCE) - float(stdtrit(count - 1, _ERROR)) * math.sqrt(variance / count)


def _shows_steps(captured: Captured) -> bool:
    """Return True if the streams show the steps of both arms.

    The variant's chunks then hold one step each, and the baseline's one token.
    """
    baseline_chunk_tokens = step_tokens(captured.baseline).client  # None if the stream does not show it
    if baseline_chunk_tokens is None or baseline_chunk_tokens > 1.0 + NOISE:  # NOISE: a share, for a few tokens that come together
        return False
    # ``collected``: chunks hold more tokens than the server counts per step.
    return not step_tokens(captured.speculative).collected


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """The likely cause of a missed speedup, with its figures."""

    cause: SlowCause
    why: str

    def __str__(self) -> str:
        """Return cause and figures: ``why: the step is too dear: …``."""
        return f"why: {self.cause}: {self.why}"


def suspect(captured: Captured, step: StepCost, at_least: float) -> Suspect:
    """Return the likely cause of a speedup below ``at_least``.

    It is the client if the identity is broken and its prediction would have met the gate. Else it is the drafter if the tokens per step do
    not exceed the gate by more than noise: no step is cheaper than a plain one, so that no speedup exceeds the tokens per step.

    Otherwise tokens per step L and step cost r are compared with usual ones. The cause is the one that has lost more of log speedup = log L
    - log r: the drafter for L, the step for r. Usual are those of the typical stored run, if a gate carries tokens per step. Else each of k
    draft tokens is accepted with probability 0.6, and a step costs 1.25 plain ones.
    """
    tokens, cost, identity = step.tokens_per_step, step.cost, step.identity
    if identity is not None and identity.broken and identity.predicted >= at_least > identity.measured:
        return Suspect(cause=SlowCause.CLIENT, why=str(identity))
    if tokens < at_least * (1.0 + NOISE):
        return Suspect(cause=SlowCause.DRAFTER, why=f"{tokens:.2f} tokens per step cannot make {at_least:.2f}x, however cheap a step is")
    usual = _stored_step_cost(captured) or _usual_step_cost(captured)
    is_drafter = math.log(usual.tokens_per_step / tokens) >= math.log(cost / usual.cost)
    there = f"{usual.source}: {usual.tokens_per_step:.2f} for {usual.cost:.2f}"
    parts = f"{tokens:.2f} tokens per step for {cost:.2f} plain steps each; {there}"
    return Suspect(cause=SlowCause.DRAFTER if is_drafter else SlowCause.STEP, why=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UsualStep:
    """Tokens per step and step cost to compare with."""

    tokens_per_step: float
    cost: float
    """Of a verify step, in plain steps."""
    source: str
    """Where they are from, in words."""


def _stored_step_cost(captured: Captured) -> _UsualStep | None:
    """Return the tokens per step and step cost of the typical stored run.

    It is that of the gate with most runs. Returns None unless a gate on the speedup carries tokens per step too.
    """
    gates = (gate for gate in captured.gates if gate.figure == SPEEDUP and gate.log_ratios and gate.log_tokens_per_step)
    gate = max(gates, key=lambda gate: len(gate.log_tokens_per_step), default=None)
    if gate is None:
        return None
    tokens, speedup = math.exp(median(gate.log_tokens_per_step)), math.exp(median(gate.log_ratios))
    return _UsualStep(tokens_per_step=tokens, cost=tokens / speedup, source=f"in {len(gate.log_tokens_per_step)} stored runs")


def _usual_step_cost(captured: Captured) -> _UsualStep:
    """Return the usual tokens per step and step cost, for the variant's draft length.

    Each draft token is accepted with the usual probability a, if those before it were: k of them bring 1 + a + ... + a^k tokens. k is taken
    to be 3 if the variant does not say.
    """
    draft = captured.pair.variant.draft.tokens or 3
    tokens = (1.0 - _USUAL_ACCEPTANCE ** (draft + 1)) / (1.0 - _USUAL_ACCEPTANCE)
    return _UsualStep(tokens_per_step=tokens, cost=_USUAL_COST, source=f"usual with {draft} draft tokens")
