from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.stats.logprob_noise import FLOOR, compare

ALPHA = 1e-3


def z(random, noise, tokens):
    return (noise * random.normal(size=tokens)) ** 2


@pytest.mark.parametrize("noise, tokens, alarms", [(0.05, 400, 0), (0.065, 400, 0), (0.1, 200, 97), (0.15, 100, 97), (0.3, 50, 97)])
def test_tolerance_holds_and_noise_above_it_shows(noise, tokens, alarms):
    """Of 100 runs against a baseline with noise .05: 1.3 times that never alarms."""
    random = np.random.default_rng(1)
    found = sum(compare(z(random, noise, tokens), z(random, 0.05, 400), ALPHA).exceeds for _ in range(100))
    assert found >= alarms if alarms else found == 0


def test_a_few_wild_tokens_show():
    random = np.random.default_rng(2)
    mine = z(random, 0.05, 400)
    mine[::50] = 1.0
    assert compare(mine, z(random, 0.05, 400), ALPHA).exceeds


def test_heavy_tails_of_the_baseline_widen_the_error():
    random = np.random.default_rng(3)
    theirs = z(random, 0.05, 400)
    wild = theirs.copy()
    wild[::40] = 0.5
    assert compare(theirs, wild, ALPHA).error > 2.0 * compare(theirs, theirs, ALPHA).error


def test_where_the_baseline_is_exact_a_hundredth_is_granted():
    found = compare([1e-10] * 200, [0.0] * 200, ALPHA)
    assert (found.granted, found.exceeds) == (FLOOR, False)
    assert compare([0.0] * 200, [0.0] * 200, ALPHA).excess == -np.inf
    assert compare([0.03**2] * 200, [0.0] * 200, ALPHA).exceeds


def test_what_would_have_shown_does():
    random = np.random.default_rng(4)
    promised = compare(z(random, 0.05, 400), z(random, 0.05, 400), ALPHA).shown
    assert 0.065 < promised < 0.1
    found = sum(compare(z(random, promised, 400), z(random, 0.05, 400), ALPHA).exceeds for _ in range(200))
    assert found >= 192
