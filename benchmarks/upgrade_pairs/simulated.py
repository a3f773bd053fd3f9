"""Simulated pairs: records of made-up servers (``benchmarks.worlds``), healthy or with planted weights, and how their comparison comes out.

Runs are independent of each other: boots, noise and unseeded draws are drawn anew. Pairs are made of all runs of the same number, so that
two pairs with a run in common depend on each other.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.worlds.arms import answer, scores
from benchmarks.worlds.asking import simulable
from benchmarks.worlds.language import CONTEXTS, VOCABULARY, language
from benchmarks.worlds.numerics import WORLDS, Boot, Tail
from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer, Prefix
from pytest_specdec.model.captured import ReportedDraws
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.prompts.calibration import plain_draws
from suites.greedy.test_greedy import MIXED
from suites.sampling.test_sampling import LONG, OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.worlds.arms import ArmAnswers
    from benchmarks.worlds.language import Logits
    from benchmarks.worlds.numerics import World
    from pytest_specdec.model.transcript import Score
    from pytest_specdec.model.workload import Depth, Workload

__all__ = ["HEALTHY", "PLANTED", "Planted", "is_noisier", "make_record", "planted_noise"]

HEALTHY: Final = ("exact", "g.01", "g.03", "g.1", "mt3.03", "out1e-3", "rep1e-3", "boot.1", "tok.03", "bf16.03", "bf16.06")
"""Worlds that are compared with each other, by name."""
_GRID: Final = 0.125 / math.sqrt(12.0)
"""Standard deviation of what rounding to bfloat16 adds to a logit between 16 and 32."""
_NOISIER: Final = 2.0
"""Times the old noise from which on the new one is a change."""
_BAND: Final = 1.6
"""Times that ratio, and one over it, within which either answer is right: noise is measured from 12 draws."""
_SEED: Final = 20_261_127
_VARIANT: Final = "draft-k3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One change of a model's logits."""

    title: str
    table: Callable[[Logits], Logits]
    nats: float | None = None
    """Its standard deviation per logit; None where logits do not share one."""


def _weights(nats: float, *, share: float = 1.0) -> Callable[[Logits], Logits]:
    """Return a change of every logit after a share of the contexts, the same whenever it is made."""

    def table(logits: Logits) -> Logits:
        random = np.random.default_rng([_SEED, round(nats * 1e6)])
        touched = random.random((CONTEXTS, 1)) < share
        return (logits + touched * random.normal(0.0, nats, (CONTEXTS, VOCABULARY))).astype(np.float32)

    return table


def _scale_logits(power: float) -> Callable[[Logits], Logits]:
    return lambda logits: (logits * power).astype(np.float32)


PLANTED: Final[Mapping[str, Planted]] = {
    **{f"{nats:g}": Planted(title="another weight for every logit", table=_weights(nats), nats=nats) for nats in (0.03, 0.1, 0.3, 1, 3)},
    **{f"x{power:g}": Planted(title="logits times a factor", table=_scale_logits(power)) for power in (1.01, 1.05, 1.1)},
    **{
        f"0.5 at {share:.0%}": Planted(title="other logits after a share of contexts", table=_weights(0.5, share=share))
        for share in (0.01, 0.05, 0.2)
    },
}


def planted_noise(world: World) -> float:
    """Return the standard deviation of one logit of one kernel on one boot, nats."""
    tail = {Tail.NORMAL: 1.0, Tail.LOGIT_T3: 0.83, Tail.POSITION_T3: 0.83}[world.tail]
    return math.hypot(tail * world.noise, world.per_boot, world.per_token, _GRID if world.grid else 0.0)


def is_noisier(old: World, new: World) -> bool | None:
    """Return whether the new numerics are a change by their planted noise; None where either answer is right."""
    before, after = planted_noise(old), planted_noise(new)
    ratio = after / before if before else math.inf if after else 1.0
    return None if _NOISIER / _BAND < ratio < _NOISIER * _BAND else ratio > _NOISIER


class _Run:
    """One run: a baseline, its control, which scores, and a variant."""

    def __init__(self, world: str, number: int, planted: Planted | None, *, one_boot: bool) -> None:
        seed = zlib.crc32(f"{world} {planted.title if planted else ''} {number}".encode())
        table = planted.table(language().target) if planted else None
        self._random = np.random.Generator(np.random.SFC64([_SEED, seed]))
        numbers = {BASELINE: 0, CONTROL: 0 if one_boot else 1, _VARIANT: 2}
        self._boots = {arm: Boot(WORLDS[world], number, seed, table=table) for arm, number in numbers.items()}

    def answer(self, arm: str, workload: Workload) -> ArmAnswers:
        return answer(arm, workload, self._boots[arm], self._random, speculates=arm == _VARIANT)

    def score(self, answers: ArmAnswers, workload: Workload) -> tuple[Score, ...]:
        return scores(answers, self._boots[CONTROL], self._random, top_tokens=workload.top_tokens)

    def draws(self, arm: str, depth: Depth) -> ReportedDraws:
        """Return what an arm reports of plain draws, each with its score."""
        workload = plain_draws(depth)
        answers = self.answer(arm, workload)
        scored = self.score(answers, workload)
        return ReportedDraws(answers=tuple(tuple(zip(answers.reported[score.key], score.positions, strict=True)) for score in scored))


def make_record(world: str, number: int, depth: Depth, *, planted: Planted | None = None, one_boot: bool = False) -> BaselineRecord:
    """Return what one run at ``depth`` knows of its baseline, by the workloads of the suites of greedy and sampling.

    The control is another boot, and scores, as at standard depth; with ``one_boot`` it is the same, as at smoke depth. The variant reports
    plain draws and nothing else.
    """
    run = _Run(world, number, planted, one_boot=one_boot)
    prompts: dict[str, tuple[int, ...]] = {}
    prefixes: dict[bytes, Prefix] = {}
    greedy: dict[str, GreedyAnswer] = {}
    for workload in (simulable(sent.at(depth)) for sent in (MIXED, OPEN, LONG)):
        arms = [run.answer(arm, workload) for arm in (BASELINE, CONTROL)]
        scored = [run.score(answers, workload) for answers in arms]
        for answers, arm_scores in zip(arms, scored, strict=True):
            for score in arm_scores:
                prompt = workload.by_id[score.request_id].prompt_key
                prompts.setdefault(prompt, score.prompt_token_ids)
                for prefix, position in zip(answers.prefixes[score.key].tolist(), score.positions, strict=True):
                    prefixes.setdefault(prefix.to_bytes(8), Prefix(prompt=prompt, position=position))
        greedy |= _greedy_answers(workload, *arms, scored[0])
    return BaselineRecord(
        prompts=prompts,
        chats=frozenset(),
        prefixes=prefixes,
        greedy=greedy,
        draws=run.draws(BASELINE, depth),
        boots=1 if one_boot else 2,
        variant_draws=(run.draws(_VARIANT, depth),),
        single_precision=WORLDS[world].single_precision,
    )


def _greedy_answers(workload: Workload, baseline: ArmAnswers, control: ArmAnswers, scored: Sequence[Score]) -> dict[str, GreedyAnswer]:
    repeats = {each.request_id: each.choice for each in control.transcript.answers}
    positions = {score.request_id: score.positions for score in scored}
    answered_requests = ((workload.by_id[each.request_id], each.choice) for each in baseline.transcript.answers)
    return {
        request.asks: GreedyAnswer(
            request_id=request.id,
            prompt=request.prompt_key,
            choice=choice,
            positions=positions[request.id],
            control=repeats[request.id],
        )
        for request, choice in answered_requests
        if request.takes_likeliest
    }
