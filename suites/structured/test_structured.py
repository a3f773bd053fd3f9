"""Answers bound to a schema: drafted tokens have to obey the grammar like any other.

A pass means that the speculative server's documents are valid as often as the baseline's.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import JSON_TASKS

DOCUMENTS = JSON_TASKS.structured(max_tokens=128, concurrency=16, take={Depth.SMOKE: 8, Depth.STANDARD: 12})


@pytest.mark.specdec(DOCUMENTS, family="structured")
def test_documents_obey_their_schema_as_often_as_the_baselines(captured, check):
    check(judge.structured.judge(captured))
