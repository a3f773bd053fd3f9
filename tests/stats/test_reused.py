"""Distributions of a draft slot at which a random number serves twice, against servers that draw so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.simulation import RIGHT, draw, id_order, simulate
from pytest_specdec.stats.bettors import REUSED, bettors
from pytest_specdec.stats.fault_models import ReusedNumber, decided_by_the_draft, ratio, recovered_by_the_rejection, residual

P = np.array([[0.4, 0.25, 0.2, 0.15, 0.0]])
Q = np.array([[0.1, 0.45, 0.05, 0.4, 0.0]])
IDS = np.array([[30, 10, 40, 20]])


@pytest.mark.parametrize(
    "reuse, distribution", [(ReusedNumber.DRAFT, decided_by_the_draft), (ReusedNumber.RECOVERY, recovered_by_the_rejection)]
)
def test_the_distribution_is_that_of_a_server_that_draws_so(reuse, distribution):
    assert REUSED[reuse.value] is distribution
    servers = 200_000
    order = np.array([[1, 3, 0, 2, 4]])
    wide = [np.repeat(each, servers, axis=0) for each in (Q, ratio(P, Q), residual(P, Q), order)]
    drawn = draw(
        np.random.default_rng(1),
        reuse,
        q=wide[0],
        accepted_if_drafted=wide[1],
        otherwise=wide[2],
        verify=np.ones(servers, dtype=np.bool_),
        order=wide[3],
        shared=np.zeros(servers),
    )
    seen = np.bincount(drawn.token, minlength=5) / servers
    m = distribution(P, Q, IDS, 64)[0]
    assert np.abs(seen - m).max() < 4 * 0.5 / np.sqrt(servers)
    assert np.abs(m - P[0]).max() > 0.03


@pytest.mark.parametrize("index", [0, 2, 15])
def test_the_remainder_lies_evenly_among_the_ids(index):
    """The token is drafted with .2 and may be kept with .25: by numbers below .25, of which those below it in order are other tokens'."""
    p, q, vocabulary = np.array([[0.05, 0.55, 0.4]]), np.array([[0.2, 0.2, 0.6]]), 16
    below = 0.6 * index / vocabulary + (0.2 if index > 8 else 0.0)
    m = decided_by_the_draft(p, q, np.array([[index, 8]]), vocabulary)[0]
    assert m[0] == pytest.approx(0.2 * min(1.0, max(0.0, (0.25 - below) / 0.2)))
    assert m[0] == pytest.approx(0.2 * {0: 1.0, 2: 0.875, 15: 0.0}[index])


def test_bets_are_on_draft_slots():
    random = np.random.default_rng(3)
    seen = simulate(zipf(random, positions=40, vocabulary=64, top_tokens=5), RIGHT, random, runs=1, answers=20, tokens=12, k=3)
    unweighted = [bettor for bettor in bettors(seen) if bettor.name in REUSED]
    assert len(unweighted) == 2
    for bettor in unweighted:
        assert (bettor.log_payoffs[~seen.slots.draft_slot] == 0.0).all()
        assert (bettor.log_payoffs[seen.slots.draft_slot] != 0.0).any()
    assert not [bettor for bettor in bettors(replace(seen, q=None)) if bettor.name in REUSED]


def test_the_order_is_that_of_the_simulation():
    assert id_order(IDS)[0, :4].tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("distribution", REUSED.values(), ids=REUSED)
@pytest.mark.parametrize("seed", range(8))
def test_distributions_are_distributions_whatever_the_remainder(distribution, seed):
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.full(7, 0.4), size=(2, 50))
    ids = np.argsort(random.random((50, 40)), axis=1)[:, :6]
    m = distribution(p, q, ids, 40)
    assert m.sum(axis=1) == pytest.approx(1.0)
    assert (m >= 0).all()


@pytest.mark.parametrize("distribution", REUSED.values(), ids=REUSED)
def test_without_a_rejection_there_is_nothing_to_reuse(distribution):
    p = np.array([[0.0, 1.0, 0.0]])
    assert distribution(p, p, np.array([[7, 3]]), 10)[0] == pytest.approx(p[0])
