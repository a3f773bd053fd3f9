"""Two samples: whether several servers' answers to the same requests are drawn alike, by tests that know no law.

A request answered by every server is a block. If all draw from one law, any answer of a block could as well have been the first server's:
permuting the servers within every block gives the law of any statistic, whatever the texts are like. Both statistics are sums over pairs
of different blocks, so that what the answers of one block share (a seed, a first token) cancels.

The classifier is naive Bayes over single units and pairs of neighbours. The log-likelihood ratio ``log(f_1(u) / f_0(u))`` is, to first
order, ``(f_1 - f_0)(u) / f(u)``; each block is scored by the one fitted on all others. The discrepancy is the squared maximum mean
discrepancy with the Hamming kernel within prompts, in the unbiased form over pairs of pairs (Gretton et al. 2012, lemma 6; the kernel as
in arXiv 2410.20247). Neither says why two servers differ, or which is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse, stats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.stats.laws import Floats, Ints

__all__ = ["Blocks", "Found", "Pairing", "agreements", "classifier", "compared", "discrepancy", "found", "level_of"]

SMOOTHING = 50.0
"""Added to every unit's count: rare units are noise. Of 1, 10, 50 and 300 what saw most over the faults of stats/simulation.py."""
LEAST, MOST = 1_000, 100_000
"""Permutations drawn."""
PLAIN = 10
"""Permutations as high as the statistic, among the first LEAST, after which no more are drawn."""
AT_ONCE = 4_000_000
"""Numbers drawn in one go."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """What ``arms`` servers said to N requests: units are token ids, or numbers for pieces of text, none below 0."""

    units: Ints
    """[N, arms, T], the judged server first; -1 behind the end of an answer."""
    prompts: Ints
    """[N]: requests with equal numbers ask for draws from one law."""

    @property
    def arms(self) -> int:
        """How many servers answered every request."""
        return int(self.units.shape[1])

    def __len__(self) -> int:
        return len(self.units)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """A statistic ``sum_{r != s} z_r' H_rs z_s``, z_r being one of ``arms`` vectors: which answer of block r counts as the first server's.

    The vectors are the corners of a regular simplex, so that they add up to zero: for two arms plus and minus the square root of 2.
    """

    form: Floats
    """[N (arms-1), N (arms-1)], symmetric, zero within blocks."""
    arms: int

    @property
    def observed(self) -> float:
        """The statistic as the answers are."""
        return float(self.at(np.zeros((1, self.blocks), dtype=np.int64))[0])

    @property
    def blocks(self) -> int:
        """N."""
        return len(self.form) // (self.arms - 1)

    def at(self, firsts: Ints) -> Floats:
        """Return the statistic [P] where ``firsts`` [P, N] says which answer counts as the first server's."""
        z = _corners(self.arms)[firsts].reshape(len(firsts), -1)
        return np.asarray(((z @ self.form) * z).sum(axis=1))

    def draw(self, random: np.random.Generator, permutations: int) -> Iterator[Floats]:
        """Yield the statistic at so many permutations, some at a time."""
        at_once = max(1, AT_ONCE // max(len(self.form), 1))
        for start in range(0, permutations, at_once):
            yield self.at(random.integers(self.arms, size=(min(at_once, permutations - start), self.blocks)))

    @property
    def spread(self) -> float:
        """The standard deviation over all permutations, ``sqrt(2) c |H|`` with the variance ``c`` of z; the mean is 0."""
        return float(np.sqrt(2.0) * _variance(self.arms) * np.linalg.norm(self.form))

    @property
    def skewness(self) -> float:
        """The skewness over all permutations, exactly: ``(8 c^3 tr H^3 + 4 sum_{r != s} E (z_r' H_rs z_s)^3) / spread^3``."""
        if not self.spread:
            return 0.0
        triangles = 8.0 * _variance(self.arms) ** 3 * float(((self.form @ self.form) * self.form).sum())
        return (triangles + 4.0 * self._cubes()) / self.spread**3

    def _cubes(self) -> float:
        """Return ``sum_{r != s} E (z_r' H_rs z_s)^3``; signs cancel it for two arms."""
        if self.arms == 2:  # noqa: PLR2004 - as said
            return 0.0
        corners, width = _corners(self.arms), self.arms - 1
        blocks = self.form.reshape(self.blocks, width, self.blocks, width)
        each = np.einsum("ia,rajs->irjs", corners, np.einsum("jb,rasb->rajs", corners, blocks))
        return float((each**3).sum() / self.arms**2)

    def tail(self, value: float) -> float:
        """Return the chance of ``value`` or more over all permutations, by a Pearson type III law with their first three moments.

        Mielke and Berry 2007, *Permutation Methods*. The form is near a weighted sum of chi-squares, of which this law is one with equal
        weights: far out it is too small where few eigenvalues of H dominate.
        """
        return float(stats.pearson3.sf(value, self.skewness, 0.0, self.spread)) if self.spread else 1.0

    def barrier(self, level: float) -> float:
        """Return the value whose tail is ``level``; inf where nothing varies."""
        return float(stats.pearson3.ppf(1.0 - level, self.skewness, 0.0, self.spread)) if self.spread else float("inf")


def _corners(arms: int) -> Floats:
    """Return the vectors [arms, arms-1] that mark each arm as the first: 1 for it and -1/(arms-1) for the others, in their own plane."""
    return arms / (arms - 1) * _plane(arms)


def _plane(arms: int) -> Floats:
    """Return an orthonormal basis [arms, arms-1] of the contrasts between arms (Helmert)."""
    basis = np.zeros((arms, arms - 1))
    for column in range(arms - 1):
        basis[: column + 1, column] = 1.0
        basis[column + 1, column] = -(column + 1.0)
    return np.asarray(basis / np.linalg.norm(basis, axis=0))


def _variance(arms: int) -> float:
    """Return the variance of each coordinate of a corner drawn evenly."""
    return arms / (arms - 1) ** 2


def classifier(blocks: Blocks) -> Pairing:
    """Return the cross-fitted classifier over units and pairs of neighbours."""
    counts = _counted(blocks)
    n, width = len(blocks), blocks.arms - 1
    weight = sparse.diags_array(1.0 / np.sqrt(np.asarray(counts.sum(axis=0)).ravel() + SMOOTHING))
    turned = sparse.kron(sparse.eye_array(n), sparse.csr_array(_plane(blocks.arms).T), format="csr") @ counts @ weight
    form = (turned @ turned.T).toarray().reshape(n, width, n, width)
    form[np.arange(n), :, np.arange(n), :] = 0.0
    return Pairing(form=form.reshape(n * width, n * width), arms=blocks.arms)


def _counted(blocks: Blocks) -> sparse.csr_array:
    """Return how often every answer [N arms] has each unit and each pair of neighbours."""
    units = blocks.units.reshape(len(blocks) * blocks.arms, -1)
    base = int(units.max(initial=0)) + 1
    pairs = np.where((units[:, :-1] >= 0) & (units[:, 1:] >= 0), base * (1 + units[:, :-1]) + units[:, 1:], -1)
    seen = np.concatenate([units, pairs], axis=1)
    rows, columns = np.nonzero(seen >= 0)
    names, index = np.unique(seen[rows, columns], return_inverse=True)
    return sparse.coo_array((np.ones(len(rows)), (rows, index)), shape=(len(units), len(names))).tocsr()


def discrepancy(blocks: Blocks) -> Pairing | None:
    """Return the Hamming discrepancy summed over prompts; None where no prompt is asked twice."""
    n, width = len(blocks), blocks.arms - 1
    form, columns = np.zeros((n, width, n, width)), np.arange(width)
    asked = [np.flatnonzero(blocks.prompts == prompt) for prompt in np.unique(blocks.prompts)]
    several = [here for here in asked if len(here) > 1]
    basis = _plane(blocks.arms)
    for here in several:
        kernel = agreements(_unpadded(blocks.units[here])).reshape(len(here), blocks.arms, len(here), blocks.arms)
        turned = np.einsum("iajb,ac,bd->icjd", kernel, basis, basis)
        turned[np.arange(len(here)), :, np.arange(len(here)), :] = 0.0
        form[np.ix_(here, columns, here, columns)] = turned / (len(here) * (len(here) - 1))
    return Pairing(form=form.reshape(n * width, n * width), arms=blocks.arms) if several else None


def _unpadded(units: Ints) -> Ints:
    """Return the answers [n, T] with a padding of their own each: what is not there agrees with nothing."""
    texts = units.reshape(-1, units.shape[-1])
    return np.where(texts < 0, -1 - np.arange(len(texts))[:, None], texts)


def agreements(texts: Ints) -> Floats:
    """Return at how many places each two of ``texts`` [n, T] agree, [n, n]: T less the Hamming distance."""
    kernel = np.zeros((len(texts), len(texts)))
    for place in range(texts.shape[1]):
        kernel += texts[:, place, None] == texts[None, :, place]
    return kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one test says."""

    test: str
    p_value: float
    level: float
    """At which it alarms."""
    permutations: int
    exceeding: int
    """Permutations at which the statistic is as high or higher."""

    @property
    def alarm(self) -> bool:
        """Whether it says that the servers differ."""
        return self.p_value <= self.level

    def __str__(self) -> str:
        counted = f"{self.exceeding:,} of {self.permutations:,} permutations as high"
        return f"{self.test}: p = {self.p_value:.2g} ({counted}), {self.level:.2g} needed"


def level_of(blocks: Blocks, alpha: float) -> float:
    """Return what each test gets of ``alpha``: half where there are two (Bonferroni), which the prompts alone decide."""
    return alpha / 2 if len(np.unique(blocks.prompts)) < len(blocks) else alpha


def compared(blocks: Blocks, alpha: float, random: np.random.Generator) -> tuple[Found, ...]:
    """Return what the classifier and, where a prompt is asked twice, the discrepancy say; the chance of any alarm is ``alpha`` at most."""
    pairings = {"classifier of units and neighbours": classifier(blocks), "Hamming discrepancy within prompts": discrepancy(blocks)}
    level = level_of(blocks, alpha)
    return tuple(found(name, pairing, level, random) for name, pairing in pairings.items() if pairing is not None)


def found(test: str, pairing: Pairing, level: float, random: np.random.Generator) -> Found:
    """Return the p-value of ``pairing``, from as many permutations as ``level`` takes.

    Counted exactly, ``(1 + exceeding) / (1 + permutations)``. Where MOST permutations are all below the statistic and still too few for
    ``level``, the tail of a Pearson type III law goes on from there, so that this law decides below 1e-5 only and an alarm's chance
    under one law is 1e-5 at most where the level is smaller. No more are drawn where PLAIN of the first LEAST are as high.
    """
    value = pairing.observed
    value -= 1e-9 * abs(value)
    wanted = min(MOST, max(LEAST, ceil(10.0 / level)))
    exceeding = sum(int((drawn >= value).sum()) for drawn in pairing.draw(random, LEAST))
    permutations = LEAST
    if exceeding < PLAIN and wanted > LEAST:
        exceeding += sum(int((drawn >= value).sum()) for drawn in pairing.draw(random, wanted - LEAST))
        permutations = wanted
    p_value = (1 + exceeding) / (1 + permutations)
    if not exceeding and p_value > level:
        p_value = min(p_value, pairing.tail(value))
    return Found(test=test, p_value=p_value, level=level, permutations=permutations, exceeding=exceeding)
