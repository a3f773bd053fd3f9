"""Alarms: after how many tokens the panel's wealth reaches the level, and what the judge names then and at the end of the budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.naming import acceptance, name
from pytest_specdec.stats.betting import settled
from pytest_specdec.stats.simulation import observe

if TYPE_CHECKING:
    from benchmarks.detection.grid import Grid
    from pytest_specdec.stats.bank import Bank
    from pytest_specdec.stats.laws import Floats
    from pytest_specdec.stats.simulation import Trace

__all__ = ["Runs", "first_alarms", "names", "quantile"]

BLOCK = 256
"""Tokens read off at a time, a whole number of answers; at the first one fewer."""


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


def first_alarms(runs: Runs, panel: Grid, level: float, *, within: int) -> Floats:
    """Return after how many tokens each run's log wealth first reached ``level``; inf where it did not ``within`` so many."""
    length = runs.trace.at.shape[1]
    found = np.full(runs.count, np.inf)
    wealth = np.tile(panel.log_weights, (runs.count, 1))
    silent = np.arange(runs.count)
    each = BLOCK // length
    for begin in range(0, min(runs.answers, within // length), each):
        chunk = range(begin, min(begin + each, runs.answers, within // length))
        rows = (silent[:, None] * runs.answers + np.array(chunk)[None, :]).ravel()
        for part in np.array_split(np.arange(len(silent)), -(-len(silent) // 64)):
            here = rows.reshape(len(silent), -1)[part].ravel()
            paid = panel.read(runs.trace.part(here)).reshape(len(part), -1, len(panel.seats))
            paths = wealth[silent[part], None, :] + paid.cumsum(axis=1, dtype=np.float64)
            highest = paths.max(axis=2)
            mixture = highest + np.log(np.exp(paths - highest[:, :, None]).sum(axis=2))
            reached = mixture >= level
            wealth[silent[part]] = paths[:, -1]
            found[silent[part]] = np.where(reached.any(axis=1), begin * length + reached.argmax(axis=1) + 1.0, np.inf)
        silent = silent[np.isinf(found[silent])]
        if not len(silent):
            break
    return found


def names(runs: Runs, panel: Grid, until: Floats, *, windows: bool) -> Counter[str]:
    """Return how often the judge names what, for each run after as many tokens as ``until`` [runs] says; inf is left out."""
    return Counter(_named(runs, panel, run, int(tokens), windows=windows) for run, tokens in enumerate(until) if np.isfinite(tokens))


def _named(runs: Runs, panel: Grid, run: int, tokens: int, *, windows: bool) -> str:
    length = runs.trace.at.shape[1]
    trace = runs.one(run, -(-tokens // length)).flat(tokens)
    observed = observe(runs.bank, trace, k=runs.k, windows=windows)
    book = settled(panel.accounts(panel.read(trace)[0]))
    return name(book, observed, acceptance(observed) if windows else None)


def quantile(tokens: Floats, share: float) -> float:
    """Return the least number of tokens within which that share of the runs had alarmed; inf where too few did."""
    return float(np.quantile(tokens, share, method="higher"))
