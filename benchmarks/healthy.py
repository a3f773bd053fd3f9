"""Whole suites on correct servers whose numbers are not exact: ``python -m benchmarks.healthy [--worlds a,b] [--seeds 1,2]``.

The reference engine serves each world with ``--numerics``; every suite judges two variants of it, and everything but a pass, a refusal or
an undecided speed is red. A run that was captured is not captured again: the same command goes on where it stopped, and judges anew what
other judges had judged. ``--write`` keeps the table in benchmarks/results/healthy.md. Exit 1 where anything is red.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.detection.store import digest
from benchmarks.sensitivity.suite_run import DRAFT, NGRAM, ROOT, SuiteRun, families

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.sensitivity.suite_run import Judged
    from pytest_specdec.model.workload import JSON

__all__ = ["WORLDS", "red", "suite_run"]

WORLDS: Mapping[str, str] = {
    "exact": "",
    "g.03": "normal:0.03",
    "g.1": "normal:0.1",
    "mt3.03": "heavy:0.03",
    "mt3.1": "heavy:0.1",
    "bf16.03": "normal:0.03,grid:bf16",
    "fp16.004": "normal:0.004,grid:fp16",
    "out1e-4": "normal:0.02,jumps:1e-4",
    "out1e-3": "normal:0.02,jumps:1e-3",
    "boot.1": "normal:0.02,boot:0.1",
    "ver3x": "normal:0.02,verify:3",
    "ver.1": "normal:0.02,verify:5",
}
"""``--numerics`` by world, under the names of ``benchmarks.worlds``."""
VARIANTS = {"draft-k3": DRAFT, "ngram-k3": NGRAM}
GREEN = frozenset({"pass", "passed", "refused", "skipped", "speed not decided"})
_JUDGED = tuple(f"pytest_specdec/{room}" for room in ("judge", "gates", "stats", "report", "plugin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRun:
    """What the suites came to in one world under one seed."""

    world: str
    numerics: str
    seed: int
    depth: str
    judgements: int
    red: tuple[str, ...]
    """A line per judgement that is not green."""
    seconds: int


def suite_run(
    world: str, seed: int, depth: str, *, only: Sequence[str] = (), variants: Mapping[str, Mapping[str, JSON]] = VARIANTS
) -> SuiteRun:
    """Return the run of the suites in ``world``, or of the families named."""
    numerics: Mapping[str, str] = {"numerics": WORLDS[world]} if WORLDS[world] else {}
    return SuiteRun(
        name=f"{world}-{depth}-{seed}", variants=variants, seed=seed, depth=depth, engine=numerics, families=tuple(only) or families()
    )


def red(judged: Mapping[str, Sequence[Judged]]) -> tuple[str, ...]:
    """Return a line per judgement of any variant that is not green."""
    wrong = [(name, one) for name, several in judged.items() for one in several if one.outcome not in GREEN]
    return tuple(f"{name}, {one.family} of {one.workload}: {one.outcome}: {one.headline[:160]}" for name, one in wrong)


def _world_run(run: SuiteRun, world: str, folder: Path) -> WorldRun:
    """Capture ``run`` unless it was, judge it again where judges have changed, and return what it came to."""
    mark, judges = folder / f"{run.name}.judges", digest(ROOT, _JUDGED)
    if not (folder / run.name / "run.json").exists():
        run.capture(folder)
    elif not mark.exists() or mark.read_text(encoding="utf-8") != judges:
        run.judge_again(folder)
    mark.write_text(judges, encoding="utf-8")
    judged = run.judged(folder)
    return WorldRun(
        world=world,
        numerics=WORLDS[world],
        seed=run.seed,
        depth=run.depth,
        judgements=sum(map(len, judged.values())),
        red=red(judged),
        seconds=round(run.seconds(folder)),
    )


def _row(run: WorldRun) -> dict[str, object]:
    said = {**asdict(run), "red": "; ".join(run.red) or "none"}
    return {"table": f"Whole suites, {run.depth} depth", "form": f"{run.world} {run.seed}", **said}


def main() -> int:
    """Make the runs that are missing and print what all came to."""
    options = _options()
    wrong = 0
    for seed in options.seeds:
        for world in options.worlds:
            run, begun = suite_run(world, seed, options.depth), time.monotonic()
            if options.anew:
                shutil.rmtree(options.folder / run.name, ignore_errors=True)
            made = _world_run(run, world, options.folder)
            print(json.dumps(asdict(made), indent=1), flush=True)
            wrong += bool(made.red)
            if options.write:
                results.write("healthy", [_row(made)], command="python -m benchmarks.healthy", seconds=time.monotonic() - begun)
    return int(bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=_worlds, default=tuple(WORLDS), help="with commas between them (default: all)")
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))), default=(1,), help="from 1 (default: 1)")
    parser.add_argument("--depth", choices=("smoke", "standard", "deep"), default="standard")
    parser.add_argument("--folder", type=Path, default=ROOT / ".specdec" / "healthy", help="of what is captured")
    parser.add_argument("--anew", action="store_true", help="capture again what was captured")
    parser.add_argument("--write", action="store_true", help="keep the table")
    return parser.parse_args()


def _worlds(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in WORLDS]
    if unknown:
        msg = f"no such world: {', '.join(unknown)} (known: {', '.join(WORLDS)})"
        raise argparse.ArgumentTypeError(msg)
    return names


if __name__ == "__main__":
    sys.exit(main())
