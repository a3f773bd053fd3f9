"""Size and power of the tests of repeated seeds: ``python -m benchmarks.seed_repeats [--runs N] [--write]``.

Two ways of counting are compared: every repeat of a few prompts and seeds, or one of each of many (``pytest_specdec/judge/seeds.py``). A
flip is a repeat that noise makes another answer. Size: a correct server's flips are as many as the factor allows; the table has the share
of runs that alarm, at the least favourable chance of a flip. Power: the share of faulty servers' runs that alarm.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks import results
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.stats.proportions import greater_than_times, limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Flips = npt.NDArray[np.bool_]
    """[R, B, K, N]: in each run, on each boot, of each prompt and seed, each repeat."""

SEED: Final = 20_261_129
FACTOR: Final = 2.5
"""Times as often as the baseline's a correct server's repeats may flip: ``_VERIFY_FLIPS`` of the judge."""
BOOTS: Final = 2
"""Of the baseline, its control included."""
ALPHA: Final = FAMILIES["seeds"].alpha(1)
ALPHAS: Final = (1e-2, 1e-3, ALPHA)
CHANCES: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Of a flip on the baseline."""
UNEVEN: Final = 0.3
"""Shape of the gamma distribution of hazards where some draws lie close to a boundary and most do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """What is sent, and whether every repeat is a trial of its own."""

    name: str
    alone: int
    """Prompts and seeds repeated alone, once each."""
    concurrent: tuple[int, ...]
    """Repeats under concurrency, of each prompt and seed."""
    every: bool

    def p_values(self, judged: Flips, baseline: Flips, *, alone: int = 0) -> list[float]:
        """Return one of each run, for flips under concurrency and, of the judged arm only, ``alone`` more among those sent alone."""
        if not self.every:
            counts = zip(judged.any((1, 3)).sum(1).tolist(), baseline.any((1, 3)).sum(1).tolist(), strict=True)
            kinds, by_alone = len(self.concurrent), _p_value(alone, self.alone, 0, self.alone)
            return [min(by_alone, _p_value(flips, kinds, others, kinds)) for flips, others in counts]
        counts = zip(judged.sum((1, 2, 3)).tolist(), baseline.sum((1, 2, 3)).tolist(), strict=True)
        trials, several = sum(self.concurrent), sum(self.concurrent) + self.alone
        return [
            min(_p_value(flips, trials, others, BOOTS * trials), _p_value(flips + alone, several, others, BOOTS * several))
            for flips, others in counts
        ]


COUNTINGS: Final = (
    Counting(name="every repeat of 6", alone=4, concurrent=(4, 3, 3, 3, 3, 2), every=True),
    Counting(name="one of each of 24", alone=24, concurrent=(1,) * 24, every=False),
)


@cache
def _p_value(flips: int, trials: int, others: int, other_trials: int) -> float:
    return greater_than_times(flips, trials, others, other_trials, FACTOR)


def _flip_alike(random: np.random.Generator, runs: int, counting: Counting, hazard: float, boots: int) -> Flips:
    """Draw each repeat's noise anew, by one chance for all."""
    return random.random((runs, boots, len(counting.concurrent), max(counting.concurrent))) < -np.expm1(-hazard)


def _flip_unevenly(random: np.random.Generator, runs: int, counting: Counting, hazard: float, boots: int) -> Flips:
    """Draw each repeat's noise anew, by a chance of its prompt and seed."""
    hazards = random.gamma(UNEVEN, hazard / UNEVEN, (runs, 1, len(counting.concurrent), 1))
    return random.random((runs, boots, len(counting.concurrent), max(counting.concurrent))) < -np.expm1(-hazards)


def _flip_together(random: np.random.Generator, runs: int, counting: Counting, hazard: float, boots: int) -> Flips:
    """Flip all repeats of a prompt and seed together, on every boot, as kernels do that repeat themselves."""
    flips = random.random((runs, 1, len(counting.concurrent), 1)) < -np.expm1(-hazard)
    return np.asarray(np.broadcast_to(flips, (runs, boots, len(counting.concurrent), max(counting.concurrent))), dtype=np.bool_)


WORLDS: Final = {
    "alike": (_flip_alike, _flip_alike),
    "uneven": (_flip_unevenly, _flip_unevenly),
    "together": (_flip_together, _flip_together),
    "ragged": (_flip_alike, _flip_together),
}
"""How the judged arm and the baseline flip. Ragged: only the baseline's batches keep their size, and so their noise."""


def size(counting: Counting, world: str, factor: float, runs: int) -> dict[str, object]:
    """Return the largest share of runs, over all chances, that alarm on a correct server that flips ``factor`` times as often."""
    judged_flips, baseline_flips = WORLDS[world]
    most = dict.fromkeys(ALPHAS, 0)
    for chance in CHANCES:
        random, hazard = np.random.default_rng([SEED, round(1000 * chance)]), -np.log1p(-chance)
        judged = _drop_unsent(counting, judged_flips(random, runs, counting, factor * hazard, 1))
        baseline = _drop_unsent(counting, baseline_flips(random, runs, counting, hazard, BOOTS))
        p_values = np.array(counting.p_values(judged, baseline))
        most = {alpha: max(alarms, int((p_values <= alpha).sum())) for alpha, alarms in most.items()}
    shares = {f"at {alpha:.2g}": f"{alarms / runs:.2g}" for alpha, alarms in most.items()}
    is_within = all(limits(alarms, runs, 0.98).low <= alpha for alpha, alarms in most.items())
    return {"table": "size", "form": f"{counting.name}, {world}, {factor:g} times", "runs": runs, **shares, "within": is_within}


def power(counting: Counting, fault: str, chance: float, runs: int) -> dict[str, object]:
    """Return the share of runs that alarm where repeats differ, and on the baseline flip together by ``chance`` under concurrency."""
    random = np.random.default_rng([SEED, round(1000 * chance)])
    baseline = _drop_unsent(counting, _flip_together(random, runs, counting, -np.log1p(-chance), BOOTS))
    judged = _drop_unsent(counting, np.ones((runs, 1, *baseline.shape[2:]), dtype=np.bool_))
    p_values = np.array(counting.p_values(judged, baseline, alone=counting.alone if fault == "seed ignored" else 0))
    alarms = float((p_values <= ALPHA).mean())
    return {"table": "power", "form": f"{counting.name}, {fault}, {chance:g}", "runs": runs, "alarms": f"{alarms:.3f}"}


def _drop_unsent(counting: Counting, flips: Flips) -> Flips:
    """Return ``flips`` without those of repeats that are not sent."""
    return np.asarray(flips & (np.arange(flips.shape[3]) < np.array(counting.concurrent)[:, None]))


def _rows(runs: int) -> Iterator[dict[str, object]]:
    yield from (size(counting, world, factor, runs) for counting in COUNTINGS for world in WORLDS for factor in (1.0, FACTOR))
    faults = ("seed ignored", "neighbours decide")
    yield from (power(counting, fault, chance, 1000) for counting in COUNTINGS for fault in faults for chance in (0.0, 0.05, 0.1, 0.5, 0.9))


def main(arguments: list[str]) -> int:
    """Print every row, and write them with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seed_repeats", description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    begun, rows = time.monotonic(), []
    for row in _rows(options.runs):
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    if options.write:
        results.write("seed_repeats", rows, command="python -m benchmarks.seed_repeats", seconds=time.monotonic() - begun)
    return int(not all(row.get("within", True) for row in rows if "one of each" in str(row["form"])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
