"""Simulated nodes of a real Ray, once: what `python -m benchmarks.ray_nodes` repeats and measures."""

from __future__ import annotations

import pytest

from benchmarks import ray_nodes

pytest.importorskip("ray", reason="Ray is not here: pip install 'pytest-specdec[ray]'")


@pytest.mark.nightly
def test_a_lost_node_costs_nothing_that_had_arrived_and_a_killed_session_leaves_nothing():
    rows = list(ray_nodes.measure(1, nodes=()))
    assert [row["table"] for row in rows] == ["A node is killed", "The session is killed"]
    assert all(row["as it has to be"] for row in rows), rows
