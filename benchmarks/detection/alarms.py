"""Alarms: tokens until the panel's wealth reaches the level, and the judge's name for the fault then and at the end of the budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from benchmarks.simulation import observe
from pytest_specdec.judge.sampling.fault_naming import acceptance, name
from pytest_specdec.stats.betting import wealth_process

if TYPE_CHECKING:
    from benchmarks.bank import Bank
    from benchmarks.detection.grid import Grid
    from benchmarks.simulation import Trace
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["Runs", "first_alarms", "names", "quantile"]

BLOCK = 4
"""Answers read off at a time."""
AT_ONCE = 64
"""Runs read off at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Simulated runs, so many answers each, one behind the other."""

    bank: Bank
    trace: Trace
    answers: int
    """Per run."""
    k: int

    @property
    def count(self) -> int:
        """How many runs."""
        return len(self.trace.at) // self.answers

    @property
    def tokens(self) -> int:
        """Per run."""
        return self.answers * self.trace.at.shape[1]

    def one(self, run: int, answers: int | None = None) -> Trace:
        """Return a run, or its first ``answers``."""
        return self.trace.part(slice(run * self.answers, run * self.answers + (answers or self.answers)))


def first_alarms(runs: Runs, panel: Grid, level: float, start: Floats | None = None) -> tuple[Floats, Floats]:
    """Return after how many tokens each run's log wealth first reached ``level``, inf where it never did; and every bettor's at the end.

    ``start`` is every bettor's log wealth before, [runs, bettors]; without, its share of one. A run is left alone after its alarm.
    """
    length = runs.trace.at.shape[1]
    alarms = np.full(runs.count, np.inf)
    wealth = np.tile(panel.log_weights, (runs.count, 1)) if start is None else start.copy()
    silent = np.arange(runs.count)
    for begin in range(0, runs.answers, BLOCK):
        count = min(BLOCK, runs.answers - begin)
        for few in np.array_split(silent, -(-len(silent) // AT_ONCE)):
            rows = few[:, None] * runs.answers + begin + np.arange(count)[None, :]
            paid = panel.read(runs.trace.part(rows.ravel())).reshape(len(few), count * length, -1)
            paths = wealth[few, None, :] + paid.cumsum(axis=1, dtype=np.float64)
            wealth[few] = paths[:, -1]
            reached = np.zeros(paths.shape[:2], dtype=np.bool_)
            # The mixture holds at most as many times the richest as there are bettors.
            near = np.flatnonzero(paths.max(axis=(1, 2)) >= level - np.log(paths.shape[2]))
            reached[near] = logsumexp(paths[near], axis=2) >= level
            alarms[few] = np.where(reached.any(axis=1), begin * length + reached.argmax(axis=1) + 1.0, np.inf)
        silent = silent[np.isinf(alarms[silent])]
        if not len(silent):
            break
    return alarms, wealth


def names(runs: Runs, panel: Grid, until: Floats, *, windows: bool) -> Counter[str]:
    """Return how often the judge names what, for each run after as many tokens as ``until`` [runs] says; inf is left out."""
    return Counter(_named(runs, panel, run, int(tokens), windows=windows) for run, tokens in enumerate(until) if np.isfinite(tokens))


def _named(runs: Runs, panel: Grid, run: int, tokens: int, *, windows: bool) -> str:
    length = runs.trace.at.shape[1]
    trace = runs.one(run, -(-tokens // length)).flat(tokens)
    observed = observe(runs.bank, trace, k=runs.k, windows=windows)
    book = wealth_process(panel.accounts(panel.read(trace)[0]))
    return name(book, observed, acceptance(observed) if windows else None)


def quantile(tokens: Floats, share: float) -> float:
    """Return the least number of tokens within which that share of the runs had alarmed; inf where too few did."""
    return float(np.quantile(tokens, share, method="higher"))
