from __future__ import annotations

import numpy as np
import pytest

from benchmarks.detection import faults
from benchmarks.served import K, emitted
from benchmarks.simulation import RIGHT
from benchmarks.whole import DRAFTERS, TOKENS, whole, written

RULES = {"correct": RIGHT, "accept-all": faults.RULES["accept-all"]}


@pytest.fixture(scope="module")
def drawn():
    texts = written(2, np.random.default_rng(1))
    return {drafter: whole(texts, drafter, RULES) for drafter in DRAFTERS}


@pytest.mark.examples(2)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_correct_server_emits_the_targets_distribution_whoever_drafts(drawn, drafter):
    one = drawn[drafter]
    assert one.p.shape == (2 * TOKENS, 21)
    assert one.verified["correct"].sum(axis=1) == pytest.approx(one.p, abs=1e-5)
    assert one.verified["correct"][:, 0].sum(axis=1).mean() == pytest.approx(one.overlap)
    assert np.abs(one.verified["accept-all"].sum(axis=1) - one.p).sum(axis=1).mean() > 0.1


def test_every_drafter_speaks_of_the_token_that_comes(drawn):
    drafts = {name: np.minimum(one.verified["accept-all"].sum(axis=1), one.p).sum(axis=1).mean() for name, one in drawn.items()}
    assert drafts[DRAFTERS[0]] > 0.65
    assert drafts[DRAFTERS[1]] > 0.5
    assert 0.25 < drafts[DRAFTERS[2]] < drafts[DRAFTERS[1]]


def test_what_is_emitted_follows_the_distribution_and_the_windows(drawn):
    one = drawn[DRAFTERS[0]]
    trace = emitted(one, "correct", np.random.default_rng(3), tokens=64_000, again=False)
    verify = trace.slot < trace.drafted
    assert (trace.slot <= K).all()
    assert (trace.slot[:, 1:] == np.where(trace.ended[:, :-1], 0, trace.slot[:, :-1] + 1)).all()
    accepted = one.verified["correct"][:, 0].sum(axis=1)[trace.at]
    assert (~trace.ended)[verify].mean() == pytest.approx(accepted[verify].mean(), abs=0.01)
    assert (trace.outcome == 0).mean() == pytest.approx(one.p[trace.at, 0].mean(), abs=0.01)


def test_a_few_contexts_come_again_and_again(drawn):
    one = drawn[DRAFTERS[0]]
    trace = emitted(one, "correct", np.random.default_rng(3), tokens=3000, again=True)
    assert trace.at.shape == (1000, 3)
    common = np.sort(np.bincount(trace.at[:, 1]))[::-1][:16].sum()
    assert 850 < common < 990
