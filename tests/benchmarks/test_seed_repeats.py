"""A quick part of benchmarks/seed_repeats.py: what counting every repeat of a seed costs, and one of each."""

from __future__ import annotations

import pytest

from benchmarks.seed_repeats import COUNTINGS, FACTOR, WORLDS, power, size
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import OPEN_ENDED
from pytest_specdec.prompts.seeding import seeding

EVERY, ONE = COUNTINGS


def test_the_suite_sends_what_is_simulated():
    turns = seeding(OPEN_ENDED).at(Depth.STANDARD).turns
    alone = [turn[0] for turn in turns if len(turn) == 1 and turn[0].seed is not None and "n" not in turn[0].body]
    assert len(alone) == 2 * ONE.alone
    assert len({(request.prompt_key, request.seed) for request in alone}) == ONE.alone == len(ONE.concurrent)


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("world", WORLDS)
def test_one_repeat_of_each_prompt_and_seed_keeps_to_its_level(world):
    assert size(ONE, world, FACTOR, 300)["within"]


@pytest.mark.statistics(quick=True)
def test_every_repeat_of_a_few_does_not_where_they_flip_together():
    assert not size(EVERY, "together", FACTOR, 300)["within"]


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("fault, chance, alarms", [("seed ignored", 0.9, "1.000"), ("neighbours decide", 0.0, "1.000")])
def test_faults_are_found_by_one_of_each(fault, chance, alarms):
    assert power(ONE, fault, chance, 200)["alarms"] == alarms
