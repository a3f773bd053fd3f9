"""The sensitivity matrix: ``python -m benchmarks.sensitivity [--quick] [--faults a,b] [--seeds 1,2,3] [--depth standard] [--write]``.

Plants each fault of the reference engine in a server of its own and runs all suites against it, the timed test for faults of time alone,
several faults over one baseline, at the false-alarm shares of a config with two variants. A cell is a fault under one seed: the engine's
``--seed`` and an offset of the requests' seeds. Each finished cell is a file below ``.specdec/sensitivity``; it is made anew when the
fault, the suites or the engine change, and the same command resumes what was interrupted. When only judges change, runs that ``--keep``
left there are judged again. ``--own`` asks only the families that should find the fault, and nearly all where one of those judges whole
runs: a third of the time.

``--healthy N`` judges N healthy runs at smoke depth, ``--lawful`` the variations of the engine that are no faults, ``--world NAME`` all of
it where no number is exact (names as in ``benchmarks.healthy``). ``--write`` writes docs/sensitivity.md and
benchmarks/results/sensitivity.json, of a world both in benchmarks/results/; what stands there and is not shown now stays, each cell with
its date. Exit 1 when a cell is not caught by name, or anything else turned red.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.healthy import WORLDS
from benchmarks.sensitivity import batches, green, suite_run, tables
from benchmarks.sensitivity.cells import Found, Measured, Store, cell, judged_by
from benchmarks.sensitivity.suite_run import ROOT, SuiteRun, planted
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.sensitivity.cells import Cell
    from benchmarks.sensitivity.green import GreenRun
    from pytest_specdec.model.workload import JSON

PAGE = ROOT / "docs" / "sensitivity.md"
RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Make the cells that are missing, print all of them, and write them where that is asked for."""
    options = _options()
    cells = list(_cells(options))
    greens = list(_greens(options))
    print("\n".join([*(tables.lines(cells) if cells else []), *tables.green_lines(greens)]))
    if options.write:
        data = RESULTS / f"sensitivity{_suffix(options)}.json"
        cells, greens = (list(tables.with_earlier(mine, kept)) for mine, kept in zip((cells, greens), tables.earlier(data), strict=True))
        now = results.environment()
        page = data.with_name(f"{data.stem}.md") if options.world else PAGE
        page.write_text(tables.page(cells, greens, now, world=options.world), encoding="utf-8")
        data.write_text(json.dumps(tables.document(cells, greens, now), indent=1) + "\n", encoding="utf-8")
    wrong = [one for one in cells if one.found is not Found.CAUGHT or one.alarms]
    return int(bool(wrong) or any(run.alarms for run in greens))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few faults that together show every family red, one seed, smoke depth")
    parser.add_argument("--faults", type=_faults, help="ids with commas between them (default: all); empty for none")
    parser.add_argument("--seeds", type=_seeds, help="from 1, with commas between them (default: 1,2,3)")
    parser.add_argument("--depth", choices=("smoke", "standard", "deep"), help="(default: standard)")
    parser.add_argument("--batch", type=int, default=batches.MOST, help="faults that share a run at most")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="healthy runs at smoke depth")
    parser.add_argument("--lawful", action="store_true", help="variations of the engine that are no faults")
    parser.add_argument(
        "--world", choices=[name for name in WORLDS if WORLDS[name]], default="", help="numerics of all servers, by name (default: exact)"
    )
    parser.add_argument("--folder", type=Path, help="of the cells and the runs (default: .specdec/sensitivity, and one for each world)")
    parser.add_argument("--own", action="store_true", help="ask only the families that should find a fault, where none was asked yet")
    parser.add_argument("--keep", action="store_true", help="keep what was captured, some 10 MB a cell: other judges can judge it again")
    parser.add_argument("--read", action="store_true", help="capture nothing: show the cells that are there")
    parser.add_argument("--write", action="store_true", help="write the table and the data")
    options = parser.parse_args()
    options.faults = options.faults if options.faults is not None else batches.quick() if options.quick else batches.every()
    options.seeds = options.seeds or ((1,) if options.quick else (1, 2, 3))
    options.folder = options.folder or ROOT / ".specdec" / f"sensitivity{_suffix(options)}"
    options.depth = options.depth or ("smoke" if options.quick else "standard")
    return options


def _suffix(options: argparse.Namespace) -> str:
    return f"-{options.world}" if options.world else ""


