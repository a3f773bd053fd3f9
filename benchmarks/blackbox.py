"""The black-box mode of the sampling judge: ``python -m benchmarks.blackbox [--quick] [--write]``.

Size: how often pairs of healthy servers alarm, two arms and three, at .05, .01 and the level at which a run judges. Power: how often a
server with a fault alarms at that level, by tokens of either server. Promises: how often a planted fault of the promised share shows.
Texts follow from their prompt and all tokens before; laws are those of a bank of benchmarks.bank, of a drafter that draws its tokens
(``model``) and of one that takes its best (``greedy``). Exit code 1 where a size or a promise is not kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import bank as banks
from benchmarks import results
from benchmarks.detection.two_sample import texts
from pytest_specdec.stats import planted
from pytest_specdec.stats.alternatives import greedy
from pytest_specdec.stats.planted import Draft
from pytest_specdec.stats.rates import limits
from pytest_specdec.stats.simulation import FAULTS, RIGHT, Rules, zipf
from pytest_specdec.stats.two_sample import Blocks, classifier, compared, found

if TYPE_CHECKING:
    from pytest_specdec.stats.bank import Bank
    from pytest_specdec.stats.two_sample import Found

KINDS = ("model", "greedy")
SHARE = 6.25e-5
"""Of one sampling workload under one variant: the level at which a run judges."""
ALPHAS = (0.05, 0.01, SHARE)
PLANTED = {
    "greedy under temperature": Rules(target=greedy(1.0)),
    **{name: FAULTS[name] for name in ("accept-all", "residual argmax", "resample from p", "acceptance leak of 20%")},
}
PROMPTS, K = 28, 3
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much is drawn."""

    pairs: int
    """Healthy ones, for each kind and number of arms."""
    power: dict[int, int]
    """Servers by tokens of each."""
    plants: int


DEPTHS = {
    False: Depth(pairs=500, power={3584: 30, 10_752: 12}, plants=60),
    True: Depth(pairs=40, power={3584: 4}, plants=10),
}


@dataclass(slots=True, kw_only=True)
class Report:
    """Rows as they come, and whether all of them hold."""

    rows: list[dict[str, object]] = field(default_factory=list)
    kept: bool = True

    def add(self, table: str, *, kept: bool = True, **row: object) -> None:
        """Take a row and print it."""
        self.rows.append({"table": table, **row, "kept": kept})
        self.kept &= kept
        print(f"  {table:<9} {', '.join(f'{name} {value}' for name, value in row.items())}  {'kept' if kept else 'MISSED'}", flush=True)


def blocks(bank: Bank, rules: Rules, random: np.random.Generator, *, tokens: int, arms: int = 2) -> Blocks:
    """Return answers of a server with ``rules`` and of healthy ones, position 2 and on."""
    said = [texts(bank, one, random, tokens=tokens, k=K, prompts=PROMPTS) for one in (rules, *[RIGHT] * (arms - 1))]
    units = np.stack(said, axis=2)[..., 1:]
    asked = np.repeat(np.arange(PROMPTS), units.shape[1])
    return Blocks(units=units.reshape(-1, arms, units.shape[-1]), prompts=asked)


def alarmed(tests: tuple[Found, ...], alpha: float) -> bool:
    """Say whether any of ``tests`` alarms when they share ``alpha``."""
    return any(one.p_value <= alpha / len(tests) for one in tests)


def size(bank: Bank, kind: str, random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Tell how often healthy pairs alarm."""
    tokens = min(depth.power)
    for arms in (2, 3):
        seen = [compared(blocks(bank, RIGHT, random, tokens=tokens, arms=arms), SHARE, random) for _ in range(depth.pairs)]
        for alpha in ALPHAS:
            alarms = sum(alarmed(tests, alpha) for tests in seen)
            within = limits(alarms, len(seen), 0.99)
            told = {"pairs": len(seen), "tokens": tokens, "alpha": alpha, "alarms": alarms}
            span = f"[{within.low:.4f}, {within.high:.4f}]"
            report.add("size", kept=within.low <= alpha, form=f"{kind}, {arms} arms", **told, interval_99=span)


def power(bank: Bank, kind: str, random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Tell how often faults alarm at the level of a run."""
    for name, rules in PLANTED.items():
        for tokens, servers in depth.power.items():
            seen = [compared(blocks(bank, rules, random, tokens=tokens), SHARE, random) for _ in range(servers)]
            by = [sum(tests[which].p_value <= SHARE / 2 for tests in seen) for which in (0, 1)]
            alarms = sum(alarmed(tests, SHARE) for tests in seen)
            report.add(
                "power", form=kind, fault=name, tokens=tokens, servers=servers, alarms=alarms, by_classifier=by[0], by_discrepancy=by[1]
            )


def promises(bank: Bank, kind: str, random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Tell how often a planted fault shows, of the share promised and of half of it."""
    for tokens in sorted(depth.power)[:2]:
        healthy = blocks(bank, RIGHT, random, tokens=tokens)
        share, _ = planted.smallest(healthy, SHARE / 2, Draft.FOLLOWER, seed=SEED)
        for part in () if share is None else (share, share / 2):
            hits = sum(
                found("", classifier(planted.planted(healthy, Draft.FOLLOWER, part, random)), SHARE / 2, random).alarm
                for _ in range(depth.plants)
            )
            within = limits(hits, depth.plants, 0.99)
            promised = planted.CONFIDENCE if part == share else None
            kept = promised is None or within.high >= promised
            report.add(
                "promise", kept=kept, form=kind, tokens=tokens, share=part, promised=promised or "-", shown=f"{hits} of {depth.plants}"
            )


def _drawn(asked: argparse.Namespace) -> dict[str, Bank]:
    if asked.synthetic:
        random = np.random.default_rng(asked.seed)
        return {kind: zipf(random, positions=20_000, vocabulary=512, atoms=20, certain=kind == "greedy") for kind in KINDS}
    path = asked.bank if asked.bank.exists() else banks.capture(asked.bank.parent, 20_160)
    return {kind: banks.load(path, kind) for kind in KINDS}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few servers: that it works, not how well")
    parser.add_argument("--write", action="store_true", help=f"write {results.FOLDER}/blackbox.json and blackbox.md")
    parser.add_argument("--bank", type=Path, default=banks.FOLDER / banks.FILE, help="a file of benchmarks.bank; made when missing")
    parser.add_argument("--synthetic", action="store_true", help="use made-up laws instead of a bank")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    """Run the command."""
    asked, begun, report = _options(), time.perf_counter(), Report()
    for kind, bank in _drawn(asked).items():
        for table in (size, power, promises):
            # A generator for each, so that one alone is the same as among the others.
            table(bank, kind, np.random.default_rng([asked.seed, *f"{kind} {table.__name__}".encode()]), DEPTHS[asked.quick], report)
    if asked.write:
        results.write("blackbox", report.rows, command="python -m benchmarks.blackbox --write", seconds=time.perf_counter() - begun)
    return 0 if report.kept else 1


if __name__ == "__main__":
    sys.exit(main())
