"""Size of the sampling judge in every form of the distribution: ``python -m benchmarks.size [--form NAME] [--quick]``.

Healthy runs are drawn by the true process of speculation (draft, accept or recover, bonus) from a real engine's distributions, and the
panel's wealth is looked at after every token. The share of runs that ever reach ``1/alpha`` must not exceed alpha: exit code 1 when the
exact (Clopper-Pearson) 99 % interval lies above it, when logit noise or a nucleus's boundary raises an alarm, or when a biased scorer ends
in a failure. ``--form bank`` draws from a bank of 20 000 positions of the running engine, ``--power`` prints tokens to an alarm by fault.
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
from benchmarks import forms, results
from benchmarks.bank import zipf
from benchmarks.detection.faults import RULES
from benchmarks.forms import ANSWER_TOKENS, FORMS, Arm, K
from benchmarks.simulation import RIGHT, Rules, simulate
from pytest_specdec.stats import betting
from pytest_specdec.stats.betting import mixture, wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.control_difference import Earnings, counterpart, difference, least_score
from pytest_specdec.stats.logprob_noise import calibrate
from pytest_specdec.stats.proportions import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.bank import Bank
    from benchmarks.forms import Form, RecordedDistributions
    from pytest_specdec.stats.token_distribution import Floats
    from pytest_specdec.stats.verify_slots import Observed

KINDS = ("model", "greedy", "ngram")
ALPHAS = (0.05, 0.01, 0.001)
SHARE = 6.25e-5
"""Of one sampling workload under one variant: the level at which a run judges."""
POWER = (
    *("accept-all", "acceptance-leak-20", "acceptance-leak-5", "lenient", "inverted-ratio", "greedy-acceptance"),
    *("resample-from-p", "residual-argmax", "bonus-from-q", "greedy-bonus", "flattened-after-rejection"),
)
"""Faults whose tokens to an alarm ``--power`` prints."""
NOISES = (0.01, 0.03, 0.1)
TILTS = (1.01, 1.02, 1.03)
REPORTED_TOKENS, REPORTED_NOISE = 3072, 0.03
"""Of the baseline's own report beside a biased scorer: about twice the tokens of the calibration at standard depth, noise as of bf16."""
ARMS = (Arm(), Arm(drafts="greedy", windows=False))
AT_ONCE = 16_384
"""Tokens judged in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much is drawn."""

    runs: int
    tokens: int
    noisy_runs: int = 200
    noisy_tokens: int
    biased_runs: int
    biased_tokens: int


DEPTHS = {
    False: Depth(runs=1000, tokens=512, noisy_tokens=512, biased_runs=24, biased_tokens=32_768),
    True: Depth(runs=96, tokens=128, noisy_runs=16, noisy_tokens=256, biased_runs=2, biased_tokens=1024),
}


@dataclass(slots=True, kw_only=True)
class Report:
    """Rows as they come, and whether all of them hold."""

    rows: list[dict[str, object]] = field(default_factory=list)
    kept: bool = True

    def add(self, table: str, *, kept: bool, **row: object) -> None:
        """Take a row and print it."""
        self.rows.append({"table": table, **row, "kept": kept})
        self.kept &= kept
        said = ", ".join(f"{name} {value}" for name, value in row.items())
        print(f"  {table:<9} {said}  {'kept' if kept else 'EXCEEDED'}", flush=True)

    def sizes(self, name: str, peaks: Floats, tokens: int) -> None:
        """Take the highest log wealths of healthy runs."""
        for alpha in ALPHAS:
            alarms = int((peaks >= -np.log(alpha)).sum())
            within = limits(alarms, len(peaks), 0.99)
            share, span = f"{alarms / len(peaks):.5f}", f"[{within.low:.5f}, {within.high:.5f}]"
            figures = {"runs": len(peaks), "tokens": tokens, "alpha": alpha, "alarms": alarms, "share": share, "interval_99": span}
            self.add("size", kept=within.low <= alpha, form=name, **figures)


