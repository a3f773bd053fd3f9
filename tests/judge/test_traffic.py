"""Traffic: the company that a request had is counted by the clock, where there are times."""

from __future__ import annotations

import pytest

from pytest_specdec.judge.drafting.traffic import drafted_answers
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import answer, requests


def crowds(spans, concurrency=8):
    """Return of each answer, sent and done at the times given, the most that surely were in flight beside it."""
    workload = Workload(name="plain", version=1, requests=requests(len(spans)), concurrency=concurrency)
    said = [
        answer(request.id, range(12), timing=span and Timing(sent_s=span[0], first_s=None, done_s=span[1]))
        for request, span in zip(workload.requests, spans, strict=True)
    ]
    named = [
        sorted(kind for kind in each.kinds if kind.startswith("requests with more than"))
        for each in drafted_answers(a_run(a_part(workload, said, said)))
    ]
    return [[int(kind.split()[-3]) for kind in kinds] for kinds in named]


@pytest.mark.parametrize("spans, company", [
    ([(0, 9), (0, 9), (0, 9)], [[1, 2]] * 3),
    ([(0, 9), (10, 19)], [[], []]),
    ([(0, 9), (0, 3), (0, 3)], [[], [1, 2], [1, 2]]),
    ([(0, 9), (0, 9), (0, 5)], [[1], [1], [1, 2]]),
])  # fmt: skip
def test_company_is_what_a_request_had_for_most_of_its_time(spans, company):
    assert crowds(spans) == company


def test_without_times_company_is_what_the_workload_says():
    assert crowds([None, None]) == [[1, 2, 4], [1, 2, 4]]
