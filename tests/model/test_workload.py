from __future__ import annotations

import dataclasses

import pytest

from pytest_specdec.model.grammar import Grammar, GrammarKind
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.model.workload import Depth, Request, Route, Workload


def a_workload(**changes: object) -> Workload:
    requests = tuple(Request(id=f"r{i}", route=Route.COMPLETIONS, body={"prompt": "x" * i, "max_tokens": 4}) for i in range(5))
    return dataclasses.replace(Workload(name="w", version=1, requests=requests, take={Depth.SMOKE: 2}), **changes)


def test_a_depth_takes_the_first_requests():
    assert [r.id for r in a_workload().at(Depth.SMOKE).requests] == ["r0", "r1"]


def test_requests_are_met_by_their_id():
    workload = a_workload()
    assert tuple(workload.by_id.values()) == workload.requests
    assert workload.by_id["r3"] is workload.requests[3]


def test_a_depth_without_a_number_takes_them_all():
    assert len(a_workload().at(Depth.DEEP).requests) == 5


def test_taking_twice_changes_nothing_more():
    once = a_workload().at(Depth.SMOKE)
    assert once.at(Depth.DEEP) == once


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"concurrency": 1},
        {"passes": 3},
        {"stream": True},
        {"top_tokens": 5},
        {"requests": ()},
        {"name": "v"},
        {"waves": (2,)},
    ],
    ids=lambda c: next(iter(c)),
)
def test_the_digest_covers_what_is_sent_and_how(change):
    assert a_workload(**change).digest != a_workload().digest


def test_the_digest_is_the_same_in_every_process():
    """A literal: xdist workers and later runs have to agree on it."""
    assert Workload(name="w", version=1, requests=()).digest == "baf915ed2bbfed33"


def test_the_repr_is_what_one_wants_in_a_failed_assert():
    assert repr(a_workload()).startswith("<Workload w v1: 5 requests, ")


def test_requests_that_differ_in_their_seed_alone_are_one_prompt():
    asked = [("a", 1), ("b", 2), ("a", 3)]
    requests = tuple(
        Request(id=f"{prompt}{seed}", route=Route.CHAT, body={"messages": prompt, "seed": seed, "max_tokens": 4}) for prompt, seed in asked
    )
    warmer = dataclasses.replace(requests[0], id="a4", body={**requests[0].body, "temperature": 2.0})
    other = dataclasses.replace(requests[0], id="a5", route=Route.COMPLETIONS)
    asks = [request.asks for request in (*requests, warmer, other)]
    assert [asks.index(one) for one in asks] == [0, 1, 0, 3, 4]


def test_the_digest_covers_when_a_client_leaves():
    first, *rest = a_workload().requests
    assert a_workload(requests=(dataclasses.replace(first, abort_after=2), *rest)).digest != a_workload().digest


def drawing(id_, **body):
    return Request(id=id_, route=Route.COMPLETIONS, body={"prompt": "x", **body})


@pytest.mark.parametrize("waves, sizes", [((1, 3), [1, 3, 1]), ((5,), [5]), ((2, 9), [2, 3]), ((1, 1, 1, 1, 1, 1), [1] * 5)])
def test_waves_are_sent_in_order_and_the_rest_is_one_more(waves, sizes):
    sent = a_workload(waves=waves)
    assert [len(turn) for turn in sent.turns] == sizes
    assert [request for turn in sent.turns for request in turn] == list(sent.requests)


def test_a_wave_falls_apart_only_where_it_has_seeded_and_unseeded_draws():
    greedy, seeded, unseeded = drawing("g", temperature=0), drawing("s", temperature=1, seed=1), drawing("u", temperature=1)
    sent = a_workload(requests=(greedy, unseeded, greedy, seeded, greedy, seeded, unseeded), waves=(2, 2, 3))
    assert [[request.id for request in turn] for turn in sent.turns] == [["g", "u"], ["g", "s"], ["g", "s"], ["u"]]


