from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import zipf
from benchmarks.simulation import RIGHT, Rules, blurred, simulate
from pytest_specdec.judge.sampling.fault_scope import FaultScope, fault_scope
from pytest_specdec.stats.fault_models import temperature_tilt

HOT, NOISE = temperature_tilt(0.7), blurred(2.5)


def found(rules, *, certain=True, windows=True, answers=64):
    """What is read off the answers of a server with ``rules``."""
    bank = zipf(np.random.default_rng(1), positions=300, vocabulary=5000, top_tokens=20, certain=certain)
    bank = replace(bank, drafted=np.ones(len(bank), dtype=np.bool_))
    return simulate(bank, rules, np.random.default_rng(2), runs=1, answers=answers, tokens=40, k=3, windows=windows)


@pytest.mark.examples(5)
@pytest.mark.parametrize("certain, windows", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("rules, ends", [
    (Rules(target=HOT), False),
    (Rules(target=NOISE), False),
    (Rules(stale=HOT), True),
    (Rules(stale=NOISE), True),
    (Rules(passing=NOISE), True),
])  # fmt: skip
def test_a_fault_ends_where_no_draft_was_rejected_if_the_state_is_wrong(rules, ends, certain, windows):
    held = fault_scope(found(rules, certain=certain, windows=windows))
    assert held.is_after_rejections == ends
    assert held.after_rejections > 10.0


@pytest.mark.parametrize("ahead, due, ends", [
    (0.1, 20.0, False),  # the likelier story
    (-0.1, 20.0, True),
    (-0.1, 7.0, False),  # 7.1 less, give or take 4
    (-1.1, 7.0, True),
    (-5.0, 5.0, False),  # too little is due to tell
    (-7.1, 5.0, True),
])  # fmt: skip
def test_the_likelier_story_is_taken_where_enough_is_due_to_tell(ahead, due, ends):
    assert FaultScope(after_rejections=50.0, everywhere=ahead, expected=due, spread=4.0).is_after_rejections == ends


def test_what_is_explained_is_what_the_likelier_story_does():
    assert FaultScope(after_rejections=50.0, everywhere=-3.0, expected=5.0, spread=3.0).explained == 50.0
    assert FaultScope(after_rejections=50.0, everywhere=3.0, expected=5.0, spread=3.0).explained == 53.0


def test_tokens_for_which_nothing_was_drafted_may_be_right_under_any_fault():
    """The prefill's sampler may be another one: a few hundred right tokens of its own are a little evidence for the state."""
    hot, right = found(Rules(target=HOT), answers=200), found(RIGHT, answers=200)
    silent = replace(right.distribution, p=np.eye(21)[np.zeros(hot.tokens, dtype=int)], outcome=np.zeros(hot.tokens, dtype=int))
    cost = fault_scope(with_prefill(hot, silent)).everywhere - fault_scope(with_prefill(hot, right.distribution)).everywhere
    assert 1.5 < cost <= np.log(8.0)


def with_prefill(seen, distribution):
    """The same with the prefill's tokens, and what they were drawn from, as in ``distribution``."""
    prefill = seen.slots.last[np.arange(-1, seen.tokens - 1)]
    parts = {name: getattr(seen.distribution, name).copy() for name in ("p", "core", "outcome")}
    for name, part in parts.items():
        part[prefill] = getattr(distribution, name)[prefill]
    return replace(seen, distribution=replace(seen.distribution, **parts))


def test_with_no_token_elsewhere_nothing_ends():
    seen = found(Rules(target=HOT), answers=4)
    everywhere = np.ones(seen.tokens, dtype=np.bool_)
    held = fault_scope(replace(seen, slots=replace(seen.slots, rejected_before=everywhere, after_rejection=everywhere)))
    assert abs(held.everywhere) < 1e-6
    assert not held.is_after_rejections
