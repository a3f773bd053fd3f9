"""Company: waves of one to 32, each request with a word of its own."""

from __future__ import annotations

from pytest_specdec.model.workload import Depth, Route
from pytest_specdec.prompts import ALL
from pytest_specdec.prompts.company import company, marker


def sizes(depth):
    return [len(turn) for turn in company(ALL).at(depth).turns]


def test_requests_are_alone_first_and_then_in_company_of_every_size():
    assert sizes(Depth.SMOKE) == [1, 1, 1, 1, 3, 8]
    assert sizes(Depth.STANDARD) == [1, 1, 1, 1, 3, 8, 2, 4, 5, 5, 16, 6, 3, 12]
    assert {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32} == set(sizes(Depth.DEEP))


def test_twelve_requests_of_one_length_stay_twelve_up_to_their_end():
    wave = company(ALL).at(Depth.STANDARD).turns[-1]
    assert {(request.body["max_tokens"], request.abort_after) for request in wave} == {(32, None)}


def test_every_prompt_has_a_word_that_no_other_one_has():
    requests = company(ALL).requests
    words = [marker(number) for number in range(len(requests))]
    assert len(set(words)) == len(words)
    assert all(word in request.prompt_key for word, request in zip(words, requests, strict=True))


def test_logprobs_are_asked_for_in_the_words_of_each_route():
    asking = [request for request in company(ALL).requests if "logprobs" in request.body]
    assert {(request.route, request.body["logprobs"], request.body.get("top_logprobs")) for request in asking} == {
        (Route.CHAT, True, 2),
        (Route.COMPLETIONS, 2, None),
    }


def test_clients_leave_beside_others_that_stay():
    for turn in company(ALL).turns:
        leaving = [request for request in turn if request.abort_after is not None]
        assert len(leaving) < len(turn)
        assert all(request.abort_after >= 2 for request in leaving)
    assert sum(request.abort_after is not None for request in company(ALL).at(Depth.STANDARD).requests) == 2


def test_a_seed_never_shares_its_wave_with_an_unseeded_draw():
    for turn in company(ALL).turns:
        draws = [request for request in turn if request.body["temperature"] > 0]
        assert len({request.seed is None for request in draws}) <= 1


def test_log_probabilities_are_asked_for_in_the_way_of_the_route():
    asked = [request for request in company(ALL).requests if "-logprobs-" in request.id]
    assert {(request.route.value, type(request.body["logprobs"])) for request in asked} == {("chat", bool), ("completions", int)}
