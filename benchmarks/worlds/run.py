"""A whole simulated run: every family's captured from the same boots of one world."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.worlds.arms import ArmAnswers, answer, draft_scores, scores
from benchmarks.worlds.asking import simulable
from benchmarks.worlds.language import VOCABULARY
from benchmarks.worlds.numerics import WORLDS, BaselineBoots, Boot
from benchmarks.worlds.server import CORRECT, K
from pytest_specdec.capture.workloads import repeat
from pytest_specdec.model.captured import Capabilities, Captured, ReportedDraws
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.pair import BASELINE, CONTROL, Draft, DraftKind, DraftSampling, Pair, Variant
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts.calibration import plain_draws

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.worlds.numerics import World
    from benchmarks.worlds.server import Fault
    from pytest_specdec.model.transcript import Position, Score
    from pytest_specdec.model.workload import Workload

__all__ = ["CELLS", "Run", "simulate_run"]

VARIANT: Final = "draft-k3"
PAIR: Final = Pair(
    config="made-up",
    engine="reference",
    model="made-up",
    variant=Variant(name=VARIANT, draft=Draft(kind=DraftKind.MODEL, tokens=K, model="draft", sampling=DraftSampling.PROBABILISTIC)),
)
_SCORED_BY: Final = {
    BaselineBoots.IN_TURN: (CONTROL,),
    BaselineBoots.SIDE_BY_SIDE: (BASELINE,),
    BaselineBoots.ATTACHED: (BASELINE, CONTROL),
}
_PLAIN: Final = frozenset({"prompt", "messages", "max_tokens", "temperature", "top_p", "ignore_eos", "logprobs", "top_logprobs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload of the suites and the family that judges it."""

    name: str
    family: Family
    module: str
    attribute: str

    @property
    def workload(self) -> Workload:
        """What standard depth sends of it, requests whose fields act on words left out."""
        return _workload(self.module, self.attribute)


@cache
def _workload(module: str, attribute: str) -> Workload:
    sent: Workload = getattr(import_module(f"suites.{module}"), attribute)
    return simulable(sent.at(Depth.STANDARD))


_SUITES: Final = (
    ("greedy", Family.GREEDY, "greedy.test_greedy", "MIXED"),
    ("state", Family.STATE, "state.test_state", "IN_ORDER"),
    ("concurrency", Family.CONCURRENCY, "concurrency.test_concurrency", "COMPANY"),
    ("pressure", Family.PRESSURE, "pressure.test_pressure", "TOGETHER"),
    ("documents", Family.STRUCTURED, "structured.test_structured", "DOCUMENTS"),
    ("context", Family.CONTEXT, "context.test_context", "LONG"),
    ("logprobs", Family.LOGPROBS, "logprobs.test_logprobs", "REPORTED"),
    ("top-lists", Family.LOGPROBS, "logprobs.test_logprobs", "LISTED"),
    ("seeds", Family.SEEDS, "seeds.test_seeds", "SEEDS"),
    ("doses", Family.PARAMETERS, "parameters.test_doses", "DOSES"),
    ("pairs", Family.PARAMETERS, "parameters.test_pairs", "PAIRS"),
    ("penalties", Family.PARAMETERS, "parameters.test_penalties", "PENALISED"),
    ("open", Family.SAMPLING, "sampling.test_sampling", "OPEN"),
    ("long", Family.SAMPLING, "sampling.test_sampling", "LONG"),
    ("nucleus", Family.SAMPLING, "sampling.test_sampling", "NUCLEUS"),
    ("cool", Family.SAMPLING, "sampling.test_sampling", "COOL"),
)
CELLS: Final = {name: Cell(name=name, family=family, module=module, attribute=attribute) for name, family, module, attribute in _SUITES}
"""Judgements of a run by name, in the order of the tables."""


