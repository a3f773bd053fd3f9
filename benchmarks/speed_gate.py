"""The speed gate on simulated runs: ``python -m benchmarks.speed_gate`` writes benchmarks/results/speed_gate.{json,md}.

A run is a boot of the baseline, one of the variant and one of the control, whose log speeds vary with ``boot sd``, and four passes in each
whose log-ratios vary with ``pass sd``; a run with a file has the control's log-ratios of so many earlier runs.
"""

from __future__ import annotations

import math
import time

import numpy as np

from benchmarks import results
from pytest_specdec.stats.speedup import across_boots, boots

RUNS = 20_000
PASSES = 4
ALPHA = 0.00125
PROVEN = 0.025
BOOT_SDS = (0.005, 0.02, 0.03, 0.05, 0.10)


def cell(*, truth: float, gate: float, boot_sd: float, pass_sd: float = 0.02, earlier: int = 0, seed: int = 1) -> dict[str, object]:
    """Return how often a true speedup of ``truth`` is proven to be, or failed for not being, at least ``gate``."""
    rng = np.random.default_rng(seed)
    proven = failed = 0
    for _ in range(RUNS):
        baseline, control, variant = rng.normal(0.0, boot_sd, 3)
        noise = rng.normal(0.0, pass_sd, (PASSES, 2)) * math.sqrt(2.0 / 3.0)  # of the arms' means: together pass_sd in the log-ratio
        both = noise[:, 0] * math.sqrt(0.5)
        apart = rng.normal(0.0, pass_sd * math.sqrt(4.0 / 3.0 / PASSES))
        d = [control - baseline + apart, *rng.normal(0.0, math.sqrt(2.0 * boot_sd**2 + 4.0 / 3.0 * pass_sd**2 / PASSES), earlier)]
        ratios = math.log(truth) + variant - (baseline + control) / 2.0 + noise[:, 1] - both
        found = across_boots(list(ratios), boots(d), baseline_boots=2)
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
    """Return the tables."""
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
    return [{"table": title, **cell(**asked)} for title, cells in tables.items() for asked in cells]


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    found = rows()
    results.write("speed_gate", found, command="python -m benchmarks.speed_gate", seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
