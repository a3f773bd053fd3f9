"""Structured output: draft tokens obey the grammar like any other token.

A pass means: as many valid documents as from the baseline. At temperature 0 also the baseline's own tokens, up to the first near-tie.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import JSON_TASKS

DOCUMENTS = JSON_TASKS.structured(version=2, max_tokens=128, concurrency=16, top_tokens=5, take={Depth.SMOKE: 8, Depth.STANDARD: 12})
# Short, at temperature 1, every second one without a seed: 90 of them rule out that 5 % are invalid, 460 that 1 % are.
DRAWN = JSON_TASKS.structured_draws(
    temperature=1.0,
    max_tokens=48,
    requests=460,
    concurrency=32,
    take={Depth.SMOKE: 8, Depth.STANDARD: 90},
)


@pytest.mark.specdec(DOCUMENTS, family="structured")
def test_documents_obey_their_schema_as_often_as_the_baselines(captured, check):
    check(judge.structured.judge(captured))


@pytest.mark.specdec(DRAWN, family="structured")
def test_drawn_documents_obey_their_schema_too(captured, check):
    check(judge.structured.judge(captured))
