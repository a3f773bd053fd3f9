"""What the suites send: traffic as in production beside traffic with seeds, and answers of every length."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pytest_specdec.capture.schedule import Wanted
from pytest_specdec.model.workload import Depth, Family

SUITES = Path(__file__).parents[1] / "suites"


def wanted():
    """Return every workload of the suites with the family that judges it."""
    found = []
    for path in sorted(SUITES.glob("*/test_*.py")):
        spec = importlib.util.spec_from_file_location(f"suites_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for value in vars(module).values():
            marks = [mark for mark in getattr(value, "pytestmark", ()) if mark.name == "specdec"]
            found += [Wanted(workload=mark.args[0], family=Family(mark.kwargs["family"])) for mark in marks]
    return found


def drawn(workload):
    """Whether every request draws its tokens."""
    return all(request.body.get("temperature", 1.0) > 0 for request in workload.requests)


@pytest.fixture(scope="module")
def sampled():
    return [one.workload for one in wanted() if drawn(one.workload)]


def test_half_of_the_sampled_workloads_bring_no_seeds(sampled):
    unseeded = [workload for workload in sampled if all(request.seed is None for request in workload.requests)]
    assert len(unseeded) >= len(sampled) / 2 > 0


def test_no_workload_mixes_draws_with_and_without_seeds(sampled):
    """Requests of one workload are in flight together; an engine leaves its fast sampler while one of them has a seed."""
    for workload in sampled:
        assert len({request.seed is None for request in workload.requests}) == 1, workload


def test_a_prompt_is_asked_again_with_and_without_seeds(sampled):
    sent = [workload.at(Depth.STANDARD) for workload in sampled if workload.take.get(Depth.STANDARD) and not workload.survey]
    again = [workload for workload in sent if len(workload.prompts) < len(workload.requests)]
    assert any(request.seed is None for workload in again for request in workload.requests)


def test_some_answers_are_long_enough_for_faults_that_begin_late(sampled):
    late = sum(max(0, request.body["max_tokens"] - 64) for workload in sampled for request in workload.at(Depth.STANDARD).requests)
    assert late >= 2_000
