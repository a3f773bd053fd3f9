"""Long answers among the short ones of a workload."""

from __future__ import annotations

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import CHAT, CODE
from pytest_specdec.prompts.late import with_late

SHORT = CHAT.greedy(take={Depth.SMOKE: 2, Depth.STANDARD: 5})
MIXED = with_late(SHORT, CODE.after(2).greedy(max_tokens=512), standard=3)


def test_standard_depth_sends_some_long_answers_smoke_none_and_deep_all():
    long = {depth: [r.id for r in MIXED.at(depth).requests if r.body["max_tokens"] == 512] for depth in Depth}
    assert long[Depth.SMOKE] == []
    assert long[Depth.STANDARD] == ["late-code-03", "late-code-04", "late-code-05"]
    assert len(long[Depth.DEEP]) == len(CODE.items) - 2


def test_the_short_ones_stay_as_they_are_and_the_long_ones_begin_early():
    ids = [request.id for request in MIXED.at(Depth.STANDARD).requests]
    assert ids.index("late-code-03") == 2
    deepest = [request.id for request in MIXED.at(Depth.DEEP).requests]
    assert not deepest[-1].startswith("late-"), "a long answer that begins last is waited for alone"
    for depth in Depth:
        assert [r for r in MIXED.at(depth).requests if not r.id.startswith("late-")] == list(SHORT.at(depth).requests)


def test_stored_acceptance_of_the_short_ones_is_still_compared():
    assert MIXED.traffic_digest == SHORT.traffic_digest


def test_ids_stay_unique_where_both_ask_the_same_prompt():
    both = with_late(CODE.greedy(take={Depth.SMOKE: 1, Depth.STANDARD: 2}), CODE.greedy(max_tokens=512), standard=1)
    assert len({request.id for request in both.requests}) == 2 * len(CODE.items)
