"""Draft profile: rates per step by traffic, context, temperature and position, from windows or from counters."""

from __future__ import annotations

import pytest

from pytest_specdec.judge.drafting.profile import figures, lines, profile
from pytest_specdec.model.transcript import SpecCounters, Usage
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import answer, requests


def a_workload(name, windows, drafted, counters=None, concurrency=8, **body):
    workload = Workload(name=name, version=1, requests=requests(2, **body), concurrency=concurrency)
    usage = Usage(prompt_tokens=126, completion_tokens=9)
    said = [answer(request.id, range(9), windows=windows, drafted=drafted, usage=usage) for request in workload.requests]
    return a_part(workload, said, said, family="speed", counters=counters)


SHOWN = a_workload("shown", (1, 4, 2, 1, 2), (3, 3, 0, 3))
COUNTS = SpecCounters(drafts=10, draft_tokens=20, accepted_tokens=6, accepted_per_position=(5, 1))
COUNTED = a_workload("counted", None, None, COUNTS, 1, temperature=0.7)


def test_steps_are_counted_in_every_group_that_they_belong_to():
    tallies = profile(a_run(SHOWN))
    assert list(tallies) == ["all traffic", "8 in flight", "context up to 128", "context up to 256", "temperature 0"]
    assert (tallies["all traffic"].steps, tallies["all traffic"].accepted) == (4, 8)
    assert (tallies["context up to 128"].accepted, tallies["context up to 256"].accepted) == (6, 2)
    assert tallies["all traffic"].shares == (1.0, 0.5, 0.5)


def test_counters_stand_in_for_windows_by_workload():
    tallies = profile(a_run(SHOWN, COUNTED))
    assert tallies["1 in flight"].steps == tallies["temperature up to 1"].steps == 10
    assert tallies["all traffic"].steps == 14
    assert lines(tallies)[1] == "1 in flight: 10 steps, 2.00 drafted and 0.60 accepted per step with a draft; by position 50% 10%"


def test_a_workload_of_several_temperatures_is_counted_for_none_of_them():
    mixed = a_workload("mixed", None, None, COUNTS)
    hot = requests(1, temperature=1.5)
    several = a_part(
        Workload(name="mixed", version=1, requests=(*mixed.workload.requests[1:], *hot)),
        [answer()],
        [answer()],
        family="speed",
        counters=COUNTS,
    )
    assert list(profile(a_run(several))) == ["all traffic", "8 in flight"]


def test_figures_have_the_rates_of_every_group_and_the_shares_of_every_position():
    got = figures(profile(a_run(SHOWN)))
    assert got["drafted_per_step_8_in_flight"] == 3.0
    assert got["accepted_per_step_context_up_to_256"] == 1.0
    assert [got[f"accepted_at_position_{position}"] for position in (1, 2, 3)] == [1.0, 0.5, 0.5]


@pytest.mark.parametrize("part", [a_workload("none", None, None), a_workload("idle", (1, 1, 1), (0, 0))])
def test_without_steps_there_is_nothing_to_show(part):
    assert (profile(a_run(part)), figures(profile(a_run(part)))) == ({}, {})


def test_numbers_are_sorted_as_numbers():
    parts = [a_workload(f"w{most}", (1, 2, 2), (3, 3), concurrency=most) for most in (16, 4, 32)]
    assert [name for name in profile(a_run(*parts)) if "flight" in name] == ["4 in flight", "16 in flight", "32 in flight"]


def test_contexts_and_temperatures_beyond_the_last_border_have_groups_of_their_own():
    workload = Workload(name="far", version=1, requests=requests(1, temperature=1.5))
    said = [answer("chat-00", range(9), windows=(1, 2, 2), drafted=(3, 3), usage=Usage(prompt_tokens=40000, completion_tokens=5))]
    assert {"context above 32768", "temperature above 1"} <= profile(a_run(a_part(workload, said, said, family="speed"))).keys()
