"""The speed gate on simulated runs: ``python -m benchmarks.speed_gate`` writes benchmarks/results/speed_gate.{json,md}.

``--boots`` measures the tables of several boots alone and leaves the others as they are.

A run is a boot of the baseline, one of the variant and one of the control, whose log speeds vary with ``boot sd``, and four passes in each
whose log-ratios vary with ``pass sd``; a run with a file has the control's log-ratios of so many earlier runs. A run of several boots has
as many of the variant, in turn between two boots of the baseline each, side by side with passes that alternate with those of one; there
more passes are taken where they vary too much, as the capture does. A series is eleven runs, of which every one that does not fail
updates the baseline file.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import results
from pytest_specdec.capture.alternation import more_passes
from pytest_specdec.gates.floors import measure_floors
from pytest_specdec.gates.rulings import PROVEN_ERROR, SPEED_ERROR, GateRuling, rule_speeds
from pytest_specdec.judge.acceptance.length import acceptance_length
from pytest_specdec.model.baseline import LAST_RUNS
from pytest_specdec.model.plan import MOST_PASSES
from pytest_specdec.model.promise import SpeedFigure, Speedup
from pytest_specdec.model.transcript import Answer, Choice, Transcript
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family, Request, Route, Workload
from pytest_specdec.stats.boot_spread import boot_spread
from pytest_specdec.stats.speedup import BootLevels, across_blocks, across_boots, centre, is_steady

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from pytest_specdec.judge.acceptance.length import AcceptanceLength
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.stats.speedup import Estimate

    Passes: TypeAlias = npt.NDArray[np.float64]

RUNS = 4_000
PROMPTED = 1_000
SERIES = 200
SEVERAL = 1_000
"""Runs of several boots."""
ACCEPTANCE = "Acceptance length, at the threshold: proven and failed are both false"
COVERAGE = "The printed 95 % interval, by runs in the file"
FLOORS = "A healthy run held against the file of a series of healthy runs"
LUCKY = "Healthy runs decided after a first run that was 15 % lucky"
LOSSES = "An eleventh run that is slower, found after ten healthy ones"
LUCK = 0.15
OUTLIER = 0.12
LOST = (0.1, 0.15, 0.2, 0.3)
PASSES = 4
ALPHA = 7.1e-4
SHOWN = 0.025
BOOT_SDS = (0.0, 0.005, 0.02, 0.05, 0.10)
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
    def drawn(cls, rng: np.random.Generator, boot_sd: float, pass_sd: float, outliers: float = 0.0) -> Run:
        """Draw three boots and the passes in them; a pass of one server varies by sqrt(2/3) of what a log-ratio does.

        Of the passes of every server a share of ``outliers`` is slower, by 12 % in the mean.
        """
        baseline, control, variant = rng.normal(0.0, boot_sd, 3)
        noise = rng.normal(0.0, pass_sd, (PASSES, 3)) * math.sqrt(2.0 / 3.0)
        if outliers:
            noise -= rng.exponential(OUTLIER, noise.shape) * (rng.random(noise.shape) < outliers)
        passes = np.array([baseline, control, variant]) + noise
        return cls(log_ratios=passes[:, 2] - passes[:, :2].mean(axis=1), apart=float((passes[:, 1] - passes[:, 0]).mean()))

    def ruling(self, gate: Gate, loss: float = 0.0) -> GateRuling:
        """Return the judge's ruling on a gate of a baseline file, of a run that is slower by ``loss``."""
        spread = boot_spread((self.apart, *gate.boot_log_ratios), runs=gate.log_ratios)
        found = across_boots(list(self.log_ratios + math.log1p(-loss)), spread, baseline_boots=2)
        (ruled,) = rule_speeds([gate], found, ALPHA)
        return ruled.ruling


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
        passes = [list(map(float, block)) for block in blocks]
        return across_blocks(passes, boots_, boot_spread(()), baseline_boots=list(map(len, beside)))

    def taken(self, log_ratios: Passes) -> Passes:
        """Return the passes that are taken of one boot of the variant."""
        passes = PASSES
        while not self.in_turn and passes < len(log_ratios) and not is_steady(list(log_ratios[:passes])):
            passes = more_passes(passes, PASSES)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rulings:
    """What an estimate says of gates, and whether its interval holds the truth: by chances, since limits take longer to find."""

    proven: tuple[bool, ...]
    missed: tuple[bool, ...]
    covered: bool

    @classmethod
    def of(cls, found: Estimate, gates: Sequence[float]) -> Rulings:
        """Hold the estimate against ``gates``, their logs, where the true log-ratio is 0."""
        above = [found.log_ratio - gate for gate in gates]
        *chances, outside = found.tail_probabilities(*map(abs, above), abs(found.log_ratio))
        return cls(
            proven=tuple(by > 0.0 and chance <= SPEED_ERROR for by, chance in zip(above, chances, strict=True)),
            missed=tuple(by < 0.0 and chance < ALPHA for by, chance in zip(above, chances, strict=True)),
            covered=outside > SHOWN,
        )