def peaks(make: Callable[[int], Observed], *, runs: int, tokens: int) -> Floats:
    """Return the highest log wealth of every run, judged a handful at a time."""
    at_once = max(1, AT_ONCE // tokens)
    parts = []
    for first in range(0, runs, at_once):
        count = min(at_once, runs - first)
        parts.append(mixture(bettors(make(count)), runs=count).max(axis=1))
    return np.concatenate(parts)


def of_form(distributions: RecordedDistributions, form: Form, random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Tell the size of one form, without noise and with."""
    runs = max(depth.runs // form.cost, 24)
    found = [
        peaks(
            lambda count, arm=arm: forms.draw(distributions, form, arm, random, runs=count, tokens=depth.tokens),
            runs=runs // 2,
            tokens=depth.tokens,
        )
        for arm in ARMS
    ]
    report.sizes(form.name, np.concatenate(found), depth.tokens)
    boundary = form.top_p < 1.0
    tokens = depth.noisy_tokens * (2 if boundary else 1) // (2 if form.cost > 1 else 1)
    for noise in NOISES if boundary else NOISES[-1:]:
        arm = Arm(noise=noise)
        high = peaks(
            lambda count, arm=arm: forms.draw(distributions, form, arm, random, runs=count, tokens=tokens),
            runs=depth.noisy_runs,
            tokens=tokens,
        )
        alarms = int((high >= -np.log(ALPHAS[-1])).sum())
        highest = f"10^{high.max() / np.log(10):.1f}"
        figures = {"runs": len(high), "tokens": tokens, "noise": noise, "alarms": alarms, "highest": highest}
        report.add("noise", kept=alarms == 0, form=form.name, **figures)


def biased(distributions: RecordedDistributions, form: Form, random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Report how runs end when the scorer takes the distribution to a wrong power: none of them in failure."""
    for tilt in TILTS:
        ends = {level: dict.fromkeys(("clear", "invalid", "controlled", "failed"), 0) for level in (SHARE, ALPHAS[-1])}
        for _ in range(depth.biased_runs):
            for level, end in _ends(distributions, form, tilt, random, depth.biased_tokens).items():
                ends[level][end] += 1
        for level, found in ends.items():
            figures = {"tilt": tilt, "alpha": level, "runs": depth.biased_runs, "tokens": depth.biased_tokens, **found}
            report.add("biased-scorer", kept=found["failed"] == 0, form=form.name, **figures)


def _ends(distributions: RecordedDistributions, form: Form, tilt: float, random: np.random.Generator, tokens: int) -> dict[float, str]:
    """Return how a run ends by level, as judge/sampling/verdict.py has it.

    The control is judged first, then the variant, against the scores and against the distribution that the baseline reports: both have to
    agree. An alarm is held against the control.
    """
    known = calibrate(forms.reported(distributions, form, Arm(tilt=tilt, noise=REPORTED_NOISE), random, REPORTED_TOKENS))
    seed = int(random.integers(2**32))
    mine, theirs = _both(distributions, form, tilt, seed, tokens, scoring_bias=0.0)
    plain = wealth_process(bettors(mine))
    if known.is_biased:
        mine, theirs = _both(distributions, form, tilt, seed, tokens, scoring_bias=known.scoring_bias)
    book, control = wealth_process(bettors(mine)), wealth_process(bettors(theirs))
    other = counterpart(book.winner, control.bettors)
    slot_chances = True
    if other is not None:
        earned = [Earnings(log_payoffs=one.log_payoffs, last=seen.slots.last) for one, seen in ((book.winner, mine), (other, theirs))]
        slot_chances = difference(*earned).score >= least_score(control.peak)

    def end(barrier: float) -> str:
        alarms = plain.peak >= barrier, book.peak >= barrier
        if control.peak >= barrier or len(set(alarms)) > 1:
            return "invalid"
        return "clear" if not any(alarms) else "failed" if slot_chances else "controlled"

    return {level: end(-np.log(level)) for level in (SHARE, ALPHAS[-1])}


def _both(
    distributions: RecordedDistributions, form: Form, tilt: float, seed: int, tokens: int, *, scoring_bias: float
) -> tuple[Observed, Observed]:
    """Return the variant's and the control's tokens, the same for a seed, under scores to the power ``1 + scoring_bias``."""
    random = np.random.default_rng(seed)
    mine, theirs = (
        forms.draw(distributions, form, Arm(tilt=tilt, drafts=drafts), random, runs=1, tokens=tokens, scoring_bias=scoring_bias)
        for drafts in ("model", "")
    )
    return mine, theirs


def duplicates(distributions: RecordedDistributions, random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Tell the size of the bet on an answer given again, alone: eight answers to each of four prompts, cool, so that heads do coincide."""
    found = []
    for _ in range(depth.runs):
        seen = forms.asked_again(distributions, random, prompts=4, answers=8, tokens=8, temperature=0.3)
        assert seen.copies is not None
        paid = betting.at_outcome(betting.table(seen.distribution, seen.copies), seen.distribution)
        found.append(max(0.0, float(paid.cumsum().max())))
    report.sizes("an answer given again", np.array(found), 256)


def wealths(bank: Bank, rules: Rules, random: np.random.Generator, *, runs: int, tokens: int, windows: bool) -> Iterator[Floats]:
    """Yield the log wealth of runs from a bank after every token, [some runs, tokens]."""
    at_once = max(1, AT_ONCE // tokens)
    for first in range(0, runs, at_once):
        count = min(at_once, runs - first)
        observed = simulate(bank, rules, random, runs=count, answers=tokens // ANSWER_TOKENS, tokens=ANSWER_TOKENS, k=K, windows=windows)
        yield mixture(bettors(observed), runs=count)


def of_bank(drawn: dict[str, Bank], random: np.random.Generator, depth: Depth, report: Report) -> None:
    """Tell the size over a bank's positions, drafters of every kind."""
    cells = [(kind, windows) for kind in drawn for windows in (True, False)]
    runs = -(-depth.runs // len(cells))
    found = [
        wealth.max(axis=1)
        for kind, windows in cells
        for wealth in wealths(drawn[kind], RIGHT, random, runs=runs, tokens=depth.tokens, windows=windows)
    ]
    report.sizes("bank", np.concatenate(found), depth.tokens)


def power(drawn: dict[str, Bank], random: np.random.Generator, *, runs: int, tokens: int) -> None:
    """Print for every fault and draft how many tokens the alarm took."""
    print(f"\npower: tokens to an alarm at {SHARE:g}, median / 90 % of {runs} runs of {tokens} tokens; - is more than that")
    print("| fault | " + " | ".join(drawn) + " |\n|---|" + "---|" * len(drawn))
    for name in POWER:
        found = [np.concatenate(list(wealths(one, RULES[name], random, runs=runs, tokens=tokens, windows=True))) for one in drawn.values()]
        print(f"| {name} | " + " | ".join(map(_cell, found)) + " |", flush=True)


def _cell(wealth: Floats) -> str:
    reached = wealth >= -np.log(SHARE)
    first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)
    middle, late = np.quantile(first, [0.5, 0.9], method="higher")
    return " / ".join(f"{value:.0f}" if np.isfinite(value) else "-" for value in (middle, late))


def _drawn(asked: argparse.Namespace, random: np.random.Generator) -> dict[str, Bank]:
    if asked.synthetic:
        return {kind: zipf(random, positions=20_000, vocabulary=512, top_tokens=20, certain=kind != "model") for kind in ("model", "ngram")}
    path = asked.bank if asked.bank.exists() else banks.capture(asked.bank.parent, 20_160)
    return {kind: banks.load(path, kind) for kind in KINDS}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    several = [*FORMS, "biased-scorer", "duplicates", "bank"]
    parser.add_argument("--form", action="append", choices=several, help="one of them, as often as wanted; all but bank by default")
    parser.add_argument("--quick", action="store_true", help="few and short runs: that it works, not how well")
    parser.add_argument("--write", action="store_true", help=f"write {results.FOLDER}/size.json and size.md")
    parser.add_argument("--bank", type=Path, default=banks.FOLDER / banks.FILE, help="a file of benchmarks.bank; made when missing")
    parser.add_argument("--synthetic", action="store_true", help="use made-up distributions instead of a bank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--power", action="store_true", help="print the tokens to an alarm by fault as well, from the bank")
    return parser.parse_args()


def main() -> int:
    """Run the command."""
    asked, begun, report = _options(), time.perf_counter(), Report()
    wanted, depth = asked.form or [*FORMS, "biased-scorer", "duplicates"], DEPTHS[asked.quick]
    distributions = forms.recorded(np.random.default_rng(asked.seed)) if set(wanted) - {"bank"} else None
    for name in wanted:
        # A generator for each, so that a form alone is the same as among the others.
        random = np.random.default_rng([asked.seed, *name.encode()])
        if name == "bank":
            of_bank(_drawn(asked, random), random, depth, report)
        elif name == "biased-scorer":
            biased(distributions, FORMS["top-20"], random, depth, report)
        elif name == "duplicates":
            duplicates(distributions, random, depth, report)
        else:
            of_form(distributions, FORMS[name], random, depth, report)
    if asked.power:
        power(_drawn(asked, np.random.default_rng(asked.seed)), np.random.default_rng(asked.seed), runs=40, tokens=8192)
    if asked.write:
        results.write("size", report.rows, command="python -m benchmarks.size --write", seconds=time.perf_counter() - begun)
    return 0 if report.kept else 1


if __name__ == "__main__":
    sys.exit(main())
