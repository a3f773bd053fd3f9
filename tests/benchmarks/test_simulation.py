"""Simulated servers emit what their rules say, token by token, and their faults are seen in time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bank import Asked, asking, zipf
from benchmarks.detection.faults import RULES
from benchmarks.simulation import RIGHT, Rules, blurred, draw, id_order, simulate
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.draft_distribution import SplitRemainder, merge_remainder
from pytest_specdec.stats.fault_models import CATALOGUE, ratio, residual, verified_distribution
from pytest_specdec.stats.reused_numbers import ReusedNumber

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


@pytest.mark.parametrize("fault, name", [
    ("accept-all", "accept-all"),
    ("acceptance-leak-20", "acceptance leak of 20%"),
    ("acceptance-leak-5", "acceptance leak of 5%"),
    ("inverted-ratio", "inverted ratio"),
    ("greedy-acceptance", "greedy acceptance"),
    ("typical-acceptance", "typical acceptance"),
    ("resample-from-p", "resample from p"),
    ("recover-argmax", "recover by argmax"),
    ("residual-argmax", "residual argmax"),
])  # fmt: skip
def test_a_planted_fault_emits_the_distribution_of_its_catalogue_entry(fault, name):
    (alternative,) = (alternative for alternative in CATALOGUE if alternative.name == name)
    observed = simulate(ONE, RULES[fault], np.random.default_rng(1), runs=1, answers=800, tokens=32, k=3)
    seen, error = frequencies(observed, observed.slots.draft_slot)
    assert seen == pytest.approx(alternative.distribution(ONE.p, ONE.q)[0], abs=error)


def test_a_ratio_taken_before_the_temperature_accepts_by_raw_distributions_what_is_drawn_and_recovered_as_asked():
    bank = asking(ONE, Asked(temperature=0.5))
    observed = simulate(bank, Rules(forgets="ratio"), np.random.default_rng(1), runs=1, answers=800, tokens=32, k=3)
    split, raw = SplitRemainder.of(bank.p, bank.q), SplitRemainder.of(bank.unasked, bank.unasked_q)
    distribution = merge_remainder(verified_distribution(split.q, ratio(raw.p, raw.q), residual(split.p, split.q)))[0]
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


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "fault, certain, most",
    [
        ("accept-all", False, 300),
        ("accept-all", True, 80),
        ("resample-from-p", False, 1500),
        ("resample-from-p", True, 1200),
        ("acceptance-leak-20", False, 3000),
        ("acceptance-leak-20", True, 1200),
        ("bonus-from-q", False, 2000),
        ("flattened-after-rejection", False, 2500),
        ("flattened-after-rejection", True, 1500),
    ],
)
def test_a_planted_fault_is_seen_in_time(fault, certain, most):
    """Power, at the share of one workload of the suite; the limits are two to three times what these seeds take."""
    random = np.random.default_rng(8)
    bank = zipf(random, positions=2000, vocabulary=512, top_tokens=20, certain=certain)
    observed = simulate(bank, RULES[fault], random, runs=1, answers=64, tokens=64, k=3)
    tokens = wealth_process(bettors(observed)).tokens_to(-np.log(6.25e-5))
    assert tokens is not None
    assert tokens <= most


SERVERS = 40_000
Q = np.array([0.5, 0.3, 0.2, 0.0, 0.0])
P = np.array([0.2, 0.3, 0.5, 0.0, 0.0])
RESIDUAL = np.array([0.0, 0.0, 1.0, 0.0, 0.0])


def drawn(reuse, *, verify=True, otherwise=RESIDUAL, ids=(30, 10, 20), accept=None):
    """SERVERS servers at one position with three top tokens, whose ids are not in the order of their probabilities."""
    random = np.random.default_rng(5)
    whole = {name: np.tile(distribution, (SERVERS, 1)) for name, distribution in {"q": Q, "otherwise": otherwise}.items()}
    return draw(
        random,
        reuse,
        **whole,
        accept=np.tile(np.minimum(1.0, P / np.where(Q > 0, Q, 1.0)) if accept is None else accept, (SERVERS, 1)),
        verify=np.full(SERVERS, verify),
        order=id_order(np.tile(ids, (SERVERS, 1))),
        shared=random.random(SERVERS),
    )


def shares(token):
    return np.bincount(token, minlength=5) / len(token)


def test_the_order_of_ids_ends_with_the_remainder():
    assert id_order(np.array([[30, 10, 20]])).tolist() == [[1, 2, 0, 3, 4]]


@pytest.mark.parametrize("reuse", [ReusedNumber.NONE, ReusedNumber.WINDOW])
def test_numbers_used_once_make_the_targets_distribution(reuse):
    assert shares(drawn(reuse).token) == pytest.approx(P, abs=0.012)


def test_without_a_draft_the_other_distribution_is_drawn_from():
    for reuse in ReusedNumber:
        found = drawn(reuse, verify=False, otherwise=P)
        assert shares(found.token) == pytest.approx(P, abs=0.012), reuse
        assert not found.accepted.any()


def test_a_draft_that_decides_on_itself_is_accepted_by_its_place_in_the_order_of_ids():
    """Id 30 takes the last half of the numbers, all of them above the .4 that it should be accepted with."""
    found = drawn(ReusedNumber.DRAFT)
    assert shares(found.token)[0] == 0.0


def test_the_number_that_rejected_recovers_late_ids_only():
    """Rejected means a number above .4: of ids 10, 20 and 30, evenly likely, the first is not recovered."""
    found = drawn(ReusedNumber.RECOVERY, otherwise=np.array([1 / 3, 1 / 3, 1 / 3, 0.0, 0.0]), accept=np.full(5, 0.4))
    recovered = shares(found.token[~found.accepted])
    assert recovered[1] == 0.0
    assert recovered[0] > 0.5


def test_the_noise_that_drew_the_draft_draws_another_token_than_fresh_noise_would():
    other = np.array([0.0, 0.5, 0.5, 0.0, 0.0])
    tied, free = (
        shares(drawn(reuse, otherwise=other, accept=np.array([0.0, 1.0, 1.0, 1.0, 1.0])).token)
        for reuse in (ReusedNumber.GUMBEL, ReusedNumber.NONE)
    )
    assert free == pytest.approx([0.0, 0.55, 0.45, 0.0, 0.0], abs=0.012)
    assert abs(tied[1] - free[1]) > 0.02


def test_a_window_that_shares_its_number_hangs_together():
    bank = zipf(np.random.default_rng(2), positions=200, vocabulary=64, top_tokens=10)
    lengths = {}
    for reuse in (ReusedNumber.NONE, ReusedNumber.WINDOW):
        seen = simulate(bank, Rules(reuses=reuse), np.random.default_rng(3), runs=1, answers=400, tokens=32, k=3)
        lengths[reuse] = float(seen.slots.bonus_slot.mean())
    assert lengths[ReusedNumber.WINDOW] > 1.15 * lengths[ReusedNumber.NONE]


def test_a_stutter_emits_the_token_before_once_more():
    bank = zipf(np.random.default_rng(2), positions=1, vocabulary=16, top_tokens=10)
    seen = simulate(bank, Rules(stutters=True), np.random.default_rng(3), runs=1, answers=50, tokens=32, k=3)
    bonus = np.flatnonzero(seen.slots.bonus_slot)
    assert (seen.distribution.outcome[bonus] == seen.distribution.outcome[bonus - 1]).all()


def test_a_blur_has_a_size_and_no_direction():
    p = np.random.default_rng(1).dirichlet(np.full(20, 0.5), size=4000)
    q = blurred(0.3)(p, p)
    assert q.sum(axis=1) == pytest.approx(1.0)
    moved = np.log(q[:, :-1] / p[:, :-1])
    moved -= (p[:, :-1] * moved).sum(axis=1, keepdims=True) / p[:, :-1].sum(axis=1, keepdims=True)
    assert moved.std() == pytest.approx(0.3, rel=0.2)
    assert abs(np.corrcoef(moved.ravel(), np.log(p[:, :-1]).ravel())[0, 1]) < 0.02
    assert blurred(0.3)(p, p) == pytest.approx(q)
