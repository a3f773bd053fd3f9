"""What the suites send: traffic as in production beside traffic with seeds, and answers of every length."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pytest_specdec.capture.planner import SelectedWorkload
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.stats import proportions

SUITES = Path(__file__).parents[1] / "suites"


def wanted():
    """Return every workload of the suites with the family that judges it."""
    found = []
    for path in sorted(path for family in Family for path in (SUITES / family).glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(f"suites_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        marks = [mark for value in vars(module).values() for mark in getattr(value, "pytestmark", ()) if mark.name == "specdec"]
        found += [SelectedWorkload(workload=mark.args[0], family=Family(mark.kwargs["family"])) for mark in marks]
    return found


def drawn(workload):
    """Whether every request draws its tokens."""
    return all(request.body.get("temperature", 1.0) > 0 for request in workload.requests)


@pytest.fixture(scope="module")
def sampled():
    """What is drawn as in production, once each; what is asked about seeds has one nearly everywhere."""
    return list({one.workload.name: one.workload for one in wanted() if drawn(one.workload) and one.family is not Family.SEEDS}.values())


@pytest.mark.parametrize("depth", [Depth.STANDARD, Depth.DEEP])
def test_about_half_of_what_is_drawn_brings_no_seed(sampled, depth):
    requests = [request for workload in sampled for request in workload.at(depth).requests]
    assert 0.4 < sum(request.draws_unseeded for request in requests) / len(requests) < 0.6
    whole = [workload for workload in sampled if all(request.draws_unseeded for request in workload.requests)]
    assert len(whole) >= 2


def test_no_request_with_a_seed_is_in_flight_with_one_that_draws_without(sampled):
    """An engine leaves its fast sampler while one request of the batch has a seed; a server is asked one workload at a time."""
    for workload in sampled:
        for turn in workload.turns:
            assert len({request.draws_unseeded for request in turn}) == 1, workload


def test_documents_are_drawn_often_enough_to_rule_out_what_is_said():
    (documents,) = [one.workload for one in wanted() if one.family is Family.STRUCTURED and drawn(one.workload)]
    counts = {depth: len(documents.at(depth).requests) for depth in (Depth.STANDARD, Depth.DEEP)}
    assert counts == {Depth.STANDARD: 90, Depth.DEEP: 460}
    assert proportions.ruled_out(90) < 0.05
    assert proportions.ruled_out(460) < 0.01


def test_every_rung_of_the_ladder_is_sent_at_standard_depth():
    (climbed,) = [one.workload for one in wanted() if one.family is Family.LIVENESS]
    sent = climbed.at(Depth.STANDARD).requests
    assert (len(sent), sent[-1].id) == (24, "live-plain-again")


def test_a_prompt_is_asked_again_with_and_without_seeds(sampled):
    sent = [workload.at(Depth.STANDARD) for workload in sampled if workload.take.get(Depth.STANDARD)]
    again = [workload for workload in sent if len({request.asks for request in workload.requests}) < len(workload.requests)]
    assert any(request.seed is None for workload in again for request in workload.requests)


def test_some_answers_are_long_enough_for_faults_that_begin_late(sampled):
    late = sum(max(0, request.body["max_tokens"] - 64) for workload in sampled for request in workload.at(Depth.STANDARD).requests)
    assert late >= 2_000


@pytest.mark.parametrize("family", [Family.GREEDY, Family.LOGPROBS])
def test_tokens_are_judged_one_by_one_until_position_512(family):
    """What begins late in an answer, as a stale cache does, is seen by none that ends at 128 tokens."""
    limits = [r.body["max_tokens"] for one in wanted() if one.family is family for r in one.workload.at(Depth.STANDARD).requests]
    assert limits.count(512) >= 2