def _faults(text: str) -> tuple[str, ...]:
    ids = tuple(filter(None, text.split(",")))
    unknown = [each for each in ids if each not in batches.every()]
    if unknown:
        msg = f"no fault of the reference engine: {', '.join(unknown)}"
        raise argparse.ArgumentTypeError(msg)
    return ids


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(map(int, text.split(",")))
    if min(seeds) < 1:
        msg = "seeds begin at 1"
        raise argparse.ArgumentTypeError(msg)
    return seeds


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells asked for, seed by seed; those that are missing are made batch by batch and kept at once."""
    store, scratch = Store(folder=options.folder / "cells"), options.folder / "runs"
    for seed in options.seeds:
        held = {fault: store.read(FAULTS[fault], seed, options.depth, own=options.own) for fault in options.faults}
        stale = [one for one in held.values() if one is not None and one.judges != judged_by()]
        kept = [one for one in stale if (scratch / one.run / "plan.json").exists()]
        missing = [fault for fault, one in held.items() if one is None or (one in stale and one not in kept)]
        if not options.read:
            _judge_again(kept, scratch, store, options.world)
            _make_missing(missing, seed, options, store)
        cells = (store.read(FAULTS[fault], seed, options.depth, own=True) for fault in options.faults)
        yield from (cell(one, FAULTS[one.fault].expected[Place.REFERENCE]) for one in cells if one is not None)


def _make_missing(missing: Sequence[str], seed: int, options: argparse.Namespace, store: Store) -> None:
    several, scratch = batches.batches(batches.alike(missing) if options.own else missing, options.batch), options.folder / "runs"
    for number, batch in enumerate(several, 1):
        print(f"seed {seed}, batch {number} of {len(several)}: {', '.join(batch)}", flush=True)
        asked = batches.own(batch) if options.own else ()
        run = _run(batch, seed, options.depth, families=asked, world=options.world)
        _make(run, scratch, store)
        if not options.keep:
            shutil.rmtree(scratch / run.name, ignore_errors=True)


def _run(faults: Sequence[str], seed: int, depth: str, *, families: Sequence[str] = (), name: str = "", world: str = "") -> SuiteRun:
    """Return the run of these faults by ``families``, by all where there are none; ``name`` where it has one."""
    variants = {fault: planted(FAULTS[fault]) for fault in faults}
    name = name or f"{depth}-{seed}-{faults[0]}-{len(faults)}{'-own' if families else ''}"
    known = tuple(family for family in suite_run.families() if not families or family in families)
    first = FAULTS[faults[0]]
    engine: Mapping[str, JSON] = {**first.engine, **({"numerics": WORLDS[world]} if world else {})}
    return SuiteRun(
        name=name,
        variants=variants,
        seed=seed,
        depth=depth,
        families=known,
        engine=engine,
        reasons=first.reasons,
        timed=first.timed,
        minutes=first.minutes,
    )


def _make(run: SuiteRun, scratch: Path, store: Store) -> None:
    """Run the suites against the faults of one batch and keep what they said; a batch without a verdict keeps nothing."""
    shutil.rmtree(scratch / run.name, ignore_errors=True)
    (scratch / f"{run.name}.seconds").unlink(missing_ok=True)
    run.capture(scratch)
    if not (scratch / run.name / "run.json").exists():
        print(f"no verdicts: see {scratch / run.name}.log", file=sys.stderr)
        return
    date, seconds = f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}", run.seconds(scratch) / len(run.variants)
    for fault, judged in run.judged(scratch).items():
        asked = () if run.families == suite_run.families() else run.families
        made = Measured(
            fault=fault, seed=run.seed, depth=run.depth, judged=judged, seconds=seconds, date=date, run=run.name, families=asked
        )
        store.write(FAULTS[fault], made)


def _judge_again(stale: Sequence[Measured], scratch: Path, store: Store, world: str) -> None:
    """Judge kept runs by the judges of now."""
    for name in dict.fromkeys(one.run for one in stale):
        several = {one.fault: one for one in stale if one.run == name}
        print(f"judging again: {name}", flush=True)
        run = _run([*several], stale[0].seed, stale[0].depth, families=next(iter(several.values())).families, name=name, world=world)
        run.judge_again(scratch)
        for fault, judged in run.judged(scratch).items():
            store.write(FAULTS[fault], replace(several[fault], judged=judged))


def _greens(options: argparse.Namespace) -> Iterator[GreenRun]:
    folder = options.folder / "green"
    wanted = [green.healthy(seed) for seed in range(1, options.healthy + 1)]
    if options.lawful:
        wanted += [run for seed in options.seeds for run in green.lawful(seed, options.depth)]
    for run in wanted:
        if not options.read or (folder / run.name / "run.json").exists():
            yield from green.runs(run, folder)


if __name__ == "__main__":
    sys.exit(main())
