from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.detection.faults import RULES
from benchmarks.simulation import RIGHT, simulate
from pytest_specdec.judge.sampling.sensitivity import Sensitivity, _slot_factor, estimate_sensitivity
from pytest_specdec.stats.betting import mixture, wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.draft_distribution import overlap
from pytest_specdec.stats.fault_models import leak, temperature_tilt

BARRIER = -np.log(6.25e-5)
RUNS = 120
QUICK = pytest.mark.statistics(quick=True)


def healthy(*, certain=False, answers=16):
    random = np.random.default_rng(6)
    bank = zipf(random, positions=3000, vocabulary=512, top_tokens=20, certain=certain)
    return simulate(bank, RIGHT, random, runs=1, answers=answers, tokens=64, k=3)


def test_where_more_drafts_are_accepted_fewer_tokens_stand_at_draft_slots():
    """All accepted, three of four; none, all: against sum a^j, j < 3, of sum a^j, j <= 3, at the right acceptance a."""
    seen = healthy()
    right = overlap(seen.distribution.p, seen.q)
    powers = float(right[seen.slots.draft_slot].mean()) ** np.arange(4)
    share = powers[:3].sum() / powers.sum()
    assert _slot_factor(seen, right, right) == pytest.approx(1.0)
    assert _slot_factor(seen, np.ones(seen.tokens), right) == pytest.approx(0.75 / share)
    assert _slot_factor(seen, np.zeros(seen.tokens), right) == pytest.approx(1.0 / share)


def shown(observed, truth, seed=0):
    """The share of RUNS in which tokens drawn from ``truth`` at the very positions of a run raise the alarm."""
    random = np.random.default_rng(seed)
    distribution = observed.distribution
    alarms = 0
    for _ in range(RUNS):
        mass = truth.cumsum(axis=1)
        outcome = (mass > random.random(len(mass))[:, None] * mass[:, -1:]).argmax(axis=1)
        own = np.take_along_axis(distribution.p, outcome[:, None], axis=1)[:, 0]
        drafted = None if observed.q is None else np.take_along_axis(observed.q, outcome[:, None], axis=1)[:, 0]
        planted = replace(observed, distribution=replace(distribution, outcome=outcome, chosen=own, chosen_bound=own), q_chosen=drafted)
        alarms += bool(mixture(bettors(planted)).max() >= BARRIER)
    return alarms / RUNS


@pytest.mark.statistics
@pytest.mark.parametrize(
    "certain, share, answers", [(False, 0.2, 20), (False, 0.4, 8), pytest.param(True, 0.2, 4, marks=QUICK), (True, 0.05, 24)]
)
def test_a_leak_shows_as_often_as_promised(certain, share, answers):
    observed = healthy(certain=certain, answers=answers)
    made = estimate_sensitivity(observed, wealth_process(bettors(observed)), BARRIER, "")
    f = (observed.slot_chances.draft * observed.drafted)[:, None]
    truth = f * leak(share)(observed.distribution.p, observed.q) + (1 - f) * observed.distribution.p
    seen = shown(observed, truth)
    promised = made.leaks[share]
    assert 0.2 < promised < 0.995
    assert promised - 0.08 <= seen <= promised + 0.2, (promised, seen)


@pytest.mark.statistics
@pytest.mark.parametrize("certain, tail, fault, rules, answers", [
    (True, 0.0, "resample from p", "resample-from-p", 6),
    (True, 0.6, "resample from p", "resample-from-p", 12),
    (False, 0.0, "resample from p", "resample-from-p", 13),
    pytest.param(True, 0.0, "acceptance leak of 20%", "acceptance-leak-20", 5, marks=QUICK),
])  # fmt: skip
def test_a_fault_of_the_catalogue_shows_as_often_as_promised(certain, tail, fault, rules, answers):
    """Not the distribution that the catalogue says but the faulty process itself, its windows and drafts included.

    ``tail`` of the drafts lie in the remainder, as prompt lookup's often do: one improbable token is meant then, not the whole of the
    remainder.
    """
    random = np.random.default_rng(6)
    bank = zipf(random, positions=3000, vocabulary=512, top_tokens=20, certain=certain)
    bank = replace(bank, q=np.where(random.random((3000, 1)) < tail, np.eye(21)[20], bank.q))
    once = simulate(bank, RIGHT, random, runs=1, answers=answers, tokens=64, k=3)
    promised = estimate_sensitivity(once, wealth_process(bettors(once)), BARRIER, "").faults[fault]
    faulty = simulate(bank, RULES[rules], random, runs=RUNS, answers=answers, tokens=64, k=3)
    seen = (mixture(bettors(faulty), runs=RUNS).max(axis=1) >= BARRIER).mean()
    assert 0.2 < promised < 0.995
    assert promised - 0.15 <= seen <= promised + 0.25, (promised, seen)


