from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.detection.faults import RULES
from benchmarks.simulation import RIGHT, simulate
from pytest_specdec.stats import adaptive_bettors
from pytest_specdec.stats.adaptive_bettors import (
    ADAPTIVE_BETTORS,
    BLOCK,
    GUESSES,
    PRIOR_RATE,
    adaptive_panel,
    core_distribution,
    tilt_by_counts,
)
from pytest_specdec.stats.betting import mixture, wealth_process
from pytest_specdec.stats.bettors import bettors

BANK = zipf(np.random.default_rng(1), positions=12, vocabulary=64, top_tokens=8)
LN = np.log
SEATS = [(adaptive, spread) for adaptive in ADAPTIVE_BETTORS for spread in adaptive.spreads]
AT_THE_BONUS = [*(adaptive.bonus for adaptive, _ in SEATS), *(False for _ in GUESSES)]


def drawn(rules=RIGHT, *, seed=0, runs=1, answers=24, tokens=16, windows=True):
    """Answers of a drafter that draws, and whose distribution is not known."""
    random = np.random.default_rng(seed)
    seen = simulate(BANK, rules, random, runs=runs, answers=answers, tokens=tokens, k=3, windows=windows)
    seen = replace(seen, q=None, accepted_if_emitted=None, listed=None, drafted=np.zeros(seen.tokens, dtype=bool))
    return replace(seen, contexts=np.unique(seen.ids, axis=0, return_inverse=True)[1].reshape(-1), previous=seen.before)


def rates(seen):
    return adaptive_bettors.adaptive_inputs(seen, seen.contexts, seen.previous)


def with_outcome(seen, at, outcome):
    return replace(
        seen, distribution=replace(seen.distribution, outcome=np.where(np.arange(seen.tokens) == at, outcome, seen.distribution.outcome))
    )


def with_flags(seen, which):
    return replace(seen, slots=replace(seen.slots, ended=seen.slots.ended ^ which))


def draft_slot_of_third_block(seen):
    return int(np.flatnonzero(seen.slots.draft_slot & (np.arange(seen.tokens) >= 2 * BLOCK))[5])


@pytest.mark.examples(6)
@pytest.mark.parametrize("view", range(len(AT_THE_BONUS)))
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_whatever_was_learned_the_mean_payoff_is_one(view, noise):
    seen = drawn(RULES["resample-from-p"])
    seen = replace(seen, distribution=replace(seen.distribution, noise=noise))
    slots = seen.slots.bonus_slot if AT_THE_BONUS[view] else seen.slots.draft_slot
    at = int(np.flatnonzero(slots & (np.arange(seen.tokens) >= 4 * BLOCK))[3])
    outcomes = range(seen.distribution.p.shape[1])
    paid = np.exp([adaptive_panel(with_outcome(seen, at, one), allowance=0.0)[view].log_payoffs[at] for one in outcomes])
    assert paid.std() > 1e-3
    assert core_distribution(seen.distribution)[at] @ paid == (pytest.approx(1.0) if not noise else pytest.approx(1.0, abs=2e-3))
    assert core_distribution(seen.distribution)[at] @ paid <= 1.0 + 1e-12


def test_a_token_has_no_say_in_its_own_bet_nor_a_later_one_in_an_earlier():
    seen = drawn()
    at = draft_slot_of_third_block(seen)
    own = rates(seen)
    later = np.arange(seen.tokens) >= at
    for other in (
        with_outcome(seen, at, (seen.distribution.outcome[at] + 1) % seen.distribution.p.shape[1]),
        with_flags(seen, np.arange(seen.tokens) == at),
        with_flags(seen, later),
    ):
        changed = rates(other)
        assert (changed.rate[: at + 1] == own.rate[: at + 1]).all()
        assert (changed.seen[: at + 1] == own.seen[: at + 1]).all()
    assert (rates(with_flags(seen, later)).rate[at + BLOCK :] != own.rate[at + BLOCK :]).any()


def test_the_windows_of_earlier_tokens_teach():
    seen = drawn()
    at = draft_slot_of_third_block(seen)
    none = with_flags(seen, seen.slots.ended)
    assert rates(seen).rate[at].mean() > 0.05
    assert rates(none).rate[at].mean() < 0.05


