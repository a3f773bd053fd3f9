"""What a panel sees of lenient acceptance when it does not know the draft's law, for docs/what-a-green-run-proves.md.

The same simulated tokens are judged twice, with the law and without; windows are known both times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.plan import alpha_of
from pytest_specdec.model.workload import Family
from pytest_specdec.stats.betting import settled
from pytest_specdec.stats.panel import bettors
from pytest_specdec.stats.simulation import FAULTS, simulate, zipf

if TYPE_CHECKING:
    from pytest_specdec.stats.panel import Observed

__all__ = ["table"]

FAULT = "lenient acceptance 1.5 p/q"
SEED = 0
ANSWERS, ANSWER_TOKENS, K = 128, 64, 3


def table() -> str:
    """Return, as Markdown, after how many tokens the panel alarms on each kind of drafter."""
    rows = [
        f"| {FAULT}, {ANSWERS * ANSWER_TOKENS:,} simulated tokens | draft's law known | unknown |",
        "|---|---|---|",
        *(
            _row(words, certain=certain)
            for words, certain in (("a drafter that draws its tokens", False), ("one that takes its best token", True))
        ),
    ]
    return "\n".join(rows)


def _row(words: str, *, certain: bool) -> str:
    random = np.random.default_rng(SEED)
    bank = zipf(random, positions=300, vocabulary=1000, atoms=20, certain=certain)
    seen = simulate(bank, FAULTS[FAULT], random, runs=1, answers=ANSWERS, tokens=ANSWER_TOKENS, k=K)
    return f"| {words} | {_said(seen)} | {_said(_without_law(seen))} |"


def _without_law(seen: Observed) -> Observed:
    return replace(seen, q=None, kept=None, listed=None, drafted=np.zeros(seen.tokens, dtype=np.bool_))


def _said(seen: Observed) -> str:
    book = settled(bettors(seen))
    alarm = book.tokens_to(-np.log(alpha_of(Family.SAMPLING, 1)))
    peak = f"1 : 10^{book.peak / np.log(10):.1f}"
    return f"alarm after {alarm:,} tokens" if alarm is not None else f"no alarm, evidence never above {peak}"
