"""Engines with a setting for a small key-value cache, and engines without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.config.config import Config, EngineSettings
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import SmallCache
from pytest_specdec.engines.registry import engine_of


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


@pytest.mark.parametrize("kind", ["sglang", "llama_cpp", "tensorrt_llm", "mlx_lm", "transformers"])
def test_other_engines_have_none(kind):
    assert not isinstance(engine_of(kind), SmallCache)


@pytest.mark.parametrize(
    "text, counted", [("", None), ('vllm:num_preemptions_total{engine="0"} 3.0\nvllm:num_preemptions_total{engine="1"} 1.0\n', 4)]
)
def test_preemptions_are_read_off_the_counters_whatever_their_prefix(text, counted):
    assert PlainDialect().traffic(text).preemptions == counted
