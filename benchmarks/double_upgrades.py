"""Upgrades of engines that need a GPU, through their doubles: ``python -m benchmarks.double_upgrades [NAME …] [--write]``.

The doubles of one upgrade differ in one behaviour that changed between releases (``tests/engines/doubles/upgrades.py`` has its source).
Each is judged twice: old and new in one run (``engines``), then the new one alone against an archive of the old one's run. A double is
evidence of our reading of an engine, and nothing about the engine itself.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results
from tests.engines.doubles.upgrades import UPGRADES, DoubleUpgrade, write

ROOT = Path(__file__).parents[1]
SUITES = ("suites/greedy", "suites/logprobs/test_logprobs.py::test_reported_logprobs_are_the_baselines")
_RUN_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutput:
    """What one session said of an upgrade."""

    code: int
    output: str

    @property
    def headline(self) -> str:
        """The headline of the comparison; the end of the output where there is none."""
        lines = [line.removeprefix("UPGRADE: ") for line in self.output.splitlines() if line.startswith("UPGRADE: ")]
        return lines[-1] if lines else self.output[-300:]


def main() -> int:
    """Print a line for each upgrade. Returns 1 if one is attributed otherwise than it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*UPGRADES, []], help="of these upgrades alone")
    parser.add_argument("--write", action="store_true", help="keep the results under benchmarks/results")
    arguments = parser.parse_args()
    began_s, rows = time.monotonic(), []
    for name in arguments.names or UPGRADES:
        with tempfile.TemporaryDirectory() as folder:
            for row in follow(name, Path(folder)):
                sys.stdout.write("  ".join(map(str, list(row.values())[1:])) + "\n")
                sys.stdout.flush()
                rows.append(row)
    if arguments.write:
        command = "python -m benchmarks.double_upgrades --write"
        results.write("double_upgrades", rows, command=command, seconds=time.monotonic() - began_s)
    return int(not all(row["right"] for row in rows))


def follow(name: str, folder: Path) -> list[dict[str, object]]:
    """Judge one upgrade both ways; return a row for each."""
    upgrade, config = UPGRADES[name], write(name, folder)
    together = judge(config, folder / "together")
    archive = shutil.make_archive(str(folder / "old"), "zip", folder / "together", "old")
    apart = judge(config, folder / "apart", "--specdec-engine=new", f"--specdec-against={archive}")
    ways = (("engines", together), ("--specdec-against", apart))
    return [{"table": upgrade.engine, "form": f"{name}, {way}", **row(upgrade, judged)} for way, judged in ways]


def judge(config: Path, run: Path, *options: str) -> SessionOutput:
    """Capture and judge an upgrade by a few suites at smoke depth."""
    command = [sys.executable, "-m", "pytest", *SUITES, "-q", "-p", "no:cacheprovider", "--specdec-depth=smoke"]
    options = (*options, f"--specdec-config={config}", f"--specdec-run-dir={run}")
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=_RUN_S, check=False)
    return SessionOutput(code=done.returncode, output=done.stdout + done.stderr)


def row(upgrade: DoubleUpgrade, judged: SessionOutput) -> dict[str, object]:
    """Return the columns of one way, with whether it said what it has to."""
    right = judged.headline.startswith(upgrade.word) and upgrade.says in judged.output and judged.code == upgrade.code
    return {
        "behaviour": upgrade.behaviour,
        "source": upgrade.source,
        "headline": judged.headline,
        "exit": judged.code,
        "right": right,
    }


if __name__ == "__main__":
    sys.exit(main())
