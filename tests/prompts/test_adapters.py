"""Adapters' requests: each adapter is once the first to see a prompt, waves mix them, and a config's adapters take their places."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_specdec.judge.adapters import circumstances
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.adapters import Adapter, Adapters, fill
from suites.adapters.test_adapters import MIXED

TWO = Adapters(named=tuple(Adapter(name=name, fields={"model": name}) for name in ("sql", "tone", "spare")))
LLAMA = Adapters(named=tuple(Adapter(name=f"{n}:a", fields={"lora": [n]}) for n in (0, 1)), without={"lora": []})


@pytest.mark.parametrize("depth", Depth)
def test_each_depth_ends_with_a_wave_and_has_every_circumstance(depth):
    workload = MIXED.at(depth)
    assert sum(map(len, workload.in_waves)) == len(workload.requests)
    assert len(workload.in_waves[-1]) in workload.waves
    kinds = set(circumstances(workload).values())
    assert {(bool(kind.adapter), kind.is_mixed) for kind in kinds} == {(a, b) for a in (False, True) for b in (False, True)}
    assert {bool(kind.adapter) for kind in kinds if not kind.is_crossed and not kind.is_mixed} == {False, True}
    assert {bool(kind.adapter) for kind in kinds if kind.is_crossed and not kind.is_mixed} == {False, True}


def test_depths_take_whole_waves():
    ends = [0]
    for size in MIXED.waves:
        ends.append(ends[-1] + size)
    assert set(MIXED.take.values()) < set(ends)
    assert ends[-1] == len(MIXED.requests) == len(MIXED.by_id)


def test_waves_have_a_request_four_and_eight_of_all_weights():
    assert set(MIXED.waves) >= {1, 4, 8}
    mixed = [wave for wave in MIXED.in_waves if len(wave) == 8]
    assert all(Counter(request.adapter for request in wave).keys() == {"", "first", "second"} for wave in mixed)
    draws = [[request for request in wave if not request.greedy] for wave in mixed]
    assert all(len(wave) == 4 and all(request.adapter for request in wave) for wave in draws)
    assert len({request.seed for wave in draws for request in wave}) == 4 * len(mixed)
    assert all(len({request.prompt_key for request in wave}) == 8 for wave in mixed)


def test_two_adapters_of_a_server_take_their_places():
    workload = fill(MIXED, TWO)
    assert Counter(request.adapter for request in workload.requests).keys() == {"", "sql", "tone"}
    assert all(request.weights == ({"model": request.adapter} if request.adapter else {}) for request in workload.requests)
    assert [request.id for request in workload.requests] == [request.id for request in MIXED.requests]


def test_where_leaving_a_field_out_means_all_adapters_requests_without_one_say_so():
    assert {str(request.weights) for request in fill(MIXED, LLAMA).requests} == {"{'lora': [0]}", "{'lora': [1]}", "{'lora': []}"}


def test_with_one_adapter_nothing_is_filled_in():
    assert fill(MIXED, Adapters(named=TWO.named[:1])) is MIXED
