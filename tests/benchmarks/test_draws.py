from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.simulation import Rules, blurred, draw, id_order, simulate
from pytest_specdec.stats.fault_models import ReusedNumber

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