@pytest.mark.statistics
def test_a_wrong_temperature_shows_as_often_as_promised():
    observed = healthy(answers=5)
    made = estimate_sensitivity(replace(observed, q=None), wealth_process(bettors(replace(observed, q=None))), BARRIER, "no")
    truth = temperature_tilt(1.25)(observed.distribution.p, observed.distribution.p)
    seen = shown(replace(observed, q=None), truth)
    assert 0.2 < made.tilts[1.25] < 0.995
    assert made.tilts[1.25] - 0.08 <= seen <= made.tilts[1.25] + 0.2


def made(leaks=None, tilts=None, length=0.5, tokens=4608, cuts=None, widths=None):
    return Sensitivity(
        tokens=tokens,
        leaks={} if leaks is None else leaks,
        faults={},
        tilts={1.07: 0.1, 1.25: 0.995, 2.0: 1.0} if tilts is None else tilts,
        cuts=cuts or {},
        widths=widths or {},
        length=length,
        untestable="its drafter cannot be served alone",
    )


BLIND = "lenient acceptance untested: draft distribution unknown (its drafter cannot be served alone)"


@pytest.mark.parametrize("one, figures", [
    (made({0.05: 0.4, 0.2: 0.99, 1.0: 1.0}), ["emitting 20% of", "(99%)"]),
    (made({0.05: 0.991, 0.2: 1.0, 1.0: 1.0}), ["emitting 20% of", "(over 99%)", "5% too (99%)"]),
    (made({0.2: 0.9, 0.5: 0.999, 1.0: 1.0}), ["emitting 50% of", "(over 99%)"]),
    (made({0.2: 0.1, 1.0: 0.62}), ["temperature 0.8 times", "(over 99%)", "accept-all only in 62%"]),
    (made(), ["temperature 0.8 times", "(over 99%)", BLIND]),
    (
        made(cuts={0.95: 0.3, 0.9: 0.99, 0.5: 1.0}, widths={0.02: 0.995, 0.05: 0.4, 0.1: 0.992, 1.0: 1.0}),
        ["; at top_p also a nucleus cut to 90% of its mass (99%), a nucleus 0.1 of mass too wide (99%)"],
    ),
    (
        made(cuts={0.95: 0.1, 0.5: 0.3}, widths={0.1: 0.1, 1.0: 0.99}),
        ["; at top_p also an ignored top_p (99%); not surely caught: a nucleus of top_p that is too narrow"],
    ),
    (made(cuts={0.95: 0.1, 0.5: 0.3}, widths={1.0: 0.9}), ["; not surely caught: a nucleus of top_p that is too narrow or too wide"]),
    (made(tilts={1.07: 0.01, 2.0: 0.3}), ["temperature 0.5 times", "(30%)", BLIND]),
])  # fmt: skip
def test_the_sensitivity_line(one, figures):
    assert str(one).startswith("4,608 sampled tokens checked; ")
    assert all(figure in str(one) for figure in figures)


def test_the_smallest_leak_counts_from_the_largest_down():
    assert made({0.05: 0.995, 0.1: 0.9, 0.2: 0.99, 1.0: 1.0}).smallest_leak == 0.2
    assert made({1.0: 0.5}).smallest_leak is None


@pytest.mark.parametrize("length, enough, needed", [(0.5, True, 50), (2.5, False, 250), (np.inf, False, None)])
def test_how_many_tokens_would_settle_it(length, enough, needed):
    one = made(length=length, tokens=100)
    assert (one.enough, one.tokens_needed) == (enough, needed)
