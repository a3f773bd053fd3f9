"""What grammar masks find that nothing else does: ``python -m benchmarks.masks [--world NAME] [--write]``.

Every fault of the reference engine that should turn the family structured red is captured by the suites of that family alone, several
faults over one baseline. Each run is judged twice, with its grammar masks and after their removal. ``--write`` adds the table to
``benchmarks/results/masks.json`` and ``.md``; captured runs stay below ``.specdec/masks`` and are judged again.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.healthy import WORLDS
from benchmarks.sensitivity.batches import MOST, batches, every
from benchmarks.sensitivity.suite_run import SuiteRun, planted
from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.sensitivity.suite_run import Judged

_MASKS = "grammar_masks"
"""Their folder in a run."""


def main() -> None:
    """Capture, judge with and without masks, and print a row for each fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=sorted(WORLDS), default="exact", help="numerics of all servers, by name")
    parser.add_argument("--faults", default="", help="ids with commas between them (default: all that the family should find)")
    parser.add_argument("--write", action="store_true", help="write the table and the data")
    options = parser.parse_args()
    began_s = time.monotonic()
    faults = options.faults.split(",") if options.faults else [fault for fault in every() if _is_structured(fault)]
    rows = [row for batch in batches(faults, MOST) for row in _judge_both(batch, options.world)]
    only = [row["fault"] for row in rows if row["red with masks"] == "yes" and row["red without"] == "no"]
    print(f"{len(rows)} faults, {len(only)} red by masks alone: {', '.join(map(str, only)) or 'none'}")
    if options.write:
        results.write("masks", rows, command="python -m benchmarks.masks --write", seconds=time.monotonic() - began_s)


def _is_structured(fault: str) -> bool:
    return Family.STRUCTURED in FAULTS[fault].expected[Place.REFERENCE].red


def _judge_both(batch: tuple[str, ...], world: str) -> Iterator[dict[str, object]]:
    """Yield a row for each fault of one run."""
    folder = Path(".specdec/masks") / world
    args = {"numerics": WORLDS[world]} if WORLDS[world] else {}
    run = SuiteRun(
        name=batch[0],
        variants={fault: planted(FAULTS[fault]) for fault in batch},
        families=(Family.STRUCTURED.value,),
        engine=args,
        reasons=FAULTS[batch[0]].reasons,
    )
    if not (folder / run.name / "run.json").exists():
        run.capture(folder)
    run.judge_again(folder)
    with_masks = run.judged(folder)
    hidden = folder / run.name / _MASKS
    aside = folder / f"{run.name}-{_MASKS}"
    shutil.rmtree(aside, ignore_errors=True)
    if hidden.exists():
        hidden.rename(aside)
    try:
        run.judge_again(folder)
        without = run.judged(folder)
    finally:
        if aside.exists():
            aside.rename(hidden)
    for fault in batch:
        row = {
            "table": f"Faults of structured output, judged with and without grammar masks, numerics {world}",
            "fault": fault,
            "red with masks": _yes(with_masks[fault]),
            "red without": _yes(without[fault]),
            "by name with masks": _names(with_masks[fault]),
            "by name without": _names(without[fault]),
        }
        print(" | ".join(str(value) for key, value in row.items() if key != "table"), flush=True)
        yield row


def _yes(judgements: tuple[Judged, ...]) -> str:
    return "yes" if any(judged.red for judged in judgements) else "no"


def _names(judgements: tuple[Judged, ...]) -> str:
    return "; ".join(dict.fromkeys(judged.name or judged.headline for judged in judgements if judged.red)) or "-"


if __name__ == "__main__":
    main()