@pytest.mark.parametrize(
    "body, prefixed",
    [
        ({"prompt": "Once", "n": 2}, {"prompt": "Part 3.\n\nOnce", "n": 2}),
        ({"prompt": [5, 6]}, {"prompt": [5, 5, 5, 5, 6]}),
        ({"prompt": ["Once", "Twice"]}, {"prompt": ["Part 3.\n\nOnce", "Part 3.\n\nTwice"]}),
        ({"prompt": [[5, 6], [7]]}, {"prompt": [[5, 5, 5, 5, 6], [7, 7, 7, 7]]}),
        (
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
            {"messages": [{"role": "system", "content": "Part 3.\n\nBe brief."}, {"role": "user", "content": "Hi"}]},
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Part 3.\n\nHi"}, {"type": "text", "text": "you"}]}]},
        ),
        ({"prompt": ""}, {"prompt": "Part 3.\n\n"}),
        ({"prompt": []}, {"prompt": []}),
    ],
)
def test_a_prefix_before_the_prompt_changes_nothing_else(body, prefixed):
    request = Request(id="r", route=Route.COMPLETIONS, body=body)
    assert request.with_prefix(3) == dataclasses.replace(request, body=prefixed)


@pytest.mark.parametrize("prompt", ["Once", [5, 6], ["Once", "Twice"], [[5, 6], [7]]])
def test_no_two_rounds_have_the_same_prefix(prompt):
    """Kernels that repeat themselves would repeat a harmless jump of the round before."""
    request = Request(id="r", route=Route.COMPLETIONS, body={"prompt": prompt})
    prompts = [request.body["prompt"], *(request.with_prefix(number).body["prompt"] for number in range(1, ROUNDS + 1))]
    batches = [prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt] for prompt in prompts]
    assert all(len(set(map(str, texts))) == ROUNDS + 1 for texts in zip(*batches, strict=True))


def test_a_request_is_greedy_at_temperature_0_alone():
    requests = [drawing("r"), *(drawing("r", temperature=value) for value in (None, 0, 0.0, 1e-9, 1))]
    assert [request.greedy for request in requests] == [False, False, True, True, False, False]
    assert [request.draws_unseeded for request in requests] == [True, True, False, False, True, True]


@pytest.mark.parametrize("body, grammar", [
    ({}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": {}, "guided_regex": "", "tools": []}, None),
    ({"response_format": {"type": "json_object"}}, Grammar(kind=GrammarKind.JSON_OBJECT, text=True, name="")),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}},
     Grammar(kind=GrammarKind.JSON, text={"a": 1}, name="n")),
    ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a+"}}, Grammar(kind=GrammarKind.REGEX, text="a+")),
    ({"guided_choice": ["a", "b"], "tools": [{}]}, Grammar(kind=GrammarKind.CHOICE, text=["a", "b"])),
    ({"tools": [{}]}, Grammar()),
    ({"response_format": {"type": "structural_tag"}}, Grammar()),
    ({"guided_json": {}}, Grammar(kind=GrammarKind.JSON, text={})),
    ({"structured_outputs": {"json": {}}}, Grammar(kind=GrammarKind.JSON, text={})),
    ({"structured_outputs": {"json": None, "regex": "a+"}}, Grammar(kind=GrammarKind.REGEX, text="a+")),
    ({"guided_json": None, "structured_outputs": {"json_object": True}}, Grammar(kind=GrammarKind.JSON_OBJECT, text=True)),
    ({"guided_json": False, "guided_json_object": False}, None),
    ({"text": {"format": {"type": "structural_tag"}}}, Grammar()),
    ({"text": {"format": {"type": "grammar", "definition": "start: x"}}}, Grammar()),
    ({"text": {"format": {"type": "text"}}}, None),
    ({"text": {"format": {}}}, None),
])  # fmt: skip
def test_a_grammar_is_read_from_each_field_that_asks_for_one(body, grammar):
    assert drawing("r", **body).grammar == grammar