class Run:
    """One run: a baseline, its control, which scores, a variant, and a draft model served alone."""

    def __init__(self, world: World, seed: int, *, fault: Fault = CORRECT) -> None:
        self.world, self.seed, self.fault = world, seed, fault
        draft = DraftSampling.GREEDY if fault.best else DraftSampling.PROBABILISTIC
        self.pair = replace(PAIR, variant=replace(PAIR.variant, draft=replace(PAIR.variant.draft, sampling=draft)))
        root = zlib.crc32(f"{world.name} {seed}".encode())
        self.baseline, self.variant, self.control, self.drafter = (Boot(world, number, root) for number in range(4))
        if world.boots is BaselineBoots.ATTACHED:
            self.control = self.baseline
        self.scored_by = _SCORED_BY[world.boots]
        self._answers: dict[str, tuple[ArmAnswers, ...]] = {}

    def captured(self, name: str, *, rounds: int = 0) -> Captured:
        """Return what the judge of the cell ``name`` sees after so many ``rounds`` in which the same was asked again."""
        first, *repeats = (self._asked(name, number) for number in range(rounds + 1))
        return replace(first, repeats=tuple(repeats))

    def _asked(self, name: str, number: int) -> Captured:
        cell = CELLS[name]
        workload = repeat(cell.workload, number) if number else cell.workload
        arms = self._arms(workload)
        by_arm = {each.transcript.arm: each for each in arms}
        return Captured(
            pair=self.pair,
            workload=workload,
            family=cell.family,
            baseline=by_arm[BASELINE].transcript,
            control=by_arm[CONTROL].transcript,
            speculative=by_arm[VARIANT].transcript,
            scores=self._scores(workload, arms),
            draft_scores=self._draft_scores(workload, arms),
            calibration=self.calibration,
            same_boot_calibration=self.same_boot_calibration,
            verify_calibration=self.verify_calibration,
            scored_by=self.scored_by,
            within_one_boot=self.world.boots is BaselineBoots.ATTACHED,
            capabilities=dict.fromkeys(by_arm, self._capabilities),
            alpha=FAMILIES[cell.family].alpha(1),
        )

    @property
    def _capabilities(self) -> Capabilities:
        return Capabilities(vocabulary=VOCABULARY, single_precision=self.world.single_precision)

    @cached_property
    def calibration(self) -> ReportedDraws:
        """What the boot of the baseline that scores nothing reports of plain draws at temperature 1, each with its score."""
        return self._calibrated(*((CONTROL, self.control) if self.scored_by == (BASELINE,) else (BASELINE, self.baseline)))

    @cached_property
    def same_boot_calibration(self) -> ReportedDraws:
        """The same of the boot that scores, where there is another."""
        return self._calibrated(self.scored_by[0], self.scorer) if len(self.scored_by) == 1 else ReportedDraws()

    @property
    def scorer(self) -> Boot:
        """The boot of the baseline that scores."""
        return self.control if CONTROL in self.scored_by else self.baseline

    @cached_property
    def verify_calibration(self) -> ReportedDraws:
        """The same of the variant, whose verify kernel computes it."""
        return self._calibrated(VARIANT, self.variant, speculates=True)

    def _calibrated(self, arm: str, boot: Boot, *, speculates: bool = False) -> ReportedDraws:
        workload = plain_draws(Depth.STANDARD)
        answers = answer(arm, workload, boot, self._random(workload.name, arm), speculates=speculates)
        scored = scores(answers, self.scorer, self._random(workload.name, f"score of {arm}"), top_tokens=workload.top_tokens)
        return ReportedDraws(answers=tuple(tuple(zip(answers.reported[score.key], score.positions, strict=True)) for score in scored))

    def reported(self, name: str) -> Mapping[str, tuple[tuple[float, Position], ...]]:
        """Return by arm what it computed of its own tokens in the cell ``name``, each with its score, whether or not it was asked for."""
        workload = CELLS[name].workload
        arms = self._arms(workload)
        by_arm = self._scores(workload, arms)
        return {
            each.transcript.arm: tuple(
                pair
                for score in by_arm.get(each.transcript.arm, ())
                if score.key in each.reported
                for pair in zip(each.reported[score.key], score.positions, strict=True)
            )
            for each in arms
        }

    def gaps(self, name: str) -> Mapping[str, tuple[float, ...]]:
        """Return by arm how far each of its tokens at temperature 0 lies below the best, nats, where nothing but the model decides."""
        workload = CELLS[name].workload
        greedy = {request.id for request in workload.requests if request.body.keys() <= _PLAIN and request.body.get("temperature") == 0}
        scored = self._scores(workload, self._arms(workload))
        positions = {
            arm: [each for score in several if score.request_id in greedy for each in score.positions] for arm, several in scored.items()
        }
        return {arm: tuple(each.top_logprobs[0] - each.logprob for each in several) for arm, several in positions.items()}

    def _arms(self, workload: Workload) -> tuple[ArmAnswers, ...]:
        if workload.name not in self._answers:
            self._answers[workload.name] = (
                answer(BASELINE, workload, self.baseline, self._random(workload.name, BASELINE)),
                answer(CONTROL, workload, self.control, self._random(workload.name, CONTROL)),
                answer(VARIANT, workload, self.variant, self._random(workload.name, VARIANT), speculates=True, fault=self.fault),
            )
        return self._answers[workload.name]

    def _scores(self, workload: Workload, arms: Iterable[ArmAnswers]) -> Mapping[str, tuple[Score, ...]]:
        if not workload.scored:
            return {}
        return {
            each.transcript.arm: scores(
                each, self.scorer, self._random(workload.name, f"score of {each.transcript.arm}"), top_tokens=workload.top_tokens
            )
            for each in arms
        }

    def _draft_scores(self, workload: Workload, arms: Iterable[ArmAnswers]) -> Mapping[str, tuple[Score, ...]]:
        if not workload.draft_scored:
            return {}
        return {
            each.transcript.arm: draft_scores(
                each, self.drafter, self._random(workload.name, f"draft of {each.transcript.arm}"), top_tokens=workload.top_tokens
            )
            for each in arms
        }

    def _random(self, *words: str) -> np.random.Generator:
        """Return a generator that hangs on world, run and ``words`` only, so that cells may be made in any order."""
        seeds = [self.seed, *(zlib.crc32(word.encode()) for word in (self.world.name, *words))]
        return np.random.Generator(np.random.SFC64(seeds))


def simulate_run(world: str, seed: int, *, cells: Iterable[str] = CELLS, fault: Fault = CORRECT) -> dict[str, Captured]:
    """Return what the judges see of one run of the world so named, by cell."""
    run = Run(WORLDS[world], seed, fault=fault)
    return {name: run.captured(name) for name in cells}