def test_a_rate_is_learned_where_the_drafter_proposes_a_token_too_seldom():
    seen = drawn(answers=400)
    p, q = BANK.p, BANK.q
    late = slice(seen.tokens // 2, None)
    row = np.array([np.flatnonzero((BANK.ids == ids).all(axis=1))[0] for ids in seen.ids[late]])
    true, found = np.maximum(1.0 - q / p, 0.0)[row], rates(seen).rate[late]
    assert np.corrcoef(true.ravel(), found.ravel())[0, 1] > 0.8


def test_without_windows_nothing_is_known_of_recovered_tokens_and_every_token_counts():
    seen = drawn(windows=False)
    found = rates(seen)
    assert found.rate == pytest.approx(np.full(seen.distribution.p.shape, PRIOR_RATE))
    assert found.features[:, :, -1] == pytest.approx(0.0)
    assert found.seen[-1].sum() > 0
    adapted, guesses = adaptive_panel(seen)[: len(SEATS)], adaptive_panel(seen)[len(SEATS) :]
    assert not any(one.log_payoffs.any() for one in guesses)
    for (adaptive, _), one in zip(SEATS, adapted, strict=True):
        assert (np.abs(one.log_payoffs[BLOCK:]) > 1e-9).mean() == (0.0 if adaptive.bonus else pytest.approx(1.0, abs=0.1))


def test_features_are_centred_and_of_unit_size():
    seen = drawn(answers=200)
    found, p = rates(seen).features, core_distribution(seen.distribution)
    assert (p[:, :, None] * found).sum(axis=1) == pytest.approx(0.0, abs=1e-9)
    size = np.sqrt((p[:, :, None] * found**2).sum(axis=1).mean(axis=0))
    assert (size > 0.05).all()
    assert (size < 5.0).all()


def test_nothing_is_bet_outside_the_core():
    seen = drawn()
    core = np.broadcast_to(np.arange(seen.distribution.p.shape[1]) < 4, seen.distribution.p.shape)
    seen = replace(seen, distribution=replace(seen.distribution, core=core))
    outside = seen.distribution.outcome >= 4
    assert outside.any()
    for one in adaptive_panel(seen):
        assert not one.log_payoffs[outside].any()
        assert one.log_payoffs[~outside].any()


@pytest.mark.parametrize("fault, views", [("accept-all", range(5)), ("lenient", [len(SEATS)])])
def test_a_distribution_within_the_allowance_pays_no_more_than_one(fault, views):
    seen = drawn(RULES[fault], answers=60)
    seen = replace(seen, distribution=replace(seen.distribution, noise=0.0))
    at = int(np.flatnonzero(seen.slots.draft_slot)[-1])
    p, allowance = core_distribution(seen.distribution)[at], 0.05
    for view in views:
        paid = np.exp(
            [
                adaptive_panel(with_outcome(seen, at, one), allowance=allowance)[view].log_payoffs[at]
                for one in range(seen.distribution.p.shape[1])
            ]
        )
        worst = (paid - p @ paid) / np.sqrt(p @ (paid - p @ paid) ** 2)
        distribution = p * (1.0 + allowance * worst)
        assert p @ paid < 1.0
        assert distribution.min() > 0
        assert distribution @ paid <= 1.0 + 1e-12
        assert distribution @ paid > 0.999


@pytest.mark.parametrize("fault", ["resample-from-p", "acceptance-leak-20"])
def test_a_fault_that_hides_behind_an_unknown_draft_shows(fault):
    seen = drawn(RULES[fault], answers=256)
    assert wealth_process(adaptive_panel(seen)).peak > 2 * LN(1000)
    assert wealth_process(bettors(replace(seen, contexts=None, previous=None))).peak < LN(1000)


def test_the_drafts_of_earlier_windows_tell_what_leniency_would_make_of_them():
    """Against correct servers the same bets lose; without windows there is no guess."""
    lenient, correct = (adaptive_panel(drawn(rules, answers=400))[len(SEATS) :] for rules in (RULES["lenient"], RIGHT))
    assert min(one.log_wealth for one in lenient) > 2.0
    assert max(one.log_wealth for one in correct) < 0.0


def test_the_guess_at_a_draft_is_near_it_where_it_falls_short():
    seen = drawn(answers=400)
    row = np.array([np.flatnonzero((BANK.ids == ids).all(axis=1))[0] for ids in seen.ids])[-200:]
    found, p, q = adaptive_bettors.guess_draft(seen.distribution, rates(seen))[-200:], BANK.p[row], BANK.q[row]
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert np.abs(found - q).sum() < 0.7 * np.abs(p - q).sum()


def test_correct_servers_do_not_alarm():
    high = [wealth_process(adaptive_panel(drawn(seed=seed, answers=32))).peak for seed in range(40)]
    assert max(high) < LN(1000)
    assert sum(peak >= LN(20) for peak in high) <= 6


def test_counts_are_of_the_same_context():
    seen = drawn()
    assert rates(seen).seen.max() > 10, "contexts come again"
    assert rates(replace(seen, contexts=np.arange(seen.tokens))).seen.max() == 0


def test_a_memory_worked_out_by_hand():
    view, seen = np.array([[0.5, 0.3, 0.2]]), np.array([[6.0, 3.0, 1.0]])
    weight = view * np.exp(0.04 * np.array([1.0, 0.0, -1.0]) / (1 + 0.04 * np.array([5.0, 3.0, 2.0])))
    assert tilt_by_counts(view, seen, 0.2) == pytest.approx(weight / weight.sum())
    assert tilt_by_counts(view, seen, 0.0) == pytest.approx(view)


def test_an_adaptive_bettor_learns_the_slope_of_a_server_that_tilts():
    seen = drawn(answers=400)
    random, p, features = np.random.default_rng(2), core_distribution(seen.distribution), rates(seen).features
    weight = p * np.exp(0.5 * features[:, :, 0])
    mass = (weight / weight.sum(axis=1, keepdims=True)).cumsum(axis=1)
    distribution = replace(seen.distribution, outcome=(mass > random.random(len(p))[:, None]).argmax(axis=1))
    view = ADAPTIVE_BETTORS[0].learn_views(distribution, features[:, :, :1])
    want = weight[-1] / weight[-1].sum()
    assert np.abs(view[-1] - want).sum() < 0.5 * np.abs(p[-1] - want).sum()


def test_names_tell_the_bettors_apart_and_all_guess():
    paid = adaptive_panel(drawn())
    assert len({one.name for one in paid}) == len(AT_THE_BONUS)
    assert all(one.guessed for one in paid)
    assert len(mixture(paid)[0]) == len(paid[0].log_payoffs)
