"""Size and power of the sampling judge: ``python -m benchmarks.size [--bank FILE] [--power]``.

Healthy runs are drawn by the true process of speculation (draft, accept or recover, bonus) from a bank of a real engine's laws, and the
panel's wealth is looked at after every token. The share of runs that ever reach ``1/alpha`` must not exceed alpha: exit code 1 when the
exact (Clopper-Pearson) 99 % interval lies above it. ``--power`` prints for each fault how many tokens the alarm took.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import bank as banks
from pytest_specdec.stats.betting import mixture
from pytest_specdec.stats.panel import bettors
from pytest_specdec.stats.rates import limits
from pytest_specdec.stats.simulation import FAULTS, RIGHT, Rules, simulate, zipf

if TYPE_CHECKING:
    from pytest_specdec.stats.laws import Floats
    from pytest_specdec.stats.simulation import Bank

KINDS = ("model", "greedy", "ngram")
ALPHAS = (0.05, 0.01, 0.001)
SHARE = 6.25e-5
"""Of one sampling workload under one variant: the level at which power is told."""
K = 3
ANSWER_TOKENS = 64
AT_ONCE = 16_384
"""Tokens judged in one go."""


def wealths(bank: Bank, rules: Rules, random: np.random.Generator, *, runs: int, tokens: int, windows: bool) -> Floats:
    """Return the log wealth of every run after every token, [runs, tokens]."""
    at_once = max(1, AT_ONCE // tokens)
    parts = []
    for first in range(0, runs, at_once):
        count = min(at_once, runs - first)
        observed = simulate(bank, rules, random, runs=count, answers=tokens // ANSWER_TOKENS, tokens=ANSWER_TOKENS, k=K, windows=windows)
        parts.append(mixture(bettors(observed), runs=count))
    return np.concatenate(parts)


def size(drawn: dict[str, Bank], random: np.random.Generator, *, runs: int, tokens: int) -> bool:
    """Print the share of healthy runs that alarm; return whether every lower limit is at most its alpha."""
    peaks = []
    print(f"size: {runs} healthy runs of {tokens} tokens, looked at after every token, k = {K}")
    cells = [(kind, windows) for kind in drawn for windows in (True, False)]
    for kind, windows in cells:
        begun = time.perf_counter()
        peak = wealths(drawn[kind], RIGHT, random, runs=-(-runs // len(cells)), tokens=tokens, windows=windows).max(axis=1)
        peaks.append(peak)
        shares = ", ".join(f"{np.mean(peak >= -np.log(alpha)):.4f} at {alpha:g}" for alpha in ALPHAS)
        said = "windows known" if windows else "windows hidden"
        print(f"  {kind:<7}{said:<16}{len(peak):>5} runs: {shares}   ({time.perf_counter() - begun:.0f} s)", flush=True)
    together = np.concatenate(peaks)
    kept = True
    for alpha in ALPHAS:
        alarms = int((together >= -np.log(alpha)).sum())
        within = limits(alarms, len(together), 0.99)
        kept &= within.low <= alpha
        verdict = "kept" if within.low <= alpha else "EXCEEDED"
        share = f"{alarms / len(together):.5f} [{within.low:.5f}, {within.high:.5f}]"
        print(f"  alpha {alpha:<6g} {alarms:>4} of {len(together)} runs alarm: {share}  {verdict}")
    return kept


def power(drawn: dict[str, Bank], random: np.random.Generator, *, runs: int, tokens: int) -> None:
    """Print for every fault and draft how many tokens the alarm took."""
    print(f"\npower: tokens to an alarm at {SHARE:g}, median / 90 % of {runs} runs of {tokens} tokens; - is more than that")
    print("| fault | " + " | ".join(drawn) + " |\n|---|" + "---|" * len(drawn))
    for name, rules in FAULTS.items():
        cells = [_cell(wealths(one, rules, random, runs=runs, tokens=tokens, windows=True)) for one in drawn.values()]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _cell(wealth: Floats) -> str:
    reached = wealth >= -np.log(SHARE)
    first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)
    middle, late = np.quantile(first, [0.5, 0.9], method="higher")
    return " / ".join(f"{value:.0f}" if np.isfinite(value) else "-" for value in (middle, late))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bank", type=Path, default=banks.FOLDER / banks.FILE, help="a file of benchmarks.bank; made when missing")
    parser.add_argument("--synthetic", action="store_true", help="use made-up laws instead of a bank")
    parser.add_argument("--runs", type=int, default=4200)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--power", action="store_true", help="print the tokens to an alarm by fault as well")
    asked = parser.parse_args()
    random = np.random.default_rng(asked.seed)
    if asked.synthetic:
        drawn = {kind: zipf(random, positions=20_000, vocabulary=512, atoms=20, certain=kind != "model") for kind in ("model", "ngram")}
    else:
        path = asked.bank if asked.bank.exists() else banks.capture(asked.bank.parent, 20_160)
        drawn = {kind: banks.load(path, kind) for kind in KINDS}
    print(f"bank: {', '.join(f'{kind} {len(one):,}' for kind, one in drawn.items())} positions")
    kept = size(drawn, random, runs=asked.runs, tokens=asked.tokens)
    if asked.power:
        power(drawn, random, runs=40, tokens=8192)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
