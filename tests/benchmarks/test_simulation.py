from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bank import Asked, asking, zipf
from benchmarks.simulation import FAULTS, RIGHT, Rules, simulate
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.draft_distribution import SplitRemainder, merged
from pytest_specdec.stats.fault_models import CATALOGUE, ratio, residual, verified

ONE = zipf(np.random.default_rng(2), positions=1, vocabulary=64, top_tokens=5)


def frequencies(observed, where):
    seen = observed.distribution.outcome[where]
    return np.bincount(seen, minlength=6) / len(seen), 5 * np.sqrt(0.25 / len(seen))


@pytest.mark.parametrize("where", ["draft_slot", "bonus_slot", "after_rejection", "rejected_before"])
def test_a_correct_server_emits_the_target_wherever_one_may_look(where):
    observed = simulate(ONE, RIGHT, np.random.default_rng(1), runs=1, answers=800, tokens=32, k=3)
    seen, error = frequencies(observed, getattr(observed.slots, where))
    assert seen == pytest.approx(ONE.p[0], abs=error)


def test_tokens_chosen_by_their_own_acceptance_do_not_follow_the_target():
    observed = simulate(ONE, RIGHT, np.random.default_rng(1), runs=1, answers=800, tokens=32, k=3)
    seen, error = frequencies(observed, observed.slots.draft_slot & ~observed.slots.ended)
    assert np.abs(seen - ONE.p[0]).max() > error


@pytest.mark.parametrize("name", sorted(set(FAULTS) & {one.name for one in CATALOGUE}))
def test_a_planted_fault_emits_the_distribution_of_its_catalogue_entry(name):
    (one,) = (one for one in CATALOGUE if one.name == name)
    observed = simulate(ONE, FAULTS[name], np.random.default_rng(1), runs=1, answers=800, tokens=32, k=3)
    seen, error = frequencies(observed, observed.slots.draft_slot)
    assert seen == pytest.approx(one.distribution(ONE.p, ONE.q)[0], abs=error)


def test_a_ratio_taken_before_the_temperature_accepts_by_raw_distributions_what_is_drawn_and_recovered_as_asked():
    bank = asking(ONE, Asked(temperature=0.5))
    observed = simulate(bank, Rules(forgets="ratio"), np.random.default_rng(1), runs=1, answers=800, tokens=32, k=3)
    split, raw = SplitRemainder.of(bank.p, bank.q), SplitRemainder.of(bank.unasked, bank.unasked_q)
    distribution = merged(verified(split.q, ratio(raw.p, raw.q), residual(split.p, split.q)))[0]
    seen, error = frequencies(observed, observed.slots.draft_slot)
    assert seen == pytest.approx(distribution, abs=error)
    assert np.abs(bank.p[0] - distribution).max() > 2 * error


def test_windows_follow_the_shape_of_speculation():
    observed = simulate(ONE, RIGHT, np.random.default_rng(1), runs=2, answers=10, tokens=32, k=3)
    slot = observed.slots.slot.reshape(20, 32)
    assert (slot[:, :2] == 0).all()
    assert slot.max() == 3
    assert (np.diff(slot, axis=1) <= 1).all()
    assert observed.tokens == 640
    assert observed.slots.last.reshape(20, 32).sum() == 20


def test_the_same_seed_gives_the_same_tokens():
    first, second = (simulate(ONE, RIGHT, np.random.default_rng(4), runs=1, answers=5, tokens=16, k=2).distribution.outcome for _ in "ab")
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(
    "fault, certain, most",
    [
        ("accept-all", False, 300),
        ("accept-all", True, 80),
        ("resample from p", False, 1500),
        ("resample from p", True, 1200),
        ("acceptance leak of 20%", False, 3000),
        ("acceptance leak of 20%", True, 1200),
        ("bonus from q", False, 2000),
        ("flattened once a draft was rejected", False, 2500),
        ("flattened once a draft was rejected", True, 1500),
    ],
)
def test_a_planted_fault_is_seen_in_time(fault, certain, most):
    """Power, at the share of one workload of the suite; the limits are two to three times what these seeds take."""
    random = np.random.default_rng(8)
    bank = zipf(random, positions=2000, vocabulary=512, top_tokens=20, certain=certain)
    observed = simulate(bank, FAULTS[fault], random, runs=1, answers=64, tokens=64, k=3)
    tokens = wealth_process(bettors(observed)).tokens_to(-np.log(6.25e-5))
    assert tokens is not None
    assert tokens <= most
