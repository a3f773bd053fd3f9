"""The worked example of docs/how-the-gate-decides.md, computed.

One position, three words; the same distribution at every token, which no real text has, so that a reader can follow with a pencil.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Family
from pytest_specdec.stats.fault_models import accept_all, lenient_ratio, ratio, residual, rule_distribution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["ACCEPT", "DISTRIBUTIONS", "WORDS", "P", "Q", "fair", "tables", "tokens_to_alarm", "wealth"]

WORDS = ("Paris", "a", "Lyon")
P = np.array([[0.6, 0.3, 0.1]])
"""The baseline's distribution behind "The capital of France is"."""
Q = np.array([[0.3, 0.2, 0.5]])
"""The draft's."""
ACCEPT = {
    "correct": ratio(P, Q),
    "lenient, 1.5 p/q": lenient_ratio(1 / 1.5)(P, Q),
    "accept-all": np.ones_like(P),
}
"""Chance that a drafted word is accepted, by rule."""
DISTRIBUTIONS = {
    "correct": rule_distribution(ratio, residual)(P, Q),
    "lenient, 1.5 p/q": rule_distribution(lenient_ratio(1 / 1.5), residual)(P, Q),
    "accept-all": accept_all(P, Q),
}
"""Distribution of the emitted word, by rule."""
BETTORS = ("lenient, 1.5 p/q", "accept-all")
TOKENS = 10
SEED = 1


def fair(name: str) -> float:
    """Return the mean payoff of the bettor on ``name`` under a correct server: sum over words of p(x) m(x)/p(x)."""
    return float((P * DISTRIBUTIONS[name] / P).sum())


def tokens_to_alarm(name: str) -> float:
    """Return after about how many tokens the bettor on ``name`` has earned the alarm where its bug is real: log(1/alpha) over KL(m, p)."""
    divergence = float((DISTRIBUTIONS[name] * np.log(DISTRIBUTIONS[name] / P)).sum())
    return float(-np.log(FAMILIES[Family.SAMPLING].alpha(1)) / divergence)


def wealth(emitted: Sequence[int]) -> dict[str, Floats]:
    """Return every bettor's wealth after each of the ``emitted`` words, and of both together, who began with half each."""
    each = {name: (DISTRIBUTIONS[name] / P)[0, list(emitted)].cumprod() for name in BETTORS}
    return each | {"together": np.mean(list(each.values()), axis=0)}


def _drawn(distribution: Floats) -> list[int]:
    return [int(word) for word in np.random.default_rng(SEED).choice(len(WORDS), size=TOKENS, p=distribution[0])]


def tables() -> dict[str, str]:
    """Return the example's tables as Markdown: distributions, payoffs, and what the words of two servers earn."""
    return {
        "distributions": _distributions(),
        "payoffs": _payoffs(),
        "faulty server": _earned("accept-all"),
        "correct server": _earned("correct"),
    }


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((lines[0], "|" + "---|" * len(rows[0]), *lines[1:]))


def _distributions() -> str:
    rows = [
        ("distribution", *WORDS),
        ("baseline p", *_shown(P)),
        ("draft q", *_shown(Q)),
        ("accepted when drafted, min(1, p/q)", *_shown(ACCEPT["correct"])),
    ]
    return _table([*rows, *((f"emitted by a server: {name}", *_shown(distribution)) for name, distribution in DISTRIBUTIONS.items())])


def _payoffs() -> str:
    rows = [
        (f"bettor on: {name}", *_shown(DISTRIBUTIONS[name] / P), f"{fair(name):.2f}", f"{tokens_to_alarm(name):.0f}") for name in BETTORS
    ]
    return _table([("payoff m/p", *WORDS, "mean under p", f"tokens to {1 / FAMILIES[Family.SAMPLING].alpha(1):,.0f} under its bug"), *rows])


def _earned(server: str) -> str:
    emitted = _drawn(DISTRIBUTIONS[server])
    rows = [(name, *map(_amount, amounts)) for name, amounts in wealth(emitted).items()]
    return _table([(f"wealth when {server} emits", *(WORDS[word] for word in emitted)), *rows])


def _shown(distribution: Floats) -> list[str]:
    return [f"{value:.2f}" for value in distribution[0]]


def _amount(value: float) -> str:
    return f"{value:.3g}"
