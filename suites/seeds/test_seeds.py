"""Seeds: the same one gives the same answer again, and everything else gives other answers.

A pass means: under a seed the speculative server repeats itself as reliably as the baseline, alone and under concurrency; other seeds,
requests without one and the choices of one request give different answers. Its seeded answers need not be the baseline's.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import OPEN_ENDED
from pytest_specdec.prompts.seeding import seeding

SEEDS = seeding(OPEN_ENDED)


@pytest.mark.specdec(SEEDS, family="seeds")
def test_one_seed_repeats_and_others_differ(captured, check):
    check(judge.seeds.judge(captured))
