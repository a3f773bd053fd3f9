"""Attached servers: which engine is behind an address, and how a variant is said to draft."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.engines import registry
from pytest_specdec.engines.attach import Attach
from pytest_specdec.engines.optional import AnyEngine, Recognising
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.server_counts import Traffic
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling


def served(**pages):
    """A server by what its paths answer."""
    return lambda path: pages.get(path.strip("/").replace("/", "_"))


def models(owner):
    return json.dumps({"data": [{"id": "m", "owned_by": owner}]})


UNOWNED = json.dumps({"data": [{"id": "m", "object": "model", "created": 1}]})


@pytest.mark.parametrize(
    "pages, kinds",
    [
        ({"v1_models": models("vllm")}, ["vllm"]),
        ({"v1_models": models("a gateway"), "version": "{}", "metrics": "vllm:prompt_tokens_total 3.0"}, ["vllm"]),
        ({"v1_models": models("a gateway"), "version": "{}", "metrics": "[]"}, []),
        ({"v1_models": models("pytest-specdec"), "version": "{}", "metrics": "vllm:x 1"}, ["reference", "vllm"]),
        ({"v1_models": models("vllm"), "server_info": '{"vllm_config": "…, ulysses_sequence_parallel_size=1"}'}, ["arctic", "vllm"]),
        ({"v1_models": models("sglang")}, ["sglang"]),
        ({"v1_models": models("a gateway"), "model_info": '{"model_path": "m", "is_generation": true}'}, ["sglang"]),
        ({"v1_models": models("tensorrt_llm"), "version": '{"version": "1.3.0"}', "metrics": "[]"}, ["tensorrt_llm"]),
        ({"v1_models": models("llamacpp")}, ["llama_cpp"]),
        ({"v1_models": models("a gateway"), "props": '{"build_info": "b6000-abc"}'}, ["llama_cpp"]),
        ({"v1_models": UNOWNED, "health": '{"status": "ok"}'}, ["mlx_lm"]),
        ({"v1_models": UNOWNED, "health": "{}"}, []),
        ({"v1_models": UNOWNED.replace('"created"', '"made"'), "health": '{"status": "ok"}'}, []),
        ({"v1_models": '{"data": []}', "health": '{"status": "ok"}'}, []),
        ({"v1_models": "no JSON"}, []),
        ({"v1_models": "[]"}, []),
        ({}, []),
    ],
)
def test_engines_recognise_their_servers(pages, kinds):
    candidates = [engine_of(kind) for kind in ("arctic", "llama_cpp", "mlx_lm", "reference", "sglang", "tensorrt_llm", "vllm")]
    assert [one.kind for one in candidates if isinstance(one, Recognising) and one.recognises(served(**pages))] == kinds


def test_candidates_are_the_other_engines_and_one_that_cannot_be_loaded_is_none_of_them(monkeypatch):
    broken = registry.entry_points(group="pytest11")
    points = registry.entry_points
    monkeypatch.setattr(registry, "entry_points", lambda group: points(group=group) if group != registry.GROUP else broken)
    monkeypatch.setattr(registry, "LOADED", {"vllm": engine_of("vllm"), "attach": Attach()})
    assert isinstance(Attach(), AnyEngine)
    assert [one.kind for one in Attach().candidates()] == ["vllm"]


@pytest.mark.parametrize(
    "args, draft",
    [
        ({}, Draft(kind=DraftKind.UNKNOWN, tokens=0)),
        ({"draft": "head", "draft_tokens": 3}, Draft(kind=DraftKind.HEAD, tokens=3)),
        (
            {"draft": "model", "draft-tokens": "3", "draft-sampling": "probabilistic"},
            Draft(kind=DraftKind.MODEL, tokens=3, sampling=DraftSampling.PROBABILISTIC, model="draft"),
        ),
        ({"draft": "ngram", "draft-tokens": 3, "ngram-max": 4}, Draft(kind=DraftKind.NGRAM, tokens=3, ngram_min=4, ngram_max=4)),
    ],
)
def test_arguments_say_how_a_variant_drafts(args, draft):
    assert Attach().draft(args) == draft


@pytest.mark.parametrize(
    "args, near",
    [
        ({"draft": "modle"}, "did you mean 'model'"),
        ({"draft-sampling": "greedily"}, "did you mean 'greedy'"),
        ({"draft-token": 3}, "did you mean 'draft-tokens'"),
        ({"max-model-len": 8192}, "takes no argument"),
    ],
)
def test_an_argument_that_would_reach_no_server_is_refused(args, near):
    with pytest.raises(EngineError, match=near):
        Attach().draft(args)


@pytest.mark.parametrize(
    "text, traffic",
    [
        ("", Traffic()),
        ('process_start_time_seconds 1.5e3\nvllm:prompt_tokens_total{a="b"} 2.0\nvllm:prompt_tokens_total{a="c"} 3\n', (1500.0, 5, None)),
        ("x:generation_tokens_total 7\nx:generation_tokens_total_created 9\ngeneration_tokens 8\n", (None, None, 7)),
        ("prompt_tokens_total NaN\nprocess_start_time_seconds soon", (None, None, None)),
    ],
)
def test_counters_of_all_requests_are_read_whatever_the_engines_prefix(text, traffic):
    expected = (
        traffic if isinstance(traffic, Traffic) else Traffic(started_s=traffic[0], prompt_tokens=traffic[1], generated_tokens=traffic[2])
    )
    assert PlainDialect().traffic(text) == expected
