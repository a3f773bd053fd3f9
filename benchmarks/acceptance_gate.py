"""Acceptance against a stored run, simulated: ``python -m benchmarks.acceptance_gate`` writes benchmarks/results/acceptance_gate.{json,md}.

Every prompt has its own chance of acceptance, the same in both runs but for the loss; a step verifies three draft tokens. The texts of the
two runs are drawn independently, as at temperature 1: at temperature 0 equal answers make the pairs closer, and the power higher.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from benchmarks import results
from pytest_specdec.stats.acceptance_change import compare

RUNS = 20_000
TABLE = "Found as lower, by true change"
ERRORS = "False alarms at a change of exactly the margin, and without any"
K = 3
CHANCES = (8.4, 3.6)
"""Beta parameters of the prompts' chances: mean 0.7, standard deviation 0.13."""
DROPS = (0.035, 0.05, 0.08, 0.085, 0.16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One gated cell."""

    prompts: int
    steps: int
    alpha: float = 1e-3
    """The judgement's share, both tails together."""
    stored_runs: int = 1
    """Runs in the baseline file, pooled."""

    def found(self, change: float, *, runs: int, seed: int = 1) -> tuple[int, int]:
        """Return of how many runs with a true ``change`` of the length, a part, the gate says lower and higher."""
        rng, power = np.random.default_rng(seed), _power(change)
        lower = higher = 0
        for _ in range(runs):
            chances = rng.beta(*CHANCES, self.prompts)
            stored = lengths(rng, chances, self.steps * self.stored_runs)
            seen = compare(stored, lengths(rng, chances**power, self.steps))
            lower += seen.is_lower(self.alpha)
            higher += seen.is_higher(self.alpha)
        return lower, higher


def lengths(rng: np.random.Generator, chances: np.ndarray[tuple[int], np.dtype[np.float64]], steps: int) -> list[float]:
    """Draw the mean of ``steps`` steps of each prompt: a step emits n + 1 tokens with probability a^n (1 - a), and k + 1 with a^k."""
    powers = np.stack([chances**n for n in range(K + 1)], axis=1)
    shares = powers - np.concatenate([powers[:, 1:], np.zeros((len(chances), 1))], axis=1)
    counts = rng.multinomial(steps, np.maximum(shares, 0.0) / shares.sum(axis=1, keepdims=True))
    return [float(length) for length in counts @ np.arange(1, K + 2) / steps]


def _power(change: float) -> float:
    """Return the power to which every chance is raised so that the mean length changes by ``change``: bisection over a grid of chances."""
    grid = np.random.default_rng(0).beta(*CHANCES, 100_000)
    wanted = (1.0 + change) * _expected(grid)
    low, high = 0.01, 20.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _expected(grid**middle) > wanted else (low, middle)
    return (low + high) / 2.0


def _expected(chances: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(sum(chances**n for n in range(K + 1)).mean())


def row(cell: Cell) -> dict[str, object]:
    """Return how often each drop is found."""
    shares = {f"-{drop:.1%}": f"{cell.found(-drop, runs=RUNS // 5)[0] / (RUNS // 5):.3f}" for drop in DROPS}
    return {"table": TABLE, **_settings(cell), **shares}


def errors(cell: Cell) -> dict[str, object]:
    """Return how often a healthy drafter, and one at the margin, is called lower or higher."""
    healthy, at_margin = cell.found(0.0, runs=RUNS), cell.found(-0.03, runs=RUNS)
    found = {"no change": f"{sum(healthy) / RUNS:.5f}", "-3.0%: lower": f"{at_margin[0] / RUNS:.5f}"}
    return {"table": ERRORS, **_settings(cell), **found}


def _settings(cell: Cell) -> dict[str, object]:
    return {"prompts": cell.prompts, "steps": cell.steps, "stored runs": cell.stored_runs, "alpha": cell.alpha}


def main() -> None:
    """Simulate every cell and write the results."""
    began = time.monotonic()
    sizes = ((50, 20, 1), (50, 40, 1), (100, 40, 1), (100, 40, 3))
    cells = [Cell(prompts=p, steps=s, stored_runs=r, alpha=a) for a in (1e-3, 5e-4) for p, s, r in sizes]
    rows = [*map(row, cells), *map(errors, cells[:4])]
    results.write("acceptance_gate", rows, command="python -m benchmarks.acceptance_gate", seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
