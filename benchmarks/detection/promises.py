"""Promises: whether a fault shows as often as the sensitivity line of a passed run says it would have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.detection.alarms import first_alarms
from benchmarks.detection.cells import Table, drawn
from benchmarks.detection.grid import EXACT
from benchmarks.simulation import RIGHT, Rules, observe
from pytest_specdec.judge.sampling.sensitivity import Sensitivity, estimate_sensitivity
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.fault_models import leaky, lenient_ratio, temperature_tilt, the_target
from pytest_specdec.stats.proportions import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bank import Bank
    from benchmarks.detection.alarms import Runs
    from benchmarks.detection.cells import Scale
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["CONFIDENCE", "SIZES", "kept", "plantable", "promised"]

SIZES = (512, 1024, 2048)
"""Tokens of a run."""
CONFIDENCE = 0.99
"""Of the exact interval of the observed rate."""
LEAST = 0.05
"""Promises below are not worth planting."""


def plantable(made: Sensitivity) -> Iterator[tuple[str, float, Rules]]:
    """Yield what is promised: the fault, the probability and the rules that plant it."""
    leaks = {size: chance for size, chance in made.leaks.items() if chance >= LEAST}
    smallest = made.smallest_leak
    wanted = {0.2, 1.0, smallest or 1.0, next((size for size, chance in leaks.items() if chance >= 0.5), 1.0)}
    for size in sorted(wanted & set(leaks)):
        yield f"acceptance leak of {size:.0%}", leaks[size], Rules(accept=leaky(size))
    planted = {
        "resample from p": Rules(replacement=the_target),
        "lenient acceptance 1.49 p/q": Rules(accept=lenient_ratio(0.67)),
        "lenient acceptance 1.25 p/q": Rules(accept=lenient_ratio(0.8)),
    }
    for name, rules in planted.items():
        if made.faults.get(name, 0.0) >= LEAST:
            yield name, made.faults[name], rules
    for power in (0.8, 1.25, 1.07):
        if made.tilts[power] >= LEAST:
            yield f"temperature {1 / power:.3g} times the requested one", made.tilts[power], Rules(target=temperature_tilt(power))


def promised(table: Table, kind: str, tokens: int, scale: Scale) -> list[dict[str, object]]:
    """Return promise and observation for every fault that one healthy run of so many tokens speaks of.

    The run's own sentence is taken; then every fault is planted in ``scale.runs`` runs of the same size over its positions.
    """
    bank = table.bank(kind)
    run = drawn(bank, RIGHT, scale, scale.random("promise", kind, str(tokens)), tokens=tokens, runs=1)
    observed: Observed = observe(bank, run.trace, k=scale.k, windows=True)
    made = estimate_sensitivity(observed, wealth_process(bettors(observed)), scale.level, "")
    rows = []
    for fault, chance, rules in plantable(made):
        random = scale.random("planted", kind, str(tokens), fault)
        faulty = _planted(bank, rules, scale, random, run)
        alarms, _wealth = first_alarms(faulty, table.grid(kind, EXACT, windows=True), scale.level)
        hits = int(np.isfinite(alarms).sum())
        within = limits(hits, scale.runs, CONFIDENCE)
        rows.append({
            "kind": kind,
            "tokens": tokens,
            "fault": fault,
            "promised": chance,
            "observed": hits / scale.runs,
            "runs": scale.runs,
            "low": within.low,
            "high": within.high,
        })  # fmt: skip
    return rows


def _planted(bank: Bank, rules: Rules, scale: Scale, random: np.random.Generator, run: Runs) -> Runs:
    """Return runs of a faulty server like ``run``, whose positions are drawn from those that ``run`` went through."""
    rows = run.trace.at.ravel()
    visited = replace(bank, ids=bank.ids[rows], p=bank.p[rows], q=bank.q[rows], drafted=bank.drafted[rows])
    faulty = drawn(visited, rules, scale, random, tokens=run.tokens, runs=scale.runs)
    return replace(faulty, bank=bank, trace=replace(faulty.trace, at=rows[faulty.trace.at]))


def kept(row: dict[str, object]) -> bool:
    """Whether a promise lies within the interval of what was observed, or below it."""
    return float(row["promised"]) <= float(row["high"])
