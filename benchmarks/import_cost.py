"""The cost of the plugin to a pytest run that does not use it: ``python -m benchmarks.import_cost``.

CPU time of whole pytest processes that collect nothing, with and without the plugin, interleaved;
the figure is the median difference of neighbours.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

TARGET_MS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds of CPU time, medians over the runs."""

    bare_ms: float
    added_ms: float
    spread_ms: float
    """Half the interquartile range of the differences."""


def cpu_ms(*arguments: str) -> float:
    """Return user and system milliseconds of one pytest process that collects an empty directory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as empty:
        subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, empty],
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            cwd=empty,
            capture_output=True,
            check=False,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(runs: int) -> Cost:
    """Measure ``runs`` pairs, dropping a first one that fills the caches."""
    pairs = [(cpu_ms(), cpu_ms("-p", "pytest_specdec.plugin")) for _ in range(runs + 1)][1:]
    differences = sorted(plugged - bare for bare, plugged in pairs)
    low, _, high = statistics.quantiles(differences, n=4)
    return Cost(bare_ms=statistics.median(bare for bare, _ in pairs), added_ms=statistics.median(differences), spread_ms=(high - low) / 2)


def main() -> int:
    """Print the figure; 1 when it is over the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    cost = measure(parser.parse_args().runs)
    spread = f"half IQR {cost.spread_ms:.1f}; target {TARGET_MS:.0f} ms"
    print(f"bare pytest {cost.bare_ms:.0f} ms; the plugin adds {cost.added_ms:.1f} ms ({spread})")
    return int(cost.added_ms > TARGET_MS)


if __name__ == "__main__":
    raise SystemExit(main())
