"""Whether a change of form changed anything: ``python -m benchmarks.equality [freeze] [--parts PART ...]``.

``freeze`` computes every part on the commit at hand and keeps it below ``--corpus``; without it the same is computed again and compared.
Each difference is printed: exit 1 where there is one. The corpus stays out of the repository: its runs are ``runs/NAME``, made or put there
by hand (``--make`` makes those that need the reference engine alone). benchmarks/results/equality.json holds hashes of what was frozen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.equality import answers, plans, runs, verdicts
from benchmarks.equality.difference import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_specdec.model.workload import JSON

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "equality.json"
PARTS: Mapping[str, Callable[[Path], Iterator[tuple[str, JSON]]]] = {
    "verdicts": verdicts.items,
    "plans": plans.plans,
    "requests": plans.requests,
    "answers": answers.items,
}
_SHOWN = 20


def main() -> int:
    """Freeze or compare; return 1 where something differs."""
    options = _options()
    if options.make:
        runs.make(options.corpus / "runs")
    different = 0
    hashes = {}
    for part in options.parts:
        made = dict(PARTS[part](options.corpus))
        path = options.corpus / f"{part}.json"
        if options.action == "freeze":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(made, indent=1, sort_keys=True))
            hashes[part] = {"items": len(made), "sha256": hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()}
            print(f"{part}: {len(made)} items frozen")
            continue
        lines = list(differences(json.loads(path.read_text()), made))
        different += len(lines)
        print(f"{part}: {len(made)} items, {len(lines)} differences")
        print("\n".join(lines[:_SHOWN]))
    if hashes:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        RESULTS.write_text(json.dumps({"commit": commit, **results.environment(), "parts": hashes}, indent=1) + "\n")
    return int(different > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("freeze", "compare"), default="compare")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="(default: all)")
    parser.add_argument("--corpus", type=Path, default=ROOT / ".specdec" / "equality")
    parser.add_argument("--make", action="store_true", help="make the runs of the reference engine that are missing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