def _half_width(found: Sequence[Estimate]) -> float:
    """Return the median, over a part of them that is large enough, of the half of a 95 % interval."""
    part = found[:: max(1, len(found) // 200)]
    return statistics.median(math.log(each.at_most(SHOWN)) - each.log_ratio for each in part)


def several(count: int, machine: Machine, *, runs: int = SEVERAL, seed: int = 1) -> dict[str, float]:
    """Return how often ``count`` boots of each variant are ruled wrongly at a floor that is reached exactly, and rightly 10 % off it."""
    rng = np.random.default_rng(seed)
    found = [machine.estimate(rng, count) for _ in range(runs)]
    rulings = [Rulings.of(each, (0.0, math.log(0.9), -math.log(0.9))) for each in found]
    return {
        "failed at the floor": statistics.fmean(each.missed[0] for each in rulings),
        "proven at the floor": statistics.fmean(each.proven[0] for each in rulings),
        "proven, gate 10 % below the truth": statistics.fmean(each.proven[1] for each in rulings),
        "failed at -10 %": statistics.fmean(each.missed[2] for each in rulings),
        "covered": statistics.fmean(each.covered for each in rulings),
        "passes of a boot": float(np.mean([each.passes / count for each in found])),
        "median width": 2.0 * _half_width(found),
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


def coverage(*, boot_sd: float, earlier: int, pass_sd: float = 0.02, runs: int = RUNS, seed: int = 1) -> dict[str, float]:
    """Return how often the interval holds the truth and a gate at the truth is proven or failed, with so many runs in the file."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        run = Run.drawn(rng, boot_sd, pass_sd)
        before = rng.normal(0.0, math.sqrt(2.0 * boot_sd**2 + 4.0 / 3.0 * pass_sd**2 / PASSES), earlier)
        found.append(across_boots(list(run.log_ratios), boot_spread([run.apart, *before]), baseline_boots=2))
    rulings = [Rulings.of(each, (0.0,)) for each in found]
    return {
        "coverage": statistics.fmean(each.covered for each in rulings),
        "false proven": statistics.fmean(each.proven[0] for each in rulings),
        "false fail": statistics.fmean(each.missed[0] for each in rulings),
        "median half-width": _half_width(found),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Eleven runs of a variant that is as fast as its baseline, each held against the file of those before."""

    floors: tuple[float, ...]
    """Of the file after each run, over the truth."""
    rulings: tuple[GateRuling, ...]
    """Of the second run and those after it."""
    found: frozenset[float]
    """Losses that an eleventh run in place of the healthy one would have failed for."""

    @classmethod
    def drawn(cls, rng: np.random.Generator, boot_sd: float, *, luck: float = 0.0, outliers: float = 0.0) -> Series:
        """Draw the runs, the first of them lucky, and update the file with all that do not fail."""
        gates: tuple[Gate, ...] = ()
        floors, rulings, found = [], [], frozenset[float]()
        for number in range(LAST_RUNS + 1):
            run = Run.drawn(rng, boot_sd, 0.02, outliers)
            run = replace(run, log_ratios=run.log_ratios + (math.log1p(luck) if number == 0 else 0.0))
            if gates:
                rulings.append(run.ruling(gates[0]))
            if number == LAST_RUNS:
                found = frozenset(loss for loss in LOST if run.ruling(gates[0], loss) is GateRuling.MISSED)
            elif not rulings or rulings[-1] is not GateRuling.MISSED:
                gates = tuple(change.gate for change in measure_floors([_verdict(run)], gates))
            floors.append(gates[0].at_least or 0.0)
        return cls(floors=tuple(floors), rulings=tuple(rulings), found=found)


def series_rows(*, boot_sd: float, outliers: float = 0.0, count: int = SERIES, seed: int = 1) -> list[dict[str, object]]:
    """Return the rows of three tables: healthy series, losses after them, series after a lucky first run."""
    rng = np.random.default_rng(seed)
    healthy, lucky = ([Series.drawn(rng, boot_sd, luck=luck, outliers=outliers) for _ in range(count)] for luck in (0.0, LUCK))
    cell: dict[str, object] = {"boot sd": f"{boot_sd:.1%}", "slow passes": f"{outliers:.0%}"}
    floors = {f"floor after {n}": f"{statistics.median(each.floors[n - 1] for each in healthy):.3f}" for n in (1, 2, 5, 10)}
    proven = {f"run {n} proven": f"{_share(healthy, n, GateRuling.PROVEN):.3f}" for n in (2, 6, 11)}
    failed = f"{statistics.fmean(one is GateRuling.MISSED for each in healthy for one in each.rulings):.5f}"
    found = {f"loss of {loss:.0%}": f"{statistics.fmean(loss in each.found for each in healthy):.3f}" for loss in LOST}
    after = {f"run {n}": f"{1.0 - _share(lucky, n, GateRuling.OPEN):.3f}" for n in (2, 3, 4, 5, 6, 11)}
    return [
        {"table": FLOORS, **cell, **floors, **proven, "failed, of all runs": failed},
        {"table": LOSSES, **cell, **found, "of none": f"{_share(healthy, LAST_RUNS + 1, GateRuling.MISSED):.4f}"},
        {"table": LUCKY, **cell, **after, "floor after 1": f"{statistics.median(each.floors[0] for each in lucky):.3f}"},
    ]


def _share(runs: Sequence[Series], number: int, ruling: GateRuling) -> float:
    return statistics.fmean(each.rulings[number - 2] is ruling for each in runs)


def accepted(*, prompts: int, concentration: float, steps: int = 40, seed: int = 1) -> dict[str, object]:
    """Return how often a gate that is reached exactly is proven or failed, where each prompt has its own chance of acceptance."""
    rng = np.random.default_rng(seed)
    truth = _accepted_length(_answers(rng, 200_000, 1, concentration)).tokens  # type: ignore[union-attr]  # every answer has steps
    samples = [_accepted_length(_answers(rng, prompts, steps, concentration)) for _ in range(PROMPTED)]
    lengths = [length for length in samples if length is not None]
    return {
        "prompts": prompts,
        "prompts' chances": f"Beta({0.7 * concentration:g}, {0.3 * concentration:g})",
        "true": f"{truth:.2f}",
        "proven": f"{sum(length.at_least(PROVEN_ERROR) >= truth for length in lengths) / PROMPTED:.4f}",
        "failed": f"{sum(length.at_most(ALPHA) < truth for length in lengths) / PROMPTED:.5f}",
    }


def _accepted_length(transcript: Transcript) -> AcceptanceLength | None:
    """Return the accepted length of answers to prompts that are all different."""
    requests = (Request(id=answer.request_id, route=Route.COMPLETIONS, body={"prompt": answer.request_id}) for answer in transcript.answers)
    return acceptance_length(transcript, Workload(name="w", version=1, requests=tuple(requests)))


def _answers(rng: np.random.Generator, prompts: int, steps: int, concentration: float) -> Transcript:
    """Draw three draft tokens a step, of which those before the first refusal are accepted."""
    chances = rng.beta(0.7 * concentration, 0.3 * concentration, (prompts, 1, 1))
    windows = 1 + np.cumprod(rng.random((prompts, steps, 3)) < chances, axis=2).sum(axis=2)
    answers = (
        Answer(request_id=str(i), status=200, choices=(Choice(windows=(1, *(int(w) for w in row), 1)),)) for i, row in enumerate(windows)
    )
    return Transcript(arm="v", boot=0, workload="w", digest="", answers=tuple(answers))


def _verdict(run: Run) -> Verdict:
    ratio = math.exp(float(run.log_ratios.mean()))
    speedup = Speedup(response=SpeedFigure(baseline=1.0, speculative=ratio, speedup=ratio), boot_log_ratio=run.apart)
    return Verdict(outcome=Outcome.PASS, family=Family.SPEED, pair="v", workload="w", headline="", promise=speedup)


def cell(
    *, truth: float, gate: float, boot_sd: float, pass_sd: float = 0.02, earlier: int = 0, runs: int = RUNS // 4, seed: int = 1
) -> dict[str, object]:
    """Return how often a true speedup of ``truth`` is proven to be, or failed for not being, at least ``gate``."""
    rng = np.random.default_rng(seed)
    proven = failed = 0
    for _ in range(runs):
        run = Run.drawn(rng, boot_sd, pass_sd)
        before = rng.normal(0.0, math.sqrt(2.0 * boot_sd**2 + 4.0 / 3.0 * pass_sd**2 / PASSES), earlier)
        found = across_boots(list(math.log(truth / gate) + run.log_ratios), boot_spread([run.apart, *before]), baseline_boots=2)
        rulings = Rulings.of(found, (0.0,))
        proven += rulings.proven[0]
        failed += rulings.missed[0]
    return {
        "true": truth,
        "gate": gate,
        "boot sd": f"{boot_sd:.1%}",
        "pass sd": f"{pass_sd:.0%}",
        "earlier runs": earlier,
        "proven": f"{proven / runs:.4f}",
        "failed": f"{failed / runs:.5f}",
    }


def rows() -> list[dict[str, object]]:
    """Return the tables of one boot of each variant, and of acceptance."""
    tables = {
        f"Proven at a true {truth}, {earlier} runs in the file": [
            {"truth": truth, "gate": 1.0, "boot_sd": sd, "earlier": earlier} for sd in BOOT_SDS[1:]
        ]
        for truth in (1.18, 1.4, 1.8)
        for earlier in (0, 5)
    }
    tables["At the threshold, passes that vary by 10 and 20 %: proven and failed are both false"] = [
        {"truth": 1.0, "gate": 1.0, "boot_sd": sd, "pass_sd": passes} for passes in (0.1, 0.2) for sd in (0.005, 0.05)
    ]
    tables["Failed at a true speedup below the gate, a first run"] = [
        {"truth": truth, "gate": 1.0, "boot_sd": sd} for truth in (0.75, 0.6, 0.5) for sd in (0.02, 0.05)
    ]
    covered = [
        {
            "table": COVERAGE,
            "runs in the file": earlier,
            "boot sd": f"{sd:.1%}",
            **{name: f"{value:.4f}" for name, value in coverage(boot_sd=sd, earlier=earlier).items()},
        }
        for earlier in (0, 1, 2, 5, 10)
        for sd in BOOT_SDS
    ]
    machines = [*((sd, 0.0) for sd in BOOT_SDS), (0.02, 0.03), (0.05, 0.03)]
    floors = [row for sd, slow in machines for row in series_rows(boot_sd=sd, outliers=slow)]
    measured = [{"table": title, **cell(**asked)} for title, cells in tables.items() for asked in cells]
    lengths = [accepted(prompts=prompts, concentration=concentration) for prompts in (20, 100) for concentration in (6.0, 30.0)]
    return [*covered, *measured, *floors, *({"table": ACCEPTANCE, **row} for row in lengths)]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed_gate")
    parser.add_argument("--boots", action="store_true", help="the tables of several boots alone")
    only, began = parser.parse_args().boots, time.monotonic()
    found = [*([] if only else rows()), *several_rows()]
    results.write("speed_gate", found, command="python -m benchmarks.speed_gate", seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
