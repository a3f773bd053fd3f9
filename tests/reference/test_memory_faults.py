"""Faults of the prefix cache and of preemption do in a server what their rows say, and nothing where neither comes into play."""

from __future__ import annotations

import threading

import pytest

from tests.reference.asgi_client import GREEDY, served

ASKED = {"temperature": 0, "max_tokens": 24, "return_token_ids": True, "ignore_eos": True}
ALIKE = {"prompt": "Count them:" + " the" * 80 + " and then"}
PART = {"prompt": "def main():\n    for part in parts:\n        print(part.name, part.price, part.count)\n    return parts\n\n\ndef"}
LONG = {"prompt": [*range(300, 800)]}


def ids(answer):
    return answer["choices"][0]["token_ids"]


def second(client, prompt, *between):
    """The first and second answers to a prompt, with others in between."""
    first, *_, last = [client.complete(ASKED | each) for each in (prompt, *between, prompt)]
    return first, last


@pytest.fixture(scope="module")
def healthy():
    with served(GREEDY, tells_cached=True, spec_decode_metrics="detailed") as client:
        yield client


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "fault, prompt, between",
    [
        ("prefix-without-parent", ALIKE, ()),
        ("prefix-partial-block", PART, ({"prompt": [*range(900, 960)]},)),
        ("prefix-damaged-by-length", PART, (LONG,)),
        ("warm-accept-all", PART, ()),
    ],
)
def test_the_second_answer_is_wrong_and_the_first_is_right(fault, prompt, between, healthy):
    with served(GREEDY, fault=fault) as client:
        first, last = second(client, prompt, *between)
    right, again = second(healthy, prompt, *between)
    assert ids(first) == ids(right) == ids(again)
    assert ids(last) != ids(right)


def test_one_token_too_many_is_counted_as_cached(healthy):
    with served(GREEDY, fault="prefix-off-by-one", tells_cached=True) as client:
        _, last = second(client, PART)
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] % 16 == 1
    assert second(healthy, PART)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] % 16 == 0


def test_half_of_the_cached_blocks_are_reused_and_the_answer_is_right(healthy):
    with served(GREEDY, fault="prefix-half-reused", tells_cached=True) as client:
        _, last = second(client, ALIKE)
    _, right = second(healthy, ALIKE)
    assert ids(last) == ids(right)
    halved, whole = (answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (last, right))
    assert (halved, whole) == (whole // 32 * 16, 80)


def test_a_second_answer_of_one_token():
    with served(GREEDY, fault="warm-empty") as client:
        assert [len(ids(answer)) for answer in second(client, PART)] == [24, 1]


def acceptance(answer):
    return answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]


@pytest.mark.parametrize("fault, between", [("warm-draft-ahead", ()), ("drafter-keeps-long-request", (LONG,))])
def test_drafts_die_and_tokens_stay_right(fault, between, healthy):
    with served(GREEDY, fault=fault, spec_decode_metrics="detailed") as client:
        first, last = second(client, PART, *between)
    assert ids(first) == ids(last) == ids(second(healthy, PART)[0])
    assert acceptance(last) < acceptance(first) / 2


def test_cached_tokens_that_are_none_or_too_many():
    with served(GREEDY, fault="prefix-defeated", tells_cached=True) as client:
        assert "prompt_tokens_details" not in second(client, PART)[1]["usage"]
    with served(GREEDY, fault="prefix-overcounted", tells_cached=True) as client:
        usage = second(client, PART)[1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"]


SMALL = {"max_model_len": 160, "blocks": 11}


def together(client, **body):
    return client.complete(*(ASKED | {"prompt": [*range(300 + 40 * i, 325 + 40 * i)], "max_tokens": 70} | body for i in range(6)))


@pytest.mark.parametrize(
    "fault, body", [("preempted-accept-all", {}), ("preempted-penalties-forgotten", {"frequency_penalty": 1.5, "presence_penalty": 1.5})]
)
def test_preempted_answers_go_wrong_and_the_first_to_arrive_does_not(fault, body, healthy):
    with served(GREEDY, fault=fault, **SMALL) as client:
        wrong = list(map(ids, together(client, **body)))
    right = list(map(ids, together(healthy, **body)))
    assert wrong != right
    assert wrong[0] == right[0]


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault", ["preempted-token-lost", "preempted-token-repeated", "preempted-starts-over"])
def test_a_stream_loses_or_repeats_tokens(fault):
    body = ASKED | {"prompt": [*range(500, 525)], "max_tokens": 70, "stream_options": {"include_usage": True}}
    with served(GREEDY, fault=fault, **SMALL) as client:
        beside = threading.Thread(target=lambda: together(client))
        beside.start()
        chunks = client.stream("/v1/completions", body)
        beside.join(60)
    streamed = sum(len(choice["token_ids"]) for chunk in chunks for choice in chunk["choices"])
    assert (streamed < 70) if fault == "preempted-token-lost" else (streamed > 70)


def test_a_preempted_request_gets_a_500():
    with served(GREEDY, fault="preempted-refused", **SMALL) as client, pytest.raises(AssertionError, match="gave this request up"):
        together(client)
