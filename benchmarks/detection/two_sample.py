"""Two samples: what tests see that know no law and compare the tokens of two servers.

Texts of both servers answer the same prompts, token ids compared place by place. Gretton et al. 2012 for the maximum mean discrepancy; with
the Hamming kernel as in arXiv 2410.20247. They alarm at the judge's own level, from permutations within prompts that are combined.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.bank import ids_at
from pytest_specdec.stats.simulation import RIGHT, emit
from pytest_specdec.stats.two_sample import agreements

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.detection.cells import Scale
    from pytest_specdec.stats.bank import Bank
    from pytest_specdec.stats.laws import Floats, Ints
    from pytest_specdec.stats.simulation import Rules

__all__ = ["HALF", "MATCH", "TIMES", "TRIED", "chi_square", "compared", "hamming", "matches", "matching", "permuted", "texts"]

TIMES = 100
"""Our median tokens, so many times over, for either server."""
TRIED = (10, 20, 30, 50, 70)
"""The same where TIMES are enough."""
HALF = 0.5
"""The power at which tokens are enough."""
PROMPTS = 20
TOKENS = 32
PERMUTATIONS = 1000
"""Of each prompt's texts."""
LEAST, PLAIN = 1000, 10
"""Combinations drawn at first, and how many of these as high as the statistic settle that nothing differs."""
MATCH = 0.6


