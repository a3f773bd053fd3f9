"""Penalties: what an answer already holds counts at every draft position, drafted tokens before it included.

A pass means that the baseline, with the penalties of the request laid over its own distribution, would have chosen every token that the
speculative server emitted.
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
