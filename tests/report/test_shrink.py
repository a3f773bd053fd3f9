"""Shrinking: nothing is left that the fault does not need, and nothing is lost that it does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.model.workload import Request, Route
from pytest_specdec.report.shrink import minimise, shrink


@given(st.integers(0, 30), st.data())
def test_exactly_what_is_needed_is_left(count, data):
    items = list(range(count))
    needed = set(data.draw(st.sets(st.sampled_from(items), max_size=4))) if items else set()
    asked = []

    def shows(part):
        asked.append(tuple(part))
        return needed <= set(part)

    assert set(minimise(items, shows)) == needed
    assert len(asked) <= count**2 + 3 * count + 1
    assert all(list(part) == sorted(part) for part in asked)


@given(st.integers(1, 16), st.integers(1, 5))
def test_no_single_item_can_be_left_out_of_what_any_three_would_show(count, least):
    def shows(part):
        return len(part) >= min(least, count)

    assert len(minimise(range(count), shows)) == min(least, count)


def test_one_of_many_is_found_in_few_questions():
    asked = []

    def shows(part):
        asked.append(part)
        return 700 in part

    assert minimise(range(1000), shows) == (700,)
    assert len(asked) < 50


def request(name, prompt="one two three four five six", **body):
    return Request(id=name, route=Route.COMPLETIONS, body={"prompt": prompt, "temperature": 0.0, "max_tokens": 64, **body})


OWN = request("own", top_p=1.0, logprobs=3, stop=["x"], min_tokens=2)
OTHERS = [request(f"other-{i}", presence_penalty=i / 10, top_k=4) for i in range(1, 6)]
GROUPS = (*((other,) for other in OTHERS[:3]), (OTHERS[3], OWN, OTHERS[4]))


def shows(groups, own):
    """Need an earlier request, a neighbour's penalty, one parameter, two words and seven tokens."""
    earlier, last = [request for group in groups[:-1] for request in group], groups[-1]
    return (
        any(other.id == "other-2" for other in earlier)
        and any(other.body.get("presence_penalty") == 0.5 for other in last)
        and own in last
        and own.body.get("logprobs") == 3
        and {"two", "five"} <= set(own.body["prompt"].split())
        and own.body["max_tokens"] >= 7
    )


def test_requests_are_left_with_what_the_fault_needs():
    assert shows(GROUPS, OWN)
    groups, own = shrink(GROUPS, OWN, shows)
    assert own.body == {"prompt": " two five", "temperature": 0.0, "max_tokens": 7, "logprobs": 3}
    assert [[each.id for each in group] for group in groups] == [["other-2"], ["own", "other-5"]]
    assert groups[1][1].body == {"prompt": OTHERS[4].body["prompt"], "temperature": 0.0, "max_tokens": 64, "presence_penalty": 0.5}
    assert groups[1][0] is own


@pytest.mark.parametrize("fields, left", [
    ({"prompt": [5, 6, 7, 8]}, {"prompt": [7]}),
    ({"messages": [{"role": "system", "content": "a b"}, {"role": "user", "content": "c d"}]},
     {"messages": [{"role": "system", "content": "a b"}, {"role": "user", "content": " d"}]}),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "d"}]}]}, None),
    ({"input": "c d"}, {"input": " d"}),
    ({"input": [{"role": "user", "content": "c d"}]}, {"input": [{"role": "user", "content": " d"}]}),
])  # fmt: skip
def test_token_ids_and_the_last_message_are_shrunk(fields, left):
    own = Request(id="own", route=Route.CHAT, body=fields)

    def shows(_, own):
        prompt = next(iter(own.body.values()))
        content = prompt[-1]["content"] if isinstance(prompt[-1], dict) else prompt
        return (7 in content if isinstance(content, list) and 7 in content else "d" in content) or content == fields.get("messages", [{}])[
            -1
        ].get("content")

    assert shrink(((own,),), own, shows)[1].body == (left or fields)


def test_where_limits_end_the_search_what_was_reached_still_shows_the_fault():
    asked = []

    def bounded(groups, own):
        asked.append(groups)
        return len(asked) < 12 and shows(groups, own)

    groups, own = shrink(GROUPS, OWN, bounded)
    assert shows(groups, own)
    assert sum(map(len, groups)) < sum(map(len, GROUPS))
