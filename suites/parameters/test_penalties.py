"""Penalties: every token so far counts at every draft position, earlier draft tokens included.

A pass means: with the request's penalties applied, the baseline would have chosen every token of the speculative server.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

PENALISED = ALL.greedy(
    max_tokens=64,
    presence_penalty=0.8,
    frequency_penalty=0.4,
    top_tokens=20,
    concurrency=16,
    take={Depth.SMOKE: 10, Depth.STANDARD: 12},
)


@pytest.mark.specdec(PENALISED, family="parameters")
def test_penalties_count_at_every_draft_position(captured, check):
    check(judge.parameters.judge(captured))
