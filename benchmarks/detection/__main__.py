"""Detection of planted sampling faults: ``python -m benchmarks.detection [--quick] [--http]``.

Prints and stores, per fault and kind of draft: how far the distribution moves, the bound, tokens to an alarm with the draft's distribution,
with the surrogate and without, the names; then promised power against observed. Exit 1 when a target is missed. The full form writes each
cell as it is done to ``benchmarks/results/detection.json`` and goes on where it stopped; ``--quick`` is smaller, says so, writes to
``.specdec/detection``, and exits by the overall ratio and the promises only: the rest wants more runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import bank as banks
from benchmarks.detection import faults, spot, tables, targets
from benchmarks.detection.alarms import first_alarms
from benchmarks.detection.cells import MODES, Scale, Table, drawn, measured, mode_name
from benchmarks.detection.promises import SIZES, promised
from benchmarks.detection.store import Store, digest
from benchmarks.simulation import RIGHT
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.bank import Bank

ALPHA = FAMILIES[Family.SAMPLING].alpha(1)
"""The judge's own level for one workload under one variant."""
FULL = Scale(positions=1024, runs=200, named=60, tokens=4096, most=16_384, farthest=65_536, alpha=ALPHA)
QUICK = Scale(positions=192, runs=20, named=10, tokens=2048, most=2048, farthest=2048, alpha=ALPHA)
QUICK_SIZES = (1024,)


def main() -> int:
    """Run the command."""
    asked = _options()
    scale = QUICK if asked.quick else FULL
    root = Path(__file__).parents[2]
    drawn_from = _banks(asked.bank, scale)
    settings = {**dataclasses.asdict(scale), "sources": digest(root), "bank": _fingerprint(drawn_from)}
    store = Store(asked.out or (root / ".specdec/detection" if asked.quick else root / "benchmarks/results") / "detection.json", settings)
    store.closed = asked.stored
    if asked.quick:
        print(f"quick: {scale.runs} runs a fault instead of {FULL.runs}, {scale.positions} positions instead of {FULL.positions}")
    parts = _parts(store, drawn_from, scale, quick=asked.quick)
    parts["spots"] = _spots(store) if asked.http else store.results.get("http", [])
    found = targets.judged(parts["cells"], parts["promises"])
    if asked.stored:
        whole = sum(len(one.kinds) for one in faults.ALL)
        print(f"{len(parts['cells'])} of {whole} faults and kinds of drafts are stored")
    store.content["targets"] = [dataclasses.asdict(one) for one in found]
    store.write()
    written = tables.page(settings, store.content["environment"], parts, found)
    store.path.with_suffix(".md").write_text(written)
    print(written)
    return int(not all(one.met or (asked.quick and one.scarce) for one in found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small enough for every change")
    parser.add_argument("--stored", action="store_true", help="measure nothing, tell what is stored: of a run that was stopped a part")
    parser.add_argument("--http", action="store_true", help="plant three faults in a real server as well")
    parser.add_argument("--bank", type=Path, default=banks.FOLDER / banks.FILE, help="a file of benchmarks.bank; made when missing")
    parser.add_argument("--out", type=Path, help="where the figures are kept, a .json file")
    return parser.parse_args()


def _banks(path: Path, scale: Scale) -> dict[str, Bank]:
    """Return some positions of the bank with either kind of draft."""
    stored = path if path.exists() else banks.capture(path.parent, 20_160)
    whole = {kind: banks.load(stored, kind) for kind in (faults.MODEL, faults.GREEDY)}
    rows = scale.random("positions").choice(len(whole[faults.MODEL]), scale.positions, replace=False)
    return {
        kind: dataclasses.replace(bank, ids=bank.ids[rows], p=bank.p[rows], q=bank.q[rows], drafted=bank.drafted[rows])
        for kind, bank in whole.items()
    }


def _fingerprint(drawn_from: dict[str, Bank]) -> str:
    bank = drawn_from[faults.MODEL]
    entropy = float(-(bank.p * np.log(bank.p)).sum(axis=1).mean())
    return f"{entropy:.6f} nats, overlap {float(np.minimum(bank.p, bank.q).sum(axis=1).mean()):.6f}"


def _told(store: Store, key: str, make: Callable[[], object]) -> object:
    """Return the result of ``key``; of a closed store None where there is none."""
    if store.closed:
        return store.results.get(key)
    began = time.perf_counter()
    result, new = store.made(key, make)
    print(f"  {key}{'' if new else ' (stored)'}  {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return result


def _parts(store: Store, drawn_from: dict[str, Bank], scale: Scale, *, quick: bool) -> dict[str, list[targets.Cell]]:
    """Return all rows; the grids of one way of asking are let go of before the next."""
    parts: dict[str, list[targets.Cell]] = {"cells": [], "healthy": [], "promises": []}
    for asked in dict.fromkeys(one.asked for one in faults.ALL):
        table = Table(banks=drawn_from, asked=asked, k=scale.k)
        wanted = [(one, kind) for one in faults.ALL if one.asked == asked for kind in one.kinds]
        parts["cells"] += [_told(store, f"{one.id} | {kind}", partial(measured, table, one, kind, scale)) for one, kind in wanted]
        for kind in drawn_from:
            key = f"healthy | {asked} | {kind}"
            parts["healthy"].append(_told(store, key, lambda kind=kind, table=table: _sound(table, kind, scale)))
        if asked != faults.PLAIN:
            continue
        for kind in drawn_from:
            for tokens in QUICK_SIZES if quick else SIZES:
                key = f"promise | {kind} | {tokens}"
                make = partial(promised, table, kind, tokens, scale)
                parts["promises"] += _told(store, key, make) or []
    return {name: [row for row in rows if row is not None] for name, rows in parts.items()}


def _sound(table: Table, kind: str, scale: Scale) -> dict[str, object]:
    runs = drawn(table.bank(kind), RIGHT, scale, scale.random("healthy", kind), tokens=scale.tokens, runs=scale.runs)
    alarms = {
        mode_name(knows, windows=windows): int(
            np.isfinite(first_alarms(runs, table.grid(kind, knows, windows=windows), scale.level)[0]).sum()
        )
        for knows, windows in MODES
    }
    asked = ", ".join(f"{name} {value:g}" for name, value in dataclasses.asdict(table.asked).items())
    return {"asked": asked, "kind": kind, "runs": scale.runs, "tokens": scale.tokens, "alarms": alarms}


def _spots(store: Store) -> Sequence[targets.Cell]:
    return _told(store, "http", lambda: list(spot.spot()))


if __name__ == "__main__":
    sys.exit(main())
