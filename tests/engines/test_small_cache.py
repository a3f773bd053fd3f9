"""Engines with a setting for a small key-value cache, and engines without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.engines.optional import SmallCache
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.sglang import SglangDialect
from pytest_specdec.engines.tensorrt_llm import TensorRtLlmDialect


def config(kind, image=None, **args):
    named = {name.replace("_", "-"): value for name, value in args.items()}
    engine = EngineSettings(kind=kind, model="m", args=named, image=image)
    return Config(name="c", path=Path("c.yaml"), text="", engine=engine, variants=())


@pytest.mark.parametrize(
    "args, longest, blocks",
    [({}, 1024, 72), ({"block_size": 32}, 1024, 40), ({"block_size": "auto"}, 1024, 72), ({"max_model_len": 512}, 512, 40)],
)
def test_vllm_gets_blocks_for_little_more_than_one_sequence(args, longest, blocks):
    given = engine_of("vllm").small_cache(config("vllm", **args))
    assert given == {"max-model-len": longest, "num-gpu-blocks-override": blocks}


@pytest.mark.parametrize("args, added", [({}, {"block-size": 32}), ({"block_size": 64}, {})])
def test_vllm_on_a_cpu_gets_smaller_blocks_than_its_own_unless_the_config_says_a_size(args, added):
    given = engine_of("vllm").small_cache(config("vllm", image="vllm/vllm-openai-cpu:v0.32.0", **args))
    size = args.get("block_size", 32)
    assert given == {**added, "max-model-len": 1024, "num-gpu-blocks-override": 1024 // size + 8}


@pytest.mark.parametrize("args, longest, blocks", [({}, 256, 18), ({"max_model_len": 1024}, 256, 18), ({"max_model_len": 200}, 200, 15)])
def test_the_reference_engine_gets_blocks_for_one_sequence_and_a_window(args, longest, blocks):
    given = engine_of("reference").small_cache(config("reference", **args))
    assert given == {"max-model-len": longest, "num-gpu-blocks-override": blocks}


def test_sglang_gets_a_pool_and_a_scheduler_that_overcommits_it():
    given = engine_of("sglang").small_cache(config("sglang", context_length=512))
    assert given == {"max-total-tokens": 1152, "schedule-conservativeness": 0.1}


@pytest.mark.parametrize(
    "args, longest",
    [
        ({}, {"max_seq_len": 1024}),
        ({"max-seq-len": 512}, {"max-seq-len": 512}),
        ({"extra_llm_api_options": {"max_seq_len": 700}}, {"max_seq_len": 700}),
        ({"max_seq_len": 8192, "extra_llm_api_options": {"kv_cache_config": {"dtype": "fp8", "max_tokens": 9}}}, {"max_seq_len": 1024}),
    ],
)
def test_tensorrt_llm_gets_a_cache_and_the_policy_that_pauses_beside_its_own_options(args, longest):
    given = engine_of("tensorrt_llm").small_cache(Config(name="c", path=Path("c.yaml"), text="", engine=engine(args), variants=()))
    pressed = given["extra_llm_api_options"]
    assert {name: value for name, value in given.items() if name != "extra_llm_api_options"} == longest
    assert pressed["scheduler_config"] == {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    stated = args.get("extra_llm_api_options", {}).get("kv_cache_config", {})
    assert pressed["kv_cache_config"] == {**stated, "max_tokens": next(iter(longest.values())) + 128}
    assert "max_seq_len" not in pressed, "the flag says it"


def test_tensorrt_llm_has_none_where_nothing_would_count_or_options_differ():
    adapter = engine_of("tensorrt_llm")
    assert adapter.small_cache(config("tensorrt_llm", backend="tensorrt")) is None
    variant = VariantSettings(name="v", args={"extra-llm-api-options": {"dtype": "float32"}})
    assert adapter.small_cache(replace(config("tensorrt_llm"), variants=(variant,))) is None


def engine(args):
    return EngineSettings(kind="tensorrt_llm", model="m", args=args)


@pytest.mark.parametrize("kind", ["llama_cpp", "mlx_lm", "transformers"])
def test_other_engines_have_none(kind):
    """llama-server preempts nothing: where a unified cache is full, it ends requests with a 500 (llama.cpp#16736)."""
    assert not isinstance(engine_of(kind), SmallCache)


@pytest.mark.parametrize(
    "text, counted", [("", None), ('vllm:num_preemptions_total{engine="0"} 3.0\nvllm:num_preemptions_total{engine="1"} 1.0\n', 4)]
)
def test_preemptions_are_read_off_the_counters_whatever_their_prefix(text, counted):
    assert PlainDialect().traffic(text).preemptions == counted


@pytest.mark.parametrize(
    "text, counted",
    [
        ("", None),
        ('sglang:num_running_reqs{tp_rank="0"} 3.0\n', None),
        ('sglang:num_retracted_reqs{tp_rank="0"} 0.0\n', 0),
        ('sglang:num_retracted_reqs{tp_rank="0"} 1.0\nsglang:num_retracted_requests_total{tp_rank="0"} 48.0\n', 48),
    ],
)
def test_sglang_counts_retractions_from_the_first_one_on(text, counted):
    assert SglangDialect().traffic(text).preemptions == counted


@pytest.mark.parametrize(
    "rows, counted",
    [
        ("no JSON", None),
        ("[]", None),
        ('[{"specDecodingStats": {}}]', None),
        ('[{"inflightBatchingStats": {"numPausedRequests": 0}}]', 0),
        ('[{"inflightBatchingStats": {"numPausedRequests": 2}}, {"inflightBatchingStats": {"numPausedRequests": 1}}]', 3),
    ],
)
def test_tensorrt_llm_counts_the_paused_requests_of_its_iterations(rows, counted):
    assert TensorRtLlmDialect("m", {}, completions_list_tokens=True).traffic(rows).preemptions == counted
