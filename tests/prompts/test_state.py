"""State's prompts: what an id says came before did, and heads and tails are crossed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import state

WORKLOAD = state.in_order(take={Depth.SMOKE: 10})
PHASES = {}
for _request in WORKLOAD.requests:
    PHASES.setdefault(_request.id.partition("/")[0], []).append(_request)


def contents(phase):
    return [request.body.get("prompt") or request.body["messages"] for request in PHASES[phase]]


def test_requests_go_one_at_a_time_in_one_turn_and_in_order():
    assert WORKLOAD.concurrency == 1
    assert WORKLOAD.turns == (WORKLOAD.requests,)
    assert len({request.id for request in WORKLOAD.requests}) == len(WORKLOAD.requests) <= 50


def test_phases_that_repeat_ask_what_was_asked_before_and_others_do_not():
    seen = Counter()
    for request in WORKLOAD.requests:
        repeats = request.id.partition("/")[0] in {"warm", "again", "after-long", "last", "after-left"} or request.id == "turn/first"
        assert (seen[request.asks] > 0) is repeats, request.id
        seen[request.asks] += 1


def test_a_client_leaves_a_sampled_stream_right_before_each_greedy_request_of_that_phase():
    pairs = [pair for pair in pairwise(WORKLOAD.requests) if pair[1].id.startswith("after-left/")]
    assert len(pairs) == len(PHASES["left"]) == 4
    assert all(left.abort_after and not left.greedy and later.greedy for left, later in pairs)


def test_smoke_repeats_prompts_and_crosses_heads_with_tails():
    phases = Counter(request.id.partition("/")[0] for request in WORKLOAD.at(Depth.SMOKE).requests)
    assert phases == {"cold": 5, "warm": 3, "crossed": 2}


def test_heads_are_the_same_words_in_two_orders():
    one, other = (next(r.body["prompt"] for r in WORKLOAD.requests if r.id == name) for name in ("cold/one-same", "crossed/other-same"))
    assert (one != other, sorted(one.replace(".", ",").split())) == (True, sorted(other.replace(".", ",").split()))


def test_shared_prompts_begin_like_an_earlier_one_and_end_each_in_its_own_way():
    base = next(request.body["prompt"] for request in WORKLOAD.requests if request.id == "cold/words")
    for request in PHASES["shared"]:
        count = int(request.id.partition("/")[2])
        words = request.body["prompt"].split()
        assert words[:count] == base.split()[:count]
        assert words[count] != base.split()[count]
    assert len(set(contents("shared"))) == len(PHASES["shared"])


def test_patterns_go_on_as_they_began():
    first = next(request.body["prompt"] for request in WORKLOAD.requests if request.id == "cold/pattern")
    assert all(content.startswith(first) for content in contents("pattern"))
