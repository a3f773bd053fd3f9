"""The speed gate on simulated runs: ``python -m benchmarks.speed_gate`` writes benchmarks/results/speed_gate.{json,md}.

``--boots`` measures the tables of several boots alone and leaves the others as they are.

A run is a boot of the baseline, one of the variant and one of the control, whose log speeds vary with ``boot sd``, and four passes in each
whose log-ratios vary with ``pass sd``; a run with a file has the control's log-ratios of so many earlier runs. A run of several boots has
as many of the variant, in turn between two boots of the baseline each, side by side with passes that alternate with those of one; there
more passes are taken where they vary too much, as the capture does.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import results
from pytest_specdec.capture.alternation import extended
from pytest_specdec.judge.acceptance import acceptance_length
from pytest_specdec.model.plan import MOST_PASSES
from pytest_specdec.model.transcript import Answer, Choice, Transcript
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import baselines
from pytest_specdec.stats.speedup import BootLevels, across_blocks, across_boots, boots, centre, steady

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from pytest_specdec.stats.speedup import Estimate

    Passes: TypeAlias = npt.NDArray[np.float64]

RUNS = 20_000
FILES = 4_000
SEVERAL = 8_000
"""Runs of several boots."""
ACCEPTANCE = "Acceptance length, at the threshold: proven and failed are both false"
FLOORS = "A healthy run held against the floor that healthy runs have brought into a baseline file"
PASSES = 4
ALPHA = 0.00125
PROVEN = 0.025
BOOT_SDS = (0.005, 0.02, 0.03, 0.05, 0.10)
IN_TURN = "Several boots in turn, B S B S B …"
BESIDE = "Several boots side by side"
NOISY = "Boots side by side, by the spread between passes"
DRIFT = "Several boots in turn on a machine that drifts or wanders: proven and failed at the floor are both false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run measures of a variant that is as fast as its baseline."""

    log_ratios: npt.NDArray[np.float64]
    """One per pass."""
    apart: float
    """The control's log speed over the baseline's."""

    @classmethod
    def drawn(cls, rng: np.random.Generator, boot_sd: float, pass_sd: float) -> Run:
        """Draw three boots and the passes in them; a pass of one server varies by sqrt(2/3) of what a log-ratio does."""
        baseline, control, variant = rng.normal(0.0, boot_sd, 3)
        noise = rng.normal(0.0, pass_sd, (PASSES, 2)) * math.sqrt(2.0 / 3.0)
        apart = control - baseline + rng.normal(0.0, pass_sd * math.sqrt(4.0 / 3.0 / PASSES))
        return cls(log_ratios=variant - (baseline + control) / 2.0 + noise[:, 1] - noise[:, 0] * math.sqrt(0.5), apart=apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What several boots of both servers vary by; logs."""

    boot_sd: float
    pass_sd: float
    """Of a log-ratio."""
    in_turn: bool
    drift: float = 0.0
    """Of the machine's speed, over all boots of a run."""
    wander: float = 0.0
    """Deviation of a step that the machine's speed takes between two boots."""

    def logs(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
        """Return the log speed by boot and pass: of the baseline at even places, of the variant, which is as fast, at odd ones.

        A log-ratio has the passes of three servers in it in turn, one of which counts fully and two by half; side by side of two.
        """
        boots_, own = 2 * count + 1, self.pass_sd / math.sqrt(1.5 if self.in_turn else 2.0)
        machine = np.linspace(0.0, self.drift, boots_) + np.cumsum(rng.normal(0.0, self.wander, boots_))
        if not self.in_turn:  # one speed for each wave: the first has three boots in it
            machine = np.repeat(machine[::2][1:], [3, *[2] * (count - 1)])
        passes = PASSES if self.in_turn else MOST_PASSES * PASSES
        return machine[:, None] + rng.normal(0.0, self.boot_sd, (boots_, 1)) + rng.normal(0.0, own, (boots_, passes))

    def estimate(self, rng: np.random.Generator, count: int) -> Estimate:
        """Return what the judge makes of a run: blocks against the baseline boots beside them, boots on the scale of the first baseline."""
        logs = self.logs(rng, count)
        speculative, baseline = logs[1::2], logs[::2]
        beside = [[i, i + 1] if self.in_turn or i == 0 else [i + 1] for i in range(count)]
        blocks = [self.taken(mine - baseline[near].mean(axis=0)) for mine, near in zip(speculative, beside, strict=True)]
        levels = self.levels(baseline, beside, blocks)
        on_scale = [centre(list(block)) + float(levels[near].mean()) for block, near in zip(blocks, beside, strict=True)]
        groups = (
            [(slice(None), slice(None))]
            if self.in_turn
            else [(slice(1), slice(2)), *((slice(i, i + 1), slice(i + 1, i + 2)) for i in range(1, count))]
        )
        boots_ = [BootLevels(speculative=tuple(on_scale[mine]), baseline=tuple(map(float, levels[near]))) for mine, near in groups]
        return across_blocks([list(map(float, block)) for block in blocks], boots_)

    def taken(self, log_ratios: Passes) -> Passes:
        """Return the passes that are taken of one boot of the variant."""
        passes = PASSES
        while not self.in_turn and passes < len(log_ratios) and not steady(list(log_ratios[:passes])):
            passes = extended(passes, PASSES)
        return log_ratios[:passes]

    @staticmethod
    def levels(baseline: Passes, beside: Sequence[Sequence[int]], blocks: Sequence[Passes]) -> Passes:
        """Return the log speed of each baseline boot over that of the first, over the passes that both were asked for."""
        passes = {boot: len(block) for near, block in zip(beside, blocks, strict=True) for boot in near}
        return np.array([(each - baseline[0])[: min(passes[0], passes[boot])].mean() for boot, each in enumerate(baseline)])

    @property
    def described(self) -> dict[str, object]:
        """What a table says of it."""
        moves = {"drift": self.drift, "wander": self.wander}
        said = " ".join(f"{name} {by:.0%}" for name, by in moves.items() if by)
        return {"boot sd": f"{self.boot_sd:.1%}", "pass sd": f"{self.pass_sd:.0%}", **({"machine": said} if said else {})}


def several(count: int, machine: Machine, *, runs: int = SEVERAL, seed: int = 1) -> dict[str, float]:
    """Return how often ``count`` boots of each variant are ruled wrongly at a floor that is reached exactly, and rightly 10 % off it."""
    rng = np.random.default_rng(seed)
    found = [machine.estimate(rng, count) for _ in range(runs)]
    low, high = np.array([each.at_least(PROVEN) for each in found]), np.array([each.at_most(ALPHA) for each in found])
    intervals = [each.interval(1.0 - 2.0 * PROVEN) for each in found]
    return {
        "failed at the floor": float((high < 1.0).mean()),
        "proven at the floor": float((low >= 1.0).mean()),
        "proven, gate 10 % below the truth": float((low >= 0.9).mean()),
        "failed at -10 %": float((high * 0.9 < 1.0).mean()),
        "passes of a boot": float(np.mean([each.passes / count for each in found])),
        "median width": float(np.median([math.log(each.high / each.low) for each in intervals])),
    }


def several_rows() -> list[dict[str, object]]:
    """Return the tables of several boots."""
    spreads = (0.005, 0.02, 0.05)
    unsteady = [
        Machine(boot_sd=0.005, pass_sd=0.02, in_turn=True, drift=drift, wander=wander)
        for drift, wander in ((0.05, 0.0), (0.2, 0.0), (0.0, 0.02), (0.0, 0.05))
    ]
    cells = [
        *((IN_TURN, count, Machine(boot_sd=sd, pass_sd=0.02, in_turn=True)) for count in (2, 4, 6) for sd in spreads),
        *((BESIDE, count, Machine(boot_sd=sd, pass_sd=0.05, in_turn=False)) for count in (1, 2, 4, 5, 6) for sd in spreads),
        *((NOISY, count, Machine(boot_sd=0.02, pass_sd=sd, in_turn=False)) for count in (1, 4, 6) for sd in (0.02, 0.1, 0.2)),
        *((DRIFT, count, machine) for count in (2, 4) for machine in unsteady),
    ]
    return [
        {"table": title, "boots of the variant": count, **machine.described, **_shown(count, machine)} for title, count, machine in cells
    ]


def _shown(count: int, machine: Machine) -> dict[str, str]:
    return {name: f"{value:.4f}" for name, value in several(count, machine).items()}


def held(*, boot_sd: float, earlier: int, pass_sd: float = 0.02, seed: int = 1) -> dict[str, object]:
    """Return how often a healthy run proves, or fails, the floor that ``earlier`` healthy runs have brought into a baseline file."""
    rng = np.random.default_rng(seed)
    proven = failed = 0
    for _ in range(FILES):
        runs = [Run.drawn(rng, boot_sd, pass_sd) for _ in range(earlier)]
        (gate,) = functools.reduce(lambda known, run: baselines.measured([_verdict(run)], known), runs, ())
        run = Run.drawn(rng, boot_sd, pass_sd)
        found = across_boots(list(run.log_ratios), boots([run.apart, *gate.boot_log_ratios]), baseline_boots=2)
        proven += found.at_least(PROVEN) >= (gate.at_least or 0.0)
        failed += found.at_most(ALPHA) < (gate.at_least or 0.0)
    return {
        "boot sd": f"{boot_sd:.1%}",
        "earlier runs": earlier,
        "proven": f"{proven / FILES:.3f}",
        "failed": f"{failed / FILES:.4f}",
    }


def accepted(*, prompts: int, concentration: float, steps: int = 40, seed: int = 1) -> dict[str, object]:
    """Return how often a gate that is reached exactly is proven or failed, where each prompt has its own chance of acceptance."""
    rng = np.random.default_rng(seed)
    truth = acceptance_length(_answers(rng, 200_000, 1, concentration)).tokens  # type: ignore[union-attr]
    found = [acceptance_length(_answers(rng, prompts, steps, concentration)) for _ in range(FILES)]
    lengths = [each for each in found if each is not None]
    return {
        "prompts": prompts,
        "prompts' chances": f"Beta({0.7 * concentration:g}, {0.3 * concentration:g})",
        "true": f"{truth:.2f}",
        "proven": f"{sum(each.at_least(PROVEN) >= truth for each in lengths) / FILES:.4f}",
        "failed": f"{sum(each.at_most(ALPHA) < truth for each in lengths) / FILES:.5f}",
    }


def _answers(rng: np.random.Generator, prompts: int, steps: int, concentration: float) -> Transcript:
    """Draw three draft tokens a step, of which those before the first refusal are accepted."""
    chances = rng.beta(0.7 * concentration, 0.3 * concentration, (prompts, 1, 1))
    windows = 1 + np.cumprod(rng.random((prompts, steps, 3)) < chances, axis=2).sum(axis=2)
    answers = (
        Answer(request_id=str(i), status=200, choices=(Choice(windows=(1, *(int(w) for w in row), 1)),)) for i, row in enumerate(windows)
    )
    return Transcript(arm="v", boot=0, workload="w", digest="", answers=tuple(answers))


def _verdict(run: Run) -> Verdict:
    figures = {"speedup": math.exp(float(run.log_ratios.mean())), "boot_log_ratio": run.apart}
    return Verdict(outcome=Outcome.PASS, family=Family.SPEED, pair="v", workload="w", headline="", figures=figures)


def cell(*, truth: float, gate: float, boot_sd: float, pass_sd: float = 0.02, earlier: int = 0, seed: int = 1) -> dict[str, object]:
    """Return how often a true speedup of ``truth`` is proven to be, or failed for not being, at least ``gate``."""
    rng = np.random.default_rng(seed)
    proven = failed = 0
    for _ in range(RUNS):
        run = Run.drawn(rng, boot_sd, pass_sd)
        before = rng.normal(0.0, math.sqrt(2.0 * boot_sd**2 + 4.0 / 3.0 * pass_sd**2 / PASSES), earlier)
        found = across_boots(list(math.log(truth) + run.log_ratios), boots([run.apart, *before]), baseline_boots=2)
        proven += found.at_least(PROVEN) >= gate
        failed += found.at_most(ALPHA) < gate
    return {
        "true": truth,
        "gate": gate,
        "boot sd": f"{boot_sd:.1%}",
        "pass sd": f"{pass_sd:.0%}",
        "earlier runs": earlier,
        "proven": f"{proven / RUNS:.4f}",
        "failed": f"{failed / RUNS:.5f}",
    }


def rows() -> list[dict[str, object]]:
    """Return the tables of one boot of each variant, and of acceptance."""
    tables = {
        "Proven at a true 1.18": [{"truth": 1.18, "gate": 1.0, "boot_sd": sd} for sd in BOOT_SDS],
        "Proven at a true 1.18, five earlier runs in the file": [
            {"truth": 1.18, "gate": 1.0, "boot_sd": sd, "earlier": 5} for sd in BOOT_SDS
        ],
        "At the threshold: proven and failed are both false": [{"truth": 1.0, "gate": 1.0, "boot_sd": sd} for sd in BOOT_SDS],
        "At the threshold, passes that vary by 10 and 20 %": [
            {"truth": 1.0, "gate": 1.0, "boot_sd": sd, "pass_sd": passes} for passes in (0.1, 0.2) for sd in (0.005, 0.03)
        ],
        "At the threshold, five earlier runs in the file": [{"truth": 1.0, "gate": 1.0, "boot_sd": sd, "earlier": 5} for sd in BOOT_SDS],
        "Failed at a true speedup below the gate": [
            {"truth": truth, "gate": 1.0, "boot_sd": sd} for truth in (0.85, 0.75, 0.6) for sd in (0.02, 0.05)
        ],
    }
    floors = [held(boot_sd=sd, earlier=earlier) for earlier in (1, 5, 10) for sd in BOOT_SDS]
    measured = [{"table": title, **cell(**asked)} for title, cells in tables.items() for asked in cells]
    lengths = [accepted(prompts=prompts, concentration=concentration) for prompts in (20, 100) for concentration in (6.0, 30.0)]
    return [*measured, *({"table": FLOORS, **row} for row in floors), *({"table": ACCEPTANCE, **row} for row in lengths)]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed_gate")
    parser.add_argument("--boots", action="store_true", help="the tables of several boots alone")
    only, began = parser.parse_args().boots, time.monotonic()
    found = [*([] if only else rows()), *several_rows()]
    results.write("speed_gate", found, command="python -m benchmarks.speed_gate", seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
