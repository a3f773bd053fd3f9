"""Two samples: what tests see that know no law and compare the tokens of two servers.

Texts of both servers answer the same prompts, token ids compared place by place. Gretton et al. 2012 for the maximum mean discrepancy; with
the Hamming kernel as in arXiv 2410.20247.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.bank import ids_at
from pytest_specdec.stats.simulation import RIGHT, emit
from pytest_specdec.stats.two_sample import agreements, permuted

if TYPE_CHECKING:
    from pytest_specdec.stats.bank import Bank
    from pytest_specdec.stats.laws import Floats, Ints
    from pytest_specdec.stats.simulation import Rules

__all__ = ["MATCH", "PERMUTATIONS", "chi_square", "hamming", "matches", "matching", "permuted", "power", "texts"]

PROMPTS = 20
TOKENS = 32
PERMUTATIONS = 1000
"""One more than which is the least p-value's denominator: enough for a level of 1e-3."""
LEVEL = 1e-3
MATCH = 0.6


def texts(bank: Bank, rules: Rules, random: np.random.Generator, *, tokens: int, k: int, prompts: int = PROMPTS) -> Ints:
    """Return at least ``tokens`` token ids of texts that answer ``prompts`` prompts equally often, [prompts, texts, TOKENS].

    What follows hangs on the prompt and all tokens before. A token of the tail is drawn evenly from the vocabulary.
    """
    each = max(2, -(-tokens // (prompts * TOKENS)))
    asked = np.repeat(np.arange(prompts), each)
    trace = emit(bank, rules, random, answers=len(asked), tokens=TOKENS, k=k, prompts=asked)
    width = bank.ids.shape[1]
    outcome = np.minimum(trace.outcome, width).ravel()
    ids = np.where(outcome == width, random.integers(bank.vocabulary, size=outcome.size), ids_at(bank.ids[trace.at.ravel()], outcome))
    return ids.reshape(prompts, each, TOKENS)


def sides(random: np.random.Generator, each: int) -> Floats:
    """Return which texts are taken for the first server's, [PERMUTATIONS + 1, 2 each]: 1 or 0, as they are in the first row."""
    own = np.repeat([1.0, 0.0], each)
    return np.stack([own, *(random.permutation(own) for _ in range(PERMUTATIONS))])


def hamming(first: Ints, second: Ints, random: np.random.Generator) -> Floats:
    """Return the squared maximum mean discrepancy (unbiased, Hamming kernel) and its permutations within prompts, [PERMUTATIONS + 1]."""
    total = np.zeros(PERMUTATIONS + 1)
    each = first.shape[1]
    for one, other in zip(first, second, strict=True):
        both = np.concatenate([one, other])
        kernel = agreements(both)
        np.fill_diagonal(kernel, 0.0)
        side = sides(random, each)
        toward = side @ kernel
        within = (toward * side).sum(axis=1)
        across = (toward * (1.0 - side)).sum(axis=1)
        opposite = kernel.sum() - within - 2.0 * across
        total += (within + opposite) / (each * (each - 1)) - 2.0 * across / each**2
    return total


def chi_square(first: Ints, second: Ints, random: np.random.Generator, place: int) -> Floats:
    """Return the chi-square statistic of homogeneity at one ``place`` of the texts, summed over prompts, and its permutations."""
    total = np.zeros(PERMUTATIONS + 1)
    each = first.shape[1]
    for one, other in zip(first[:, :, place], second[:, :, place], strict=True):
        both = np.concatenate([one, other])
        seen, index = np.unique(both, return_inverse=True)
        cells = np.zeros((2 * each, len(seen)))
        cells[np.arange(2 * each), index] = 1.0
        half = cells.sum(axis=0) / 2.0
        total += (((sides(random, each) @ cells) - half) ** 2 / half).sum(axis=1)
    return total


def matching(first: Ints, second: Ints) -> float:
    """Return the share of texts that are equal, the i-th of a prompt here with the i-th there."""
    return float((first == second).all(axis=2).mean())


def power(bank: Bank, rules: Rules, random: np.random.Generator, *, tokens: int, repeats: int, k: int) -> dict[str, float]:
    """Return how often each test tells a server with ``rules`` from the baseline, given so many tokens of either."""
    hits = {"hamming": 0, "first token": 0, "second token": 0, "match": 0}
    for _ in range(repeats):
        first, second = (texts(bank, one, random, tokens=tokens, k=k) for one in (RIGHT, rules))
        hits["hamming"] += permuted(hamming(first, second, random)) <= LEVEL
        hits["first token"] += permuted(chi_square(first, second, random, 0)) <= LEVEL
        hits["second token"] += permuted(chi_square(first, second, random, 1)) <= LEVEL
        hits["match"] += matching(first, second) < MATCH
    return {name: count / repeats for name, count in hits.items()}


def matches(bank: Bank, random: np.random.Generator, *, k: int) -> float:
    """Return the share of equal texts between two healthy servers."""
    first, second = (texts(bank, RIGHT, random, tokens=PROMPTS * TOKENS * 8, k=k) for _ in range(2))
    return matching(first, second)
