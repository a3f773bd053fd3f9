"""Upgrades of engines that need a GPU, through their doubles: each changed behaviour is attributed, in one run and against a stored one."""

from __future__ import annotations

import pytest

from benchmarks.double_upgrades import follow
from tests.engines.doubles.upgrades import UPGRADES


@pytest.mark.faults
@pytest.mark.parametrize("name", UPGRADES)
def test_a_changed_behaviour_is_attributed_both_ways(name, tmp_path):
    rows = follow(name, tmp_path)
    assert len(rows) == 2
    assert all(row["right"] for row in rows), rows
