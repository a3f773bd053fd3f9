from __future__ import annotations

import json
from itertools import combinations, product

from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import parameters
from pytest_specdec.prompts.parameters import FACTORS


def value(body, name):
    listed = "top_logprobs" if "messages" in body and name == "logprobs" else name
    return body.get(listed)


def test_every_two_values_of_two_parameters_meet_at_standard_depth():
    bodies = [request.body for request in parameters.pairs(105, take={Depth.STANDARD: 24}).at(Depth.STANDARD).requests]
    for one, other in combinations(FACTORS, 2):
        for a, b in product(FACTORS[one], FACTORS[other]):
            meet = any(value(body, one) == a and value(body, other) == b for body in bodies)
            assert meet is not ((one, a, other, b) == ("temperature", 0.0, "n", 2)), (one, a, other, b)


def test_requests_have_ids_of_their_own_and_doses_name_their_parameter():
    for workload in (parameters.pairs(40), parameters.doses()):
        ids = [request.id for request in workload.requests]
        assert len(set(ids)) == len(ids)
    for request in parameters.doses().requests:
        assert request.id.split("#")[0] in request.body


def test_no_dose_is_sent_twice():
    """Smoke's prompts are also the first of a later dose; a repeated one is no new trial."""
    sent = [json.dumps([request.route, request.body], sort_keys=True) for request in parameters.doses().requests]
    assert len(sent) == len(set(sent))


def test_smoke_has_a_dose_of_six_parameters():
    smoke = parameters.doses(take={Depth.SMOKE: 6}).at(Depth.SMOKE)
    assert len({request.id.split("#")[0] for request in smoke.requests}) == 6


def test_a_row_asks_again_on_another_prompt_once_all_have_been_asked():
    requests = parameters.pairs(40).requests
    asked = [{name: value for name, value in request.body.items() if name not in {"messages", "prompt"}} for request in requests]
    again = next(i for i in range(1, 40) if asked[i]["max_tokens"] == asked[0]["max_tokens"] and asked[i].keys() == asked[0].keys())
    assert requests[again].prompt_key != requests[0].prompt_key
