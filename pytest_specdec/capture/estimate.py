"""An estimate: how long each step of a plan may take, told before it runs and corrected while it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.model.plan import Role
from pytest_specdec.model.transcript import ScoringRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.engines.protocol import RoughRates
    from pytest_specdec.model.plan import Boot
    from pytest_specdec.model.workload import Workload

__all__ = ["EstimatedStep", "seconds", "seconds_side_by_side", "steps"]

_PROBE_TOKENS = 100
_FULL = 0.5
"""Part of ideal scaling that streams side by side reach: a guess for the first estimate."""

_CONTINUED = 8.0
"""Times that a token costs to score by a continuation of its own: 5 with the reference engine, 11 with vLLM on two busy cores."""

_CROWDED = 0.2
"""Part of a boot by which each further one beside it delays it: three at once took 50 s where one took 35."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedStep:
    """One thing that a boot does."""

    boot: int
    doing: str
    arm: str
    workload: str = ""
    seconds: float


def steps(
    boots: Sequence[Boot],
    workloads: Sequence[Workload],
    pace: RoughRates,
    *,
    route: ScoringRoute = ScoringRoute.PROMPT_LOGPROBS,
) -> tuple[EstimatedStep, ...]:
    """Return what every boot does, in order, scores coming by ``route``."""
    named = {workload.name: workload for workload in workloads}
    if route is ScoringRoute.CONTINUATIONS:
        pace = replace(pace, scored_tokens_per_s=pace.scored_tokens_per_s / _CONTINUED)
    return tuple(step for boot in boots for step in _of_boot(boot, named.__getitem__, pace))


def seconds(planned: Sequence[EstimatedStep]) -> float:
    """Return the sum over all steps."""
    return sum(step.seconds for step in planned)


def seconds_side_by_side(planned: Sequence[EstimatedStep], servers: int) -> float:
    """Return what is left of the sum where ``servers`` boot at once and scoring rides behind the answers, which share one machine."""
    boots = [step.seconds for step in planned if step.doing == "booting"]
    rounds = [boots[at : at + servers] for at in range(0, len(boots), servers)]
    booting = sum(max(each) * (1 + _CROWDED * (len(each) - 1)) for each in rounds)
    return booting + sum(step.seconds for step in planned if step.doing in {"answering", "probing"})


_VISIT_S = 0.5
"""To find an attached server ready."""


def _of_boot(boot: Boot, named: Callable[[str], Workload], pace: RoughRates) -> Iterator[EstimatedStep]:
    yield EstimatedStep(boot=boot.index, doing="booting", arm=boot.arm, seconds=_VISIT_S if boot.attached else pace.boot_s)
    probe = EstimatedStep(boot=boot.index, doing="probing", arm=boot.arms[0], seconds=_PROBE_TOKENS / pace.tokens_per_s)
    if boot.probe and boot.role is not Role.VARIANT:
        yield probe
    for arm in boot.arms:
        for name in boot.answers:
            yield EstimatedStep(boot=boot.index, doing="answering", arm=arm, workload=name, seconds=_answering(named(name), pace))
    for tokens in boot.scores:
        scored = _tokens(named(tokens.workload)) / pace.scored_tokens_per_s
        yield EstimatedStep(boot=boot.index, doing="scoring", arm=tokens.arm, workload=tokens.workload, seconds=scored)
    if boot.probe and boot.role is Role.VARIANT:
        yield probe


def _answering(workload: Workload, pace: RoughRates) -> float:
    side_by_side = max(1.0, min(workload.concurrency, len(workload.requests)) * _FULL)
    warm_up = 1 + (1 / workload.passes if workload.timed else 0)
    return _tokens(workload) * warm_up / (pace.tokens_per_s * side_by_side)


def _tokens(workload: Workload) -> int:
    limits = (request.body.get("max_tokens") for request in workload.requests)
    return workload.passes * sum(tokens for tokens in limits if isinstance(tokens, int))
