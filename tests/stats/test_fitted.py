from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.stats import fitted
from pytest_specdec.stats.fitted import BACKED, EVENLY, FEWEST, Scored, between, law
from pytest_specdec.stats.observed import NOBODY

VOCABULARY = 100


def scored(*rows, turn=0):
    """Tokens as (id before, id before that, law by id)."""
    ids = np.array([[*mass, *[-1] * (3 - len(mass))] for _, _, mass in rows])
    p = np.array([[*mass.values(), *[0.0] * (3 - len(mass)), 1.0 - sum(mass.values())] for _, _, mass in rows])
    return Scored(ids=ids, p=p, before=np.array([[last, other] for last, other, _ in rows]), turn=np.full(len(rows), turn))


def many(count, random, turns):
    mass = random.dirichlet(np.ones(4), size=count)
    ids = np.stack([random.choice(12, 3, replace=False) for _ in range(count)])
    return Scored(ids=ids, p=mass, before=random.integers(3, size=(count, 2)), turn=np.sort(random.integers(turns, size=count)))


JUDGED = scored((7, 8, {1: 0.5, 2: 0.3}), turn=1)


def test_it_backs_off_from_two_tokens_to_one_to_none_to_the_even_law(monkeypatch):
    monkeypatch.setattr(fitted, "FEWEST", 1)
    told = scored((7, 8, {1: 0.9}), (7, 5, {1: 0.4, 2: 0.2}), (3, 8, {2: 0.6}))
    none = [(mass + EVENLY / VOCABULARY) / (3 + EVENLY) for mass in (1.3, 0.8)]
    one = [(mass + BACKED * less) / (2 + BACKED) for mass, less in zip((1.3, 0.2), none, strict=True)]
    two = [(mass + BACKED * less) / (1 + BACKED) for mass, less in zip((0.9, 0.0), one, strict=True)]
    found = law(JUDGED, [told], VOCABULARY)[0]
    assert found[:2] == pytest.approx(two)
    assert found[3] == pytest.approx(1.0 - found[:3].sum())


def test_arms_count_alike_and_atoms_that_nobody_asks_for_count_as_tokens_only(monkeypatch):
    monkeypatch.setattr(fitted, "FEWEST", 1)
    rows = (7, 8, {1: 0.9}), (7, 5, {1: 0.4, 2: 0.2}), (3, 8, {2: 0.6})
    apart = law(JUDGED, [scored(rows[0]), scored(*rows[1:])], VOCABULARY)
    assert apart == pytest.approx(law(JUDGED, [scored(*rows)], VOCABULARY))
    other = (7, 8, {1: 0.9, 60: 0.05})
    assert law(JUDGED, [scored(other, *rows[1:])], VOCABULARY) == pytest.approx(apart)


def test_who_has_read_little_agrees_with_the_baseline():
    random = np.random.default_rng(1)
    judged = replace(many(40, random, 1), turn=np.full(40, 1))
    told = replace(many(FEWEST, random, 1), turn=np.zeros(FEWEST, dtype=np.int64))
    fewer = Scored(ids=told.ids[1:], p=told.p[1:], before=told.before[1:], turn=told.turn[1:])
    assert (law(judged, [fewer], VOCABULARY) == judged.p).all()
    assert (law(judged, [told], VOCABULARY) != judged.p).any(axis=1).all()


def test_answers_to_earlier_requests_tell_and_no_others(monkeypatch):
    monkeypatch.setattr(fitted, "FEWEST", 50)
    random = np.random.default_rng(2)
    judged, other = many(400, random, 8), many(400, random, 8)
    before = law(judged, [judged, other], VOCABULARY)
    for turn in range(8):
        changed = [_told_otherwise(one, one.turn == turn) for one in (judged, other)]
        after = law(judged, changed, VOCABULARY)
        early = judged.turn <= turn
        assert (after[early] == before[early]).all()
        assert turn == 7 or (after[~early] != before[~early]).any()


def _told_otherwise(one, here):
    return replace(one, p=np.where(here[:, None], one.p[:, ::-1], one.p), before=np.where(here[:, None], 2 - one.before, one.before))


def test_it_is_a_law_wherever_it_stands():
    random = np.random.default_rng(3)
    judged, other = many(900, random, 9), many(900, random, 9)
    found = law(judged, [judged, other], VOCABULARY)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert (found > 0.0).all()
    begin = replace(judged, before=np.full((900, 2), NOBODY))
    assert law(begin, [judged, other], VOCABULARY).sum(axis=1) == pytest.approx(1.0)


def test_what_is_frequent_behind_a_token_is_learned():
    random = np.random.default_rng(4)
    table = random.dirichlet(np.full(3, 0.3), size=3)
    before = random.integers(3, size=(4000, 2))
    p = np.column_stack([table[before[:, 0]] * 0.9, np.full(4000, 0.1)])
    told = Scored(ids=np.tile([5, 6, 7], (4000, 1)), p=p, before=before, turn=np.zeros(4000, dtype=np.int64))
    judged = replace(told, p=np.full_like(p, 0.25), turn=np.ones(4000, dtype=np.int64))
    assert law(judged, [told], VOCABULARY) == pytest.approx(p, abs=0.01)


def test_between_lies_between():
    p, other = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), np.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])
    assert between(p, other, 0.0) == pytest.approx(p)
    assert between(p, other, 1.0) == pytest.approx(np.array([[0.4, 0.6, 0.0], [0.7, 0.2, 0.1]]))
    half = np.sqrt(p * other)
    assert between(p, other, 0.5) == pytest.approx(half / half.sum(axis=1, keepdims=True))
