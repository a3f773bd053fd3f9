"""A quick run of the same servers agrees with the stored table; one that differs in a cell, a little in all, or in names does not."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.detection.agreement import CHANCE, MedianPair, agreement
from benchmarks.detection.targets import HIDDEN, KNOWN

MOST, RUNS, STORED = 2048, 20, 200
MODES = (KNOWN, HIDDEN)


def cell(fault, alarms, *, right=10, listed=True):
    """A cell in which every way of judging alarms after ``alarms`` tokens."""
    tokens = np.sort(np.where(alarms <= MOST, alarms, inf) if listed else alarms)
    end = {"named": 10, "family": right} if listed else {"named": 60, "family": 60}
    median, late = (float(np.quantile(tokens, share, method="higher")) for share in (0.5, 0.99))
    figures = {"median": median, "late": late, "at_alarm": end} | ({"alarms": tokens.tolist()} if listed else {})
    return {"fault": fault, "kind": "model", "runs": len(tokens), "ways": dict.fromkeys(MODES, figures)}


def tokens(random, runs, middle):
    """Alarm times as they come: whole tokens, skewed, medians from ten to beyond what a quick run looks at."""
    return np.ceil(random.lognormal(np.log(middle), 0.5, runs))


def tables(seed, *, factor=1.0, only=None, right=10):
    """A quick run and a stored one of 60 cells; of the former alarms come ``factor`` times as late, in one cell only where one is named."""
    random, middles = np.random.default_rng(seed), np.geomspace(10, 6000, 60)
    quick = [
        cell(f"f{i}", tokens(random, RUNS, middle * (factor if only in (None, i) else 1.0)), right=right)
        for i, middle in enumerate(middles)
    ]
    return quick, [cell(f"f{i}", tokens(random, STORED, middle), listed=False) for i, middle in enumerate(middles)]


def unmet(quick, stored):
    return [target.words for target in agreement(quick, stored, MOST) if not target.met]


@pytest.mark.nightly
def test_the_same_servers_disagree_as_seldom_as_stated():
    alarms = sum(bool(unmet(*tables(seed))) for seed in range(200))
    assert binomtest(alarms, 200, CHANCE, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_small_change_in_all_cells_shows_in_their_sum(factor):
    for seed in range(5):
        assert len([words for words in unmet(*tables(seed, factor=factor)) if words.startswith("runs that alarm")]) == len(MODES)


@pytest.mark.parametrize("only, factor, words", [(20, 4.0, "f20 (model)"), (20, 0.25, "f20 (model)"), (59, 0.05, "f59 (model)")])
def test_a_large_change_in_one_cell_is_named_with_its_ratio(only, factor, words):
    (target,) = (target for target in agreement(*tables(1, factor=factor, only=only), MOST) if target.words.startswith("median"))
    assert not target.met
    assert len(target.missed) == len(MODES)
    assert all(line.startswith(words) and " = " in line for line in target.missed)


def test_names_that_are_wrong_more_often_are_seen():
    assert unmet(*tables(2, right=1)) == ["right family at the alarm as often as stored"]


def test_a_fault_that_is_not_stored_has_to_be_measured():
    quick, stored = tables(3)
    assert unmet(quick, stored[1:]) == ["cells that are stored"]


def pair(alarms, median):
    return MedianPair(cell="f", mode=KNOWN, alarms=tuple(sorted(alarms)), median=median, stored_runs=STORED, most=MOST)


@pytest.mark.parametrize("alarms, median, agrees", [
    ([100.0] * 20, 100.0, True),
    ([90.0] * 20, 100.0, False),
    ([110.0] * 20, 100.0, False),
    ([90.0] * 10 + [110.0] * 10, 100.0, True),
    ([inf] * 20, 100.0, False),
    ([inf] * 20, 3000.0, True),
    ([inf] * 20, inf, True),
    ([90.0] + [inf] * 19, inf, True),
    ([90.0] * 20, inf, False),
    ([90.0] * 20, 3000.0, False),
])  # fmt: skip
def test_ties_and_silent_runs_count_for_neither_side(alarms, median, agrees):
    assert pair(alarms, median).agrees(1e-4) == agrees
    assert pair(alarms, median).words(1e-4)
