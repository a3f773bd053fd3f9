"""A pass falls into parts, between which other arms may be asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_specdec.capture.workload_runner import WorkloadRunner


class Arm:
    restarts, running, aside = 0, True, 0


@pytest.mark.parametrize("concurrency, waves, sizes", [(1, (), [1, 1, 1, 1, 1]), (4, (), [5]), (4, (1, 3), [1, 3, 1])])
def test_one_client_may_be_left_behind_every_answer_and_several_when_all_are_answered(workload, concurrency, waves, sizes):
    made = workload("timed", requests=5, timed=True, concurrency=concurrency, waves=waves)
    runner = WorkloadRunner(Arm(), made, name="baseline", boot=0, deadlines=SimpleNamespace(limit_s=60.0), reporter=None)
    assert [len(part) for part in runner.parts] == sizes
    assert tuple(request for part in runner.parts for request in part) == made.requests
