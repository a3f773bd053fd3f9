"""Verdicts on the stored runs of a corpus, by a replay of each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.workload import JSON

__all__ = ["items"]

ROOT = Path(__file__).parents[2]
_DAY = "2026-11-24"
"""By which waivers expire, so that no verdict hangs on the day of the replay."""


def items(corpus: Path) -> Iterator[tuple[str, JSON]]:
    """Yield every judgement of every run below ``corpus/runs``: result, and the verdict with its figures and sentences."""
    scratch = corpus / "replayed"
    for run in sorted((corpus / "runs").iterdir()):
        if (run / "plan.json").exists():
            shutil.rmtree(scratch, ignore_errors=True)
            _replay(run, scratch)
            for judged in json.loads((scratch / "run.json").read_text())["judgements"]:
                yield f"{run.name}: {judged['nodeid']}", {key: judged[key] for key in ("result", "verdict", "error", "waiver")}
    shutil.rmtree(scratch, ignore_errors=True)


def _replay(run: Path, scratch: Path) -> None:
    options = [f"--specdec-replay={run}", f"--specdec-run-dir={scratch}", f"--specdec-date={_DAY}", "-q", "-p", "no:cacheprovider"]
    suites = [sys.executable, "-m", "pytest", str(ROOT / "suites"), *options]
    done = subprocess.run(suites, cwd=ROOT, capture_output=True, text=True, check=False)
    if not (scratch / "run.json").exists():
        msg = f"no verdicts on {run}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise RuntimeError(msg)
