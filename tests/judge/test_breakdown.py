"""Speed by requests at once and by category: which part is gated, and what is reported of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.speed import breakdown
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import SPECULATING, a_workload, captured, timed

WOBBLE = (1.00, 1.01, 0.99)
FLOOR = Gate(figure="speedup", at_least=1.0, source="tiny.yaml: gates.speedup (default)", boot_sd=0.01)
MEASURED = Gate(figure="speedup", at_least=1.3, source="tiny/here.yaml:7", boot_sd=0.01, workload="chat", pair="draft-k3")
IDS = ("solo-01", "solo-02", *(f"eight-{i:02}" for i in range(8)), *(f"many-{i:02}" for i in range(16)))


def asked(ids):
    return tuple(Request(id=id_, route=Route.CHAT, body={"messages": [{"role": "user", "content": id_}]}) for id_ in ids)


def arm(per_s, *, ttft_s=None):
    """Return three passes; ``per_s`` by the beginning of a request's id."""
    return [
        timed(id_, per_s=per_s[id_.rpartition("-")[0]] * wobble, pass_index=index, ttft_s=(ttft_s or {}).get(id_, 0.1))
        for index, wobble in enumerate(WOBBLE)
        for id_ in IDS
    ]


def under_load(*, solo=180.0, eight=140.0, many=80.0, gates=(FLOOR,), counters=SPECULATING, **fields):
    workload = a_workload(asked(IDS), passes=3, stream=True, timed=True, concurrency=16, waves=(1, 1, 8, 16))
    same = arm(dict.fromkeys(("solo", "eight", "many"), 100.0))
    mine = arm({"solo": solo, "eight": eight, "many": many}, **fields)
    found = captured("speed", mine, same, same, workload=workload, gates=gates, counters=counters, alpha=1e-3)
    return replace(found, control=replace(found.control, boot=2))


def test_each_number_of_clients_has_its_speedup_and_the_break_even_lies_between_two_of_them():
    found = breakdown.by_load(under_load())
    assert [level.clients for level in found.levels] == [1, 8, 16]
    assert [level.speed.ratio for level in found.levels] == pytest.approx([1.8, 1.4, 0.8], rel=1e-6)
    # log 1.4 / (log 1.4 - log 0.8) of the way from log 8 to log 16
    assert found.break_even == pytest.approx(12.0, abs=0.2)
    assert found.summary == "break-even near 12 clients"
    assert found.levels[1].together > 1.3


@pytest.mark.parametrize("speeds, words", [
    ({"many": 110.0}, "faster up to 16 clients"),
    ({"solo": 90.0, "eight": 85.0}, "not faster at one client"),
    ({"solo": 90.0}, "break-even near 12 clients"),
])  # fmt: skip
def test_a_break_even_beyond_what_was_measured_is_not_made_up(speeds, words):
    assert breakdown.by_load(under_load(**speeds)).summary == words


def test_without_answers_of_one_client_nothing_is_said_of_it():
    given = under_load(eight=85.0, many=80.0)
    solo = [one for one in given.speculative.answers if not one.request_id.startswith("solo")]
    found = breakdown.by_load(replace(given, speculative=replace(given.speculative, answers=tuple(solo))))
    assert [level.clients for level in found.levels] == [8, 16]
    assert found.summary == "not faster at 8 clients, the fewest measured"
    assert found.figures["break_even_clients"] == 8.0


def test_without_a_baseline_file_the_speed_under_load_is_reported_and_one_client_s_floor_is_not_held_against_it():
    verdict = speed.judge(under_load(eight=80.0))
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.startswith("8 requests at once: 0.80x")
    assert "reported, without a gate" in verdict.headline
    assert verdict.figures["gates"] == 0.0
    assert verdict.figures["speedup"] == pytest.approx(verdict.figures["speedup_8_clients"])


@pytest.mark.parametrize("eight, outcome", [(160.0, Outcome.PASS), (135.0, Outcome.NOT_DECIDED), (100.0, Outcome.FAIL)])
def test_a_baseline_file_gates_eight_clients(eight, outcome):
    verdict = speed.judge(under_load(eight=eight, gates=(FLOOR, MEASURED)))
    assert verdict.outcome is outcome
    assert verdict.figures["gates"] == 1.0


def test_requests_that_waited_for_others_to_end_are_counted():
    late = {f"many-{i:02}": 30.0 for i in range(8, 16)}
    found = breakdown.by_load(under_load(ttft_s=late))
    assert [level.waited for level in found.levels] == [0, 0, 3 * 8]
    assert "24 answers waited for others to end" in found.lines[-1]


def test_counters_of_all_requests_are_not_taken_for_those_of_a_part():
    verdict = speed.judge(under_load(counters=SPECULATING))
    assert not [line for line in verdict.evidence if "by the server's counters" in line or "contradict" in line]


def test_the_control_is_held_against_the_baseline_at_the_same_number_of_clients():
    assert speed.judge(under_load().as_control()).outcome is Outcome.PASS


def test_categories_are_reported_and_the_whole_is_gated():
    ids = ("math-01", "story-01")
    rates = {"math-01": 200.0, "story-01": 130.0}
    workload = a_workload(asked(ids), passes=3, stream=True, timed=True, concurrency=1)

    def answers(per_s):
        return [timed(id_, per_s=per_s[id_] * wobble, pass_index=index) for index, wobble in enumerate(WOBBLE) for id_ in ids]

    same = answers(dict.fromkeys(ids, 100.0))
    found = captured("speed", answers(rates), same, same, workload=workload, gates=(FLOOR,), counters=SPECULATING, alpha=1e-3)
    verdict = speed.judge(replace(found, control=replace(found.control, boot=2)))
    assert verdict.outcome is Outcome.PASS
    assert verdict.evidence[:3] == ("by category:", "  math       2.00x", "  story      1.30x")
    assert verdict.figures["speedup_math"] == pytest.approx(2.0)
