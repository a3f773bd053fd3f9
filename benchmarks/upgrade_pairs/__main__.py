"""Size and power of the comparison of baselines: ``python -m benchmarks.upgrade_pairs [size|power|capture|captured …] [--write]``.

``size`` compares simulated healthy runs of two numerics, and of one twice. Truth is the planted noise: answers changed where the new run is
more than twice as noisy as the old one, and then by numerics alone. ``power`` compares a healthy run with one of planted weights; the
printed upper limit has to cover the planted shift in 95 % of pairs. In rows "of one boot" the baseline is booted once and
is its own control, as at smoke depth. ``capture`` runs two suites on the reference engine in every form that
the folder does not hold, and ``captured`` compares every two runs that it holds, by the whole headline.

Exit 1 where a healthy pair is called broken, or changed otherwise than by numerics, or a limit covers too seldom.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.upgrade_pairs.captured import capture, compare_pairs
from benchmarks.upgrade_pairs.simulated import HEALTHY, PLANTED, is_noisier, make_record
from benchmarks.worlds.numerics import WORLDS
from pytest_specdec.judge.baseline_change import BaselineRelation, ChangeKind, compare
from pytest_specdec.model.workload import Depth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.baseline_change import BaselineChange

_BOOTS = ((False, HEALTHY), (True, ("exact", "g.03", "boot.1", "tok.03", "bf16.03")))
"""Pairs: whether each run has one boot of its baseline alone, and the worlds of the healthy runs that are compared."""
_OLD = ("exact", "bf16.03")
"""Worlds that weights are planted in."""
_COVERED = 0.95
_WRONG = ("SPECULATION BROKE", "BOTH CHANGED", "WRONG IN THE NEW RUN")


def main() -> int:
    """Measure, print, and write with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upgrade_pairs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["size", "power", "capture", "captured", []])
    parser.add_argument("--runs", type=int, default=12, help="of each world")
    parser.add_argument("--depth", type=Depth, choices=(Depth.SMOKE, Depth.STANDARD), default=Depth.SMOKE)
    parser.add_argument("--folder", type=Path, default=Path(".specdec/upgrade-pairs"), help="of what is captured")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    began_s, rows = time.monotonic(), []
    for row in _measure(options):
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    if options.write:
        results.write("upgrade_pairs", rows, command="python -m benchmarks.upgrade_pairs --write", seconds=time.monotonic() - began_s)
    return int(not all(row["right"] for row in rows))


def _measure(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    what = options.what or ("size", "power", "capture", "captured")
    if "size" in what:
        yield from _size(options.depth, options.runs)
    if "power" in what:
        yield from _power(options.depth, options.runs)
    if "capture" in what:
        for form in capture(options.folder):
            sys.stderr.write(f"captured: {form}\n")
    if "captured" in what:
        yield from _compare_captured(options.folder)


def _size(depth: Depth, runs: int) -> Iterator[dict[str, object]]:
    """Yield a row for each world that healthy runs are upgraded to, from itself and from every other one."""
    for one_boot, worlds in _BOOTS:
        records = {world: [make_record(world, number, depth, one_boot=one_boot) for number in range(runs)] for world in worlds}
        form = _describe_form(depth, one_boot=one_boot)
        for new in worlds:
            same = [compare(one, other) for one, other in combinations(records[new], 2)]
            yield _healthy_row(f"{new} -> {new}, {form}", [(change, False) for change in same])
            changes = [
                (compare(records[old][number], records[new][number]), is_noisier(WORLDS[old], WORLDS[new]))
                for old, number in product(worlds, range(runs))
                if old != new
            ]
            yield _healthy_row(f"others -> {new}, {form}", changes)


def _describe_form(depth: Depth, *, one_boot: bool) -> str:
    return f"{depth} of one boot" if one_boot else str(depth)


def _healthy_row(form: str, changes: Sequence[tuple[BaselineChange, bool | None]]) -> dict[str, object]:
    """Return what healthy pairs came to, each with whether it has to be a change of numerics; None where it may be."""
    relations = Counter(change.relation for change, _ in changes)
    kinds = [kind for change, _ in changes for kind in change.kinds if kind is not ChangeKind.NUMERICS]
    invented = sum(change.relation is BaselineRelation.CHANGED and is_change is False for change, is_change in changes)
    missed = sum(change.relation is BaselineRelation.SAME and is_change is True for change, is_change in changes)
    return {
        "table": "Healthy pairs, simulated",
        "form": form,
        "pairs": len(changes),
        **{relation.value: relations[relation] for relation in BaselineRelation},
        "of other kinds": "; ".join(f"{count} {kind.value}" for kind, count in Counter(kinds).items()) or "none",
        "changed against the truth": invented,
        "noisier and not told": missed,
        "right": not (kinds or invented),
    }


def _power(depth: Depth, runs: int) -> Iterator[dict[str, object]]:
    """Yield a row for each world and planted change: how it is called, and how often the printed limit covers it."""
    for (one_boot, _), world in product(_BOOTS, _OLD):
        old = [make_record(world, number, depth, one_boot=one_boot) for number in range(runs)]
        for name, planted in PLANTED.items():
            new = (make_record(world, number, depth, planted=planted, one_boot=one_boot) for number in range(runs))
            form = f"{world}, {name}, {_describe_form(depth, one_boot=one_boot)}"
            yield _planted_row(form, planted.title, planted.nats, list(map(compare, old, new)))


def _planted_row(form: str, title: str, nats: float | None, changes: Sequence[BaselineChange]) -> dict[str, object]:
    relations = Counter(change.relation for change in changes)
    kinds = Counter(kind.value for change in changes for kind in change.kinds)
    shifts = [change.shift for change in changes if change.shift is not None]
    covered = sum(shift.high >= (nats or 0.0) for shift in shifts)
    return {
        "table": "Planted weights, simulated",
        "form": form,
        "planted": title,
        "pairs": len(changes),
        **{relation.value: relations[relation] for relation in BaselineRelation},
        "kinds": "; ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
        "nats per logit": f"{median(shift.nats for shift in shifts):.3g}" if shifts else "",
        "limit covers": f"{covered} of {len(shifts)}" if nats else "",
        "right": covered >= _COVERED * len(shifts),
    }


def _compare_captured(folder: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each captured run as the new one, upgraded to from every other one."""
    pairs = list(compare_pairs(folder))
    for new in dict.fromkeys(pair.new for pair in pairs):
        of_new = [pair for pair in pairs if pair.new == new]
        wrong = [pair for pair in of_new if pair.headline.startswith(_WRONG)]
        kinds = [kind for pair in of_new if pair.change for kind in pair.change.kinds if kind is not ChangeKind.NUMERICS]
        relations = Counter(pair.change.relation for pair in of_new if pair.change)
        yield {
            "table": "Healthy pairs, captured",
            "form": f"others -> {new}",
            "pairs": len(of_new),
            **{relation.value: relations[relation] for relation in BaselineRelation},
            "of other kinds": "; ".join(f"{count} {kind.value}" for kind, count in Counter(kinds).items()) or "none",
            "broken or both": len(wrong),
            "right": not (wrong or kinds),
        }


if __name__ == "__main__":
    sys.exit(main())
