"""The distribution of what is emitted, for the right rules and for each fault, by chi-square on many draws of the pure function."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from specdec_reference.faults import catalogue
from specdec_reference.rejection_sampler import DraftProposal, accept, residual, verify
from specdec_reference.rules import EngineRules
from specdec_reference.sampler import pick

DRAWS = 40_000
V = 8
P = np.array([[0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02], [0.05, 0.05, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1]], np.float32)
Q = np.array([0.05, 0.40, 0.05, 0.20, 0.10, 0.10, 0.05, 0.05], np.float32)
ONE_HOT = np.eye(V, dtype=np.float32)[1]


def emitted(rules, q, seed=5):
    """First token of each of many windows of width one, and the second of those that have one."""
    random = np.random.default_rng(seed)
    certain = q is ONE_HOT
    drafted = np.full((DRAWS, 1), 1) if certain else pick(np.tile(q, (DRAWS, 1)), random.random(DRAWS))[:, None]
    draft = DraftProposal(tokens=drafted, counts=np.ones(DRAWS, np.intp), q=None if certain else np.tile(q, (DRAWS, 1, 1)))
    windows = rules.verify((), np.tile(P, (DRAWS, 1)), draft, random.random((DRAWS, 2)), rules)
    kept = windows.accepted == 1
    return np.where(kept, drafted[:, 0], windows.last), windows.last[kept]


def p_value(tokens, distribution):
    expected = distribution.astype(np.float64) / distribution.sum(dtype=np.float64) * len(tokens)
    return stats.chisquare(np.bincount(tokens, minlength=V)[expected > 0], expected[expected > 0]).pvalue


def planted(name):
    return catalogue.rules(name, speculating=True)


@pytest.mark.parametrize("q", [Q, ONE_HOT, P[0]], ids=["drawn", "certain", "perfect"])
def test_what_is_emitted_follows_the_target(q):
    first, bonus = emitted(EngineRules(), q)
    assert p_value(first, P[0]) > 1e-3
    assert p_value(bonus, P[1]) > 1e-3


def test_accepting_everything_emits_the_draft_distribution():
    first, bonus = emitted(planted("accept-all"), Q)
    assert p_value(first, Q) > 1e-3
    assert p_value(first, P[0]) < 1e-9
    assert p_value(bonus, P[1]) > 1e-3


@pytest.mark.parametrize("q", [Q, ONE_HOT], ids=["drawn", "certain"])
def test_resampling_from_p_emits_what_its_formula_says(q):
    """m = min(p, q) + (1 - beta) p."""
    shared = np.minimum(P[0], q)
    first, _ = emitted(planted("resample-from-p"), q)
    assert p_value(first, shared + (1 - shared.sum()) * P[0]) > 1e-3
    assert p_value(first, P[0]) < 1e-9


@pytest.mark.parametrize("q", [Q, ONE_HOT], ids=["drawn", "certain"])
def test_lenient_acceptance_emits_what_its_formula_says(q):
    """m = q a + (1 - sum q a) max(p - q, 0) / sum, with a = min(1, 1.5 p/q)."""
    kept = np.minimum(1.5 * P[0], q)
    rest = np.maximum(P[0] - q, 0)
    first, _ = emitted(planted("lenient"), q)
    assert p_value(first, kept + (1 - kept.sum()) * rest / rest.sum()) > 1e-3
    assert p_value(first, P[0]) < 1e-9


def test_recovering_by_argmax_emits_what_its_formula_says():
    shared = np.minimum(P[0], Q)
    first, bonus = emitted(planted("recover-argmax"), Q)
    assert p_value(first, shared + (1 - shared.sum()) * np.eye(V)[P[0].argmax()]) > 1e-3
    assert p_value(bonus, P[1]) > 1e-3


def test_a_stale_bonus_follows_the_distribution_one_position_early():
    first, bonus = emitted(planted("stale-bonus"), Q)
    assert p_value(first, P[0]) > 1e-3
    assert p_value(bonus, P[0]) > 1e-3
    assert p_value(bonus, P[1]) < 1e-9


def test_the_cache_keeps_the_fed_token_and_the_accepted_drafts():
    lengths, accepted, drafted = np.array([10, 10, 10]), np.array([0, 2, 3]), np.array([3, 3, 3])
    assert EngineRules().keep(lengths, accepted, drafted, 100).tolist() == [11, 13, 14]


def test_off_by_one_keeps_one_more_after_a_refusal_only():
    lengths, accepted, drafted = np.array([10, 10, 10, 98, 10]), np.array([0, 2, 3, 1, 0]), np.array([3, 3, 3, 3, 0])
    assert planted("kv-off-by-one").keep(lengths, accepted, drafted, 100).tolist() == [12, 14, 14, 100, 11]


def test_a_row_emits_nothing_behind_its_first_refusal():
    one_hot = np.eye(V, dtype=np.float32)
    draft = DraftProposal(tokens=np.array([[1, 2, 3]]), counts=np.array([3]))
    windows = verify(one_hot[[1, 5, 3, 4]], draft, np.full((1, 4), 0.5), EngineRules())
    assert (windows.accepted.tolist(), windows.last.tolist()) == ([1], [5])


def test_entries_behind_a_rows_count_are_no_draft():
    one_hot = np.eye(V, dtype=np.float32)
    draft = DraftProposal(tokens=np.array([[1, 2], [1, 0]]), counts=np.array([2, 1]))
    for rules in (EngineRules(), planted("accept-all")):
        windows = verify(one_hot[[1, 2, 3, 1, 0]], draft, np.zeros((2, 3)), rules)
        assert (windows.accepted.tolist(), windows.last.tolist()) == ([2, 1], [3, 0])


def test_nothing_left_of_the_residual_falls_back_to_the_distribution_itself():
    p = P[:1].astype(np.float64)
    np.testing.assert_array_equal(residual(p, p), p)


def test_a_token_without_mass_is_never_accepted():
    assert not accept(np.zeros(1), np.ones(1), np.zeros(1)).any()