def texts(bank: Bank, rules: Rules, random: np.random.Generator, *, tokens: int, k: int, prompts: int = PROMPTS) -> Ints:
    """Return at least ``tokens`` token ids of texts that answer ``prompts`` prompts equally often, [prompts, texts, length].

    A prompt has two texts or more, of TOKENS tokens each, or of fewer where these would be too many. What follows hangs on the prompt and
    all tokens before. A token of the tail is drawn evenly from the vocabulary.
    """
    length = min(TOKENS, max(2, -(-tokens // (2 * prompts))))
    each = max(2, -(-tokens // (prompts * length)))
    asked = np.repeat(np.arange(prompts), each)
    trace = emit(bank, rules, random, answers=len(asked), tokens=length, k=k, prompts=asked)
    width = bank.ids.shape[1]
    outcome = np.minimum(trace.outcome, width).ravel()
    ids = np.where(outcome == width, random.integers(bank.vocabulary, size=outcome.size), ids_at(bank.ids[trace.at.ravel()], outcome))
    return ids.reshape(prompts, each, length)


def sides(random: np.random.Generator, each: int) -> npt.NDArray[np.float32]:
    """Return which texts are taken for the first server's, [PERMUTATIONS + 1, 2 each]: 1 or 0, as they are in the first row."""
    own = np.repeat(np.array([1.0, 0.0], dtype=np.float32), each)
    drawn = np.tile(own, (PERMUTATIONS + 1, 1))
    random.permuted(drawn[1:], axis=1, out=drawn[1:])
    return drawn


def hamming(both: Ints, side: npt.NDArray[np.float32]) -> Floats:
    """Return the squared maximum mean discrepancy (unbiased, Hamming kernel) of one prompt's texts for every row of ``side``.

    ``both`` [2 each, length] holds the first server's texts, then the other's. All sums are of whole numbers that float32 holds exactly.
    """
    each = len(both) // 2
    kernel = agreements(both).astype(np.float32)
    np.fill_diagonal(kernel, 0.0)
    toward = side @ kernel
    within = (toward * side).sum(axis=1).astype(np.float64)
    across = toward.sum(axis=1).astype(np.float64) - within
    opposite = float(kernel.sum()) - within - 2.0 * across
    return np.asarray((within + opposite) / (each * (each - 1)) - 2.0 * across / each**2)


def chi_square(both: Ints, side: npt.NDArray[np.float32], place: int) -> Floats:
    """Return the chi-square statistic of homogeneity at one ``place`` of one prompt's texts, for every row of ``side``."""
    seen, index = np.unique(both[:, place], return_inverse=True)
    cells = np.zeros((len(both), len(seen)), dtype=np.float32)
    cells[np.arange(len(both)), index] = 1.0
    half = cells.sum(axis=0) / 2.0
    return np.asarray((((side @ cells) - half) ** 2 / half).sum(axis=1), dtype=np.float64)


def permuted(statistics: Floats, random: np.random.Generator, level: float) -> float:
    """Return the p-value of the sum of every prompt's first of ``statistics`` [prompts, permutations], fit for ``level``.

    Every prompt's texts are permuted on their own, so any of its permutations goes with any of the others': of two equal servers all the
    combinations are as likely to be the observed one. Of ten times ``1/level`` drawn ones those as high are counted, which is exact at any
    level (Hemerik and Goeman 2018, theorem 2, within each prompt). Equal sums count against it: of 2,000,000 relabelled texts of equal
    servers 0.73 times the level alarmed at 900 tokens and 0.84 times at 5,000, at a level of 6.25e-5.
    """
    value = statistics[:, 0].sum()
    exceeding = drawn = 0
    for count in (LEAST, max(ceil(10.0 / level) - LEAST, 0)):
        picked = random.integers(statistics.shape[1], size=(len(statistics), count))
        sums = np.take_along_axis(statistics, picked, axis=1).sum(axis=0)
        exceeding += int((sums >= value - 1e-9).sum())
        drawn += count
        if exceeding >= PLAIN:
            break
    return (1 + exceeding) / (1 + drawn)


def p_values(first: Ints, second: Ints, random: np.random.Generator, level: float) -> dict[str, float]:
    """Return what every test says of two servers' texts, each [prompts, texts, length]."""
    found: dict[str, list[Floats]] = {"hamming": [], "first token": [], "second token": []}
    for one, other in zip(first, second, strict=True):
        both, side = np.concatenate([one, other]), sides(random, len(one))
        found["hamming"].append(hamming(both, side))
        for place, name in enumerate(("first token", "second token")):
            found[name].append(chi_square(both, side, place))
    return {name: permuted(np.stack(each), random, level) for name, each in found.items()}


def matching(first: Ints, second: Ints) -> float:
    """Return the share of texts that are equal, the i-th of a prompt here with the i-th there."""
    return float((first == second).all(axis=2).mean())


def matches(bank: Bank, random: np.random.Generator, *, k: int) -> float:
    """Return the share of equal texts between two healthy servers."""
    first, second = (texts(bank, RIGHT, random, tokens=PROMPTS * TOKENS * 8, k=k) for _ in range(2))
    return matching(first, second)


def power(bank: Bank, rules: Rules, random: np.random.Generator, scale: Scale, *, tokens: int, repeats: int) -> dict[str, float]:
    """Return how often each test tells a server with ``rules`` from the baseline, given so many tokens of either."""
    hits = {"hamming": 0, "first token": 0, "second token": 0, "match": 0}
    for _ in range(repeats):
        first, second = (texts(bank, one, random, tokens=tokens, k=scale.k) for one in (RIGHT, rules))
        for name, p_value in p_values(first, second, random, scale.alpha).items():
            hits[name] += p_value <= scale.alpha
        hits["match"] += matching(first, second) < MATCH
    return {name: count / repeats for name, count in hits.items()}


def compared(
    bank: Bank, rules: Rules, random: np.random.Generator, scale: Scale, *, median: float, most: int, repeats: int
) -> dict[str, float]:
    """Return the power of each test at TIMES our ``median``, ``most`` tokens at most; where MMD has HALF, also from which multiple on."""
    tokens = min(int(TIMES * median), most)
    found = power(bank, rules, random, scale, tokens=tokens, repeats=repeats)
    if found["hamming"] >= HALF:
        found["enough"] = _enough(bank, rules, random, scale, median=median, tokens=tokens, repeats=repeats)
    healthy = matches(bank, random, k=scale.k)
    return {"tokens": tokens, "repeats": repeats, **found, "match, healthy": float(healthy < MATCH)}


def _enough(bank: Bank, rules: Rules, random: np.random.Generator, scale: Scale, *, median: float, tokens: int, repeats: int) -> float:
    """Return the least multiple of ``median`` tried at which MMD has HALF the power, by bisection; at ``tokens`` it has."""
    multiples = [*(float(times) for times in TRIED if times * median < tokens), tokens / median]
    low, high = 0, len(multiples) - 1
    while low < high:
        middle = (low + high) // 2
        found = power(bank, rules, random, scale, tokens=int(multiples[middle] * median), repeats=repeats)
        low, high = (low, middle) if found["hamming"] >= HALF else (middle + 1, high)
    return multiples[low]
