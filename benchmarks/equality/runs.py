"""Runs of a corpus that need the reference engine alone: healthy ones of several kinds, and batches of planted faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["KINDS", "make"]

ROOT = Path(__file__).parents[2]
KINDS: dict[str, tuple[str, ...]] = {
    "reference-smoke": ("--specdec-config=reference", "--specdec-depth=smoke"),
    "reference-standard": ("--specdec-config=reference",),
    "reference-continuations": ("--specdec-config=reference-continuations", "--specdec-depth=smoke"),
    "reference-scorer": ("--specdec-config=reference-scorer", "--specdec-depth=smoke"),
    "reference-reasoning": ("--specdec-config=reference-reasoning", "--specdec-depth=smoke"),
    "reference-unscored": ("--specdec-config=reference-unscored", "--specdec-depth=smoke"),
    "reference-faulty": ("--specdec-config=reference-faulty", "--specdec-depth=smoke"),
    "reference-boots": ("--specdec-config=reference", "--specdec-depth=smoke", "--specdec-boots=2"),
}
"""Options of the suites by the name of the run."""
_FAULTS = {"reference-scorer": "accept-all", "reference-unscored": "kv-off-by-one", "reference-faulty": "report-draft-logprobs"}
"""What ``SPECDEC_FAULT`` says to those runs whose config reads it; nothing to the others."""


def make(folder: Path) -> None:
    """Make the runs that are missing below ``folder``, and batches of planted faults under ``faults-*``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in KINDS.items():
        if not (folder / name / "run.json").exists():
            print(f"making {name}", flush=True)
            shutil.rmtree(folder / name, ignore_errors=True)
            command = [sys.executable, "-m", "pytest", str(ROOT / "suites"), *options, f"--specdec-run-dir={folder / name}", "-q"]
            environment = {**os.environ, "SPECDEC_FAULT": _FAULTS.get(name, "")}
            subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    _make_faulty(folder)


def _make_faulty(folder: Path) -> None:
    cells = folder.parent / "faults"
    sensitivity = [sys.executable, "-m", "benchmarks.sensitivity", "--seeds", "1", "--depth", "smoke", "--own", "--keep"]
    subprocess.run([*sensitivity, f"--folder={cells}"], cwd=ROOT, check=False)
    for run in sorted((cells / "runs").iterdir()):
        link = folder / f"faults-{run.name}"
        if (run / "plan.json").exists() and not link.exists():
            link.symlink_to(run.resolve())
