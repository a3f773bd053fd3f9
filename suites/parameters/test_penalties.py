"""Penalties: every token so far counts at every draft position, earlier draft tokens included.

A pass means: with the request's penalties applied, the baseline would have chosen every token of the speculative server.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import ALL

DISCOURAGED = ALL.greedy(
    max_tokens=64,
    presence_penalty=0.8,
    frequency_penalty=0.4,
    top_tokens=20,
    concurrency=16,
    take={Depth.SMOKE: 13, Depth.STANDARD: 16},
)
ENCOURAGED = ALL.greedy(presence_penalty=-0.4, frequency_penalty=-0.2, max_tokens=64)
PENALISED = replace(
    DISCOURAGED,
    version=2,
    requests=tuple(
        (less, more)[index // 12 % 2] for index, (less, more) in enumerate(zip(DISCOURAGED.requests, ENCOURAGED.requests, strict=True))
    ),
)
"""Every other dozen encourages repetition: drafters that copy from the text draft nothing where it is discouraged."""


@pytest.mark.specdec(PENALISED, family="parameters")
def test_penalties_count_at_every_draft_position(captured, check):
    check(judge.parameters.judge(captured))
