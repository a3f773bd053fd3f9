"""The distributions that faults make, against their formulas and against servers that draw so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import simulation
from benchmarks.bank import zipf
from benchmarks.simulation import RIGHT, draw, simulate
from pytest_specdec.stats.bettors import REUSED, bettors
from pytest_specdec.stats.draft_distribution import (
    one_hot,
    overlap,
)
from pytest_specdec.stats.fault_models import (
    BONUS,
    CATALOGUE,
    GENERIC,
    leak,
    leaky,
    ratio,
    residual,
    rule_distribution,
)
from pytest_specdec.stats.reused_numbers import ReusedNumber, decided_by_the_draft, id_order, recovered_by_the_rejection

EVERY = (*CATALOGUE, *BONUS, *GENERIC)


def distributions(seed, certain=False, rows=5, outcomes=8):
    random = np.random.default_rng(seed)
    p, q = (random.dirichlet(np.full(outcomes, 0.3), size=rows) + 1e-9 for _ in "pq")
    p = np.sort(p[:, ::-1], axis=1)[:, ::-1] / p.sum(axis=1, keepdims=True)
    if certain:
        q = one_hot(random.integers(outcomes, size=rows), outcomes)
    return p, q / q.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), certain=st.booleans())
def test_every_alternative_is_a_distribution(one, seed, certain):
    m = one.distribution(*distributions(seed, certain))
    assert (m >= 0).all()
    assert m.sum(axis=1) == pytest.approx(1.0)


def test_an_acceptance_of_1_is_not_divided_for():
    """A top list reaches to where probabilities are the smallest numbers there are."""
    with np.errstate(all="raise"):
        assert ratio(np.array([1.0, 0.0, 0.25]), np.array([5e-324, 0.0, 0.5])).tolist() == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("one", [one for one in CATALOGUE if one.name != "residual not normalised"], ids=lambda one: one.name)
def test_a_draft_that_is_the_target_hides_every_fault_of_the_ratio(one):
    p, _ = distributions(3)
    distribution = one.distribution(p, p)
    hidden = one.name not in {"typical acceptance", "greedy acceptance"}
    assert np.allclose(distribution, p) is hidden


def test_the_correct_rule_gives_the_target_back():
    p, q = distributions(7)
    assert rule_distribution(leaky(0.0), residual)(p, q) == pytest.approx(p)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 1.0])
def test_a_leak_is_exactly_a_mixture_of_target_and_draft(share):
    p, q = distributions(11)
    assert rule_distribution(leaky(share), residual)(p, q) == pytest.approx(leak(share)(p, q))


@pytest.mark.parametrize("name, expected", [
    ("accept-all", [0.1, 0.6, 0.3]),
    ("acceptance leak of 20%", [0.42, 0.36, 0.22]),
    ("lenient acceptance 2 p/q", [0.1 + 0.0 * 0.4, 0.6, 0.3]),
    ("inverted ratio", [0.1 * 0.2 + 0.88 * 0.0 + (1 - 0.1 * 0.2 - 0.9) * 1.0, 0.6, 0.3]),
    ("resample from p", [0.1 + 0.4 * 0.5, 0.3 + 0.4 * 0.3, 0.2 + 0.4 * 0.2]),
    ("residual argmax", [0.5, 0.3, 0.2]),
    ("greedy acceptance", [0.1 + 0.9 * 0.5, 0.9 * 0.3, 0.9 * 0.2]),
    ("residual not normalised", [0.1 + 0.4 * 0.4, 0.3, 0.2 + 0.4 * 0.6]),
])  # fmt: skip
def test_faults_worked_out_by_hand(name, expected):
    """p = .5 .3 .2 and q = .1 .6 .3 share .6; the residual is all on the first."""
    p, q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.1, 0.6, 0.3]])
    (one,) = (one for one in CATALOGUE if one.name == name)
    assert one.distribution(p, q)[0] == pytest.approx(expected)


def test_typical_acceptance_takes_what_is_probable_enough():
    p, q = np.array([[0.9, 0.06, 0.04]]), np.array([[0.2, 0.5, 0.3]])
    (one,) = (one for one in CATALOGUE if one.name == "typical acceptance")
    assert one.accept(p, q).tolist() == [[1.0, 0.0, 0.0]]
    assert one.distribution(p, q)[0] == pytest.approx([1.0, 0.0, 0.0])


@given(seed=st.integers(0, 2**32), theta=st.floats(-0.9, 0.9))
def test_betting_on_the_order_of_ids_leaves_the_mean_alone(seed, theta):
    p, _ = distributions(seed)
    ids = np.random.default_rng(seed).permuted(np.tile(np.arange(7), (5, 1)), axis=1)
    m = id_order(p, ids, theta)
    assert m.sum(axis=1) == pytest.approx(1.0)
    assert m[:, -1] == pytest.approx(p[:, -1])


def test_late_ids_are_worth_more_to_who_bets_on_them():
    m = id_order(np.array([[0.25, 0.25, 0.25, 0.25]]), np.array([[30, 10, 20]]), 0.6)
    assert m[0] == pytest.approx([0.25 * 1.4, 0.25 * 0.6, 0.25, 0.25])


def test_overlap_is_the_chance_of_acceptance():
    p, q = distributions(1)
    assert overlap(p, p) == pytest.approx(1.0)
    assert overlap(p, q) == pytest.approx(1 - np.abs(p - q).sum(axis=1) / 2)


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
        accept=wide[1],
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
    assert simulation.id_order(IDS)[0, :4].tolist() == [1, 3, 0, 2]


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
