"""Size and power of ``gates.verify_noise`` at a gate of 3: ``python -m benchmarks.verify_noise [--runs N]``.

Each kernel answers 32 requests of 64 tokens, as the calibration does; the noise scales of its answers are log-normal. A row is a spread of
these scales and a true ratio of the two kernels, the scorer being exact, with the share of runs that fail.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from pytest_specdec.stats.logprob_noise import MEDIAN_SQUARE
from pytest_specdec.stats.noise import noise_ratio

ANSWERS, TOKENS, GATE, ERROR, DECODE = 32, 64, 3.0, 7e-6, 0.02
SPREADS, RATIOS = (0.0, 0.3, 0.5), (3.0, 4.0, 5.0, 6.0, 8.0)


def main() -> int:
    """Print a row for each spread: the share of runs that fail, by true ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print(f"| spread of answers | {' | '.join(f'{ratio:g} times' for ratio in RATIOS)} |\n|--:|{'--:|' * len(RATIOS)}")
    for spread in SPREADS:
        shares = (failing(spread, ratio, runs) / runs for ratio in RATIOS)
        print(f"| {spread:g} | {' | '.join(f'{share:.4f}' for share in shares)} |", flush=True)
    return 0


def failing(spread: float, ratio: float, runs: int) -> int:
    """Return how many of ``runs`` fail whose verify kernel is ``ratio`` times as noisy as decode."""
    random = np.random.default_rng(1)
    pairs = ((_scales(random, spread, ratio * DECODE), _scales(random, spread, DECODE)) for _ in range(runs))
    measured = (noise_ratio(verify, decode, ERROR) for verify, decode in pairs)
    return sum(one is not None and one.low > GATE for one in measured)


def _scales(random: np.random.Generator, spread: float, noise: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the robust scale of each answer."""
    own = noise * np.exp(spread * random.standard_normal(ANSWERS))
    squares = (own[:, None] * random.standard_normal((ANSWERS, TOKENS))) ** 2
    return np.sqrt(np.median(squares, axis=1) / MEDIAN_SQUARE)


if __name__ == "__main__":
    sys.exit(main())
