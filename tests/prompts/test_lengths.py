"""The requests about ends: every place of two windows is asked for, and a shallow depth has one of each kind."""

from __future__ import annotations

import pytest

from pytest_specdec.judge.answer_end import limits_of
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.lengths import LIMITS, STOPS


@pytest.mark.parametrize("workload", [STOPS, LIMITS])
def test_ids_are_unique_and_nothing_is_drawn(workload):
    assert len({request.id for request in workload.requests}) == len(workload.requests)
    assert not any(request.draws_unseeded for request in workload.requests)


def test_both_together_stay_within_their_budget():
    assert sum(len(workload.requests) for workload in (STOPS, LIMITS)) <= 76
    assert sum(len(workload.at(Depth.SMOKE).requests) for workload in (STOPS, LIMITS)) <= 16


def test_limits_are_of_every_place_in_two_windows_of_three_drafts():
    limits = {limits_of(request).most for request in LIMITS.requests if request.id.startswith("run")}
    assert limits == set(range(1, 2 * 4 + 2))


def test_every_min_tokens_beside_a_stop_string_has_a_limit_that_shows_its_text():
    limited = {request.body["max_tokens"] for request in STOPS.requests if limits_of(request).kind.value == "plain"}
    least = {limits_of(request).least for request in STOPS.requests if limits_of(request).stop_strings}
    assert least - {0} <= limited


def test_a_shallow_depth_has_stops_limits_ids_and_a_plain_answer_to_hold_them_against():
    kinds = {(bool(r.stop_strings), bool(r.stop_ids), r.keeps_stop, bool(r.least)) for r in map(limits_of, STOPS.at(Depth.SMOKE).requests)}
    assert len(kinds) == 5
    assert [request.id for request in STOPS.at(Depth.SMOKE).requests if request.id.endswith("plain")] == ["run-plain", "copy-plain"]
