"""Detection of planted sampling faults: ``python -m benchmarks.detection [--quick] [--http]``.

Prints and stores, per fault and kind of draft: how far the distribution moves, the bound, tokens to an alarm with the draft's distribution,
with the surrogate and without, the names; then promised power against observed. Exit 1 when a target is missed. The full form writes each
cell as it is done to ``benchmarks/results/detection.json`` and goes on where it stopped. ``--quick`` takes minutes, writes to
``.specdec/detection``, and exits by the overall ratio, the promises, and its agreement with the stored table (``agreement.py``).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import bank as banks
from benchmarks.detection import faults, tables, targets
from benchmarks.detection.agreement import agreement
from benchmarks.detection.alarms import first_alarms
from benchmarks.detection.cells import MODES, Scale, Table, drawn, measured, mode_name
from benchmarks.detection.promises import SIZES, promised
from benchmarks.detection.store import Store, digest
from benchmarks.simulation import RIGHT
from pytest_specdec.capture import planner, runner
from pytest_specdec.config import load
from pytest_specdec.files import captured as stored
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import sampling
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.bank import Bank
    from pytest_specdec.model.verdict import Verdict

ALPHA = FAMILIES[Family.SAMPLING].alpha(1)
"""The judge's own level for one workload under one variant."""
FULL = Scale(positions=1024, runs=200, named=60, tokens=4096, most=16_384, farthest=65_536, alpha=ALPHA)
QUICK = Scale(positions=1024, runs=20, named=10, tokens=2048, most=2048, farthest=2048, alpha=ALPHA, listed=True)
QUICK_SIZES = (1024,)
NEAREST = {"accept-all": "accept-all", "resample-from-p": "resample-from-p", "kv-off-by-one": "flattened-after-rejection"}
"""By fault of the reference engine: the nearest simulated one."""
REQUESTS = 72
CONFIG = """
engine: {{kind: reference, model: target, args: {{max-num-seqs: 32, max-model-len: 1024}}}}
variants:
  draft-k3:
    args:
      speculative-config: {{method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}}
      fault: {fault}
"""


def main() -> int:
    """Run the command."""
    options = _options()
    root = Path(__file__).parents[2]
    published = root / "benchmarks/results/detection.json"
    table = Store(published, {}, closed=True)
    scale = dataclasses.replace(QUICK, alpha=table.content["settings"].get("alpha", ALPHA)) if options.quick else FULL
    captured = _banks(options.bank, scale)
    settings = {**dataclasses.asdict(scale), "sources": digest(root), "bank": _fingerprint(captured)}
    store = Store(
        options.out or (root / ".specdec/detection/detection.json" if options.quick else published), settings, closed=options.stored
    )
    if options.quick:
        print(
            f"quick: {scale.runs} runs a fault of {scale.most:,} tokens at most, {FULL.runs} and {FULL.most:,} in the full form; ", end=""
        )
        print(f"alpha {scale.alpha:g}, as stored")
    parts = _parts(store, captured, scale, quick=options.quick)
    if options.http and not store.closed:
        store.add("http", list(_spots()))
    parts["spots"] = store.results.get("http", [])
    outcomes = targets.judged(parts["cells"], parts["promises"])
    if options.quick:
        outcomes += agreement(parts["cells"], table.cells, scale.most)
    if options.stored:
        whole = sum(len(one.kinds) for one in faults.ALL)
        print(f"{len(parts['cells'])} of {whole} faults and kinds of drafts are stored")
    store.content["targets"] = [dataclasses.asdict(one) for one in outcomes]
    store.write()
    written = tables.page(store.content["settings"], store.content["environment"], parts, outcomes)
    store.path.with_suffix(".md").write_text(written)
    print(written)
    return int(not all(one.met or (options.quick and one.scarce) for one in outcomes))


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


_MAKERS: dict[str, Callable[[], object]] = {}
"""The measurements of one way of asking, by key; forked processes inherit them with the grids."""


def _measured(key: str) -> tuple[str, object, float]:
    began = time.perf_counter()
    return key, _MAKERS[key](), time.perf_counter() - began


def _results(store: Store, table: Table, makers: dict[str, Callable[[], object]]) -> list[object]:
    """Return the stored results of ``makers`` in order; those that are missing are measured first, a process per core, and stored."""
    missing = {key: make for key, make in makers.items() if key not in store.results and not store.closed}
    if missing:
        table.fill()
        _MAKERS.clear()
        _MAKERS.update(missing)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            for done in as_completed([pool.submit(_measured, key) for key in missing]):
                key, result, took_s = done.result()
                store.add(key, result)
                print(f"  {len(store.results)}: {key}, {took_s:.0f} s", file=sys.stderr, flush=True)
    return [store.results[key] for key in makers if key in store.results]


def _parts(store: Store, drawn_from: dict[str, Bank], scale: Scale, *, quick: bool) -> dict[str, list[targets.Cell]]:
    """Return all rows; the grids of one way of asking are let go of before the next."""
    parts: dict[str, list[targets.Cell]] = {"cells": [], "healthy": [], "promises": []}
    for asked in dict.fromkeys(one.asked for one in faults.ALL):
        table = Table(banks=drawn_from, asked=asked, k=scale.k)
        cells = [(one, kind) for one in faults.ALL if one.asked == asked for kind in one.kinds]
        makers = {f"{one.id} | {kind}": partial(measured, table, one, kind, scale) for one, kind in cells}
        healthy = {f"healthy | {asked} | {kind}": partial(_sound, table, kind, scale) for kind in drawn_from}
        sizes = (QUICK_SIZES if quick else SIZES) if asked == faults.PLAIN else ()
        promises = {
            f"promise | {kind} | {tokens}": partial(promised, table, kind, tokens, scale) for kind in drawn_from for tokens in sizes
        }
        _results(store, table, promises | makers | healthy)
        parts["cells"] += _results(store, table, makers)
        parts["healthy"] += _results(store, table, healthy)
        parts["promises"] += [row for rows in _results(store, table, promises) for row in rows]
    return parts


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


def _spots() -> Iterator[dict[str, object]]:
    """Yield, fault by fault, after how many tokens the judge of a real capture alarmed and what it named."""
    for fault, simulated in NEAREST.items():
        with tempfile.TemporaryDirectory() as folder:
            verdict = _captured(Path(folder), fault)
        yield {
            "fault": fault,
            "simulated": simulated,
            "outcome": verdict.outcome.value,
            "named": verdict.names,
            "tokens": verdict.figures.get("tokens"),
            "alarm": verdict.figures.get("tokens_to_alarm"),
        }


def _captured(folder: Path, fault: str) -> Verdict:
    (folder / "pair.yaml").write_text(CONFIG.format(fault=fault))
    config = load.load(folder / "pair.yaml")
    workload = ALL.sampled(temperature=1.0, max_tokens=64, requests=REQUESTS, concurrency=32)
    plan = planner.make(config, [planner.SelectedWorkload(workload=workload, family=Family.SAMPLING)], Depth.SMOKE)
    directory = RunDirectory.create(folder / "run")
    status = runner.record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert not status.missing, status.missing
    return sampling.judge(stored.read(directory, plan, plan.judgements[0], ()))


if __name__ == "__main__":
    sys.exit(main())
