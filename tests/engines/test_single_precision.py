"""Single precision is what the config says it is."""

from __future__ import annotations

import pytest

from pytest_specdec.config import load
from pytest_specdec.engines.registry import engine_of

CONFIG = """
engine: {kind: KIND, model: target, args: {ARGS}}
variants:
  ngram: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4, prompt_lookup_min: 2}}}
"""

PLAIN = "engine: {kind: KIND, model: ./target, args: {ARGS}}\nvariants: {v: {}}\n"


@pytest.mark.parametrize(
    "kind, args, single",
    [
        ("reference", "", True),
        ("vllm", "", False),
        ("vllm", "dtype: auto", False),
        ("vllm", "dtype: bfloat16", False),
        ("vllm", "dtype: float32", True),
        ("vllm", "dtype: float32, quantization: fp8", False),
        ("vllm", "dtype: float32, kv_cache_dtype: fp8", False),
    ],
)
def test_only_what_is_said_to_be_float32_is_taken_for_it(kind, args, single, tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(CONFIG.replace("KIND", kind).replace("ARGS", args))
    assert engine_of(kind).single_precision(load.load(path)) is single


LLM_API = "extra_llm_api_options: {{dtype: float32{}}}"


@pytest.mark.parametrize(
    "kind, args, single",
    [
        ("vllm", "dtype: float32, q: fp8", False),
        ("vllm", "dtype: float32, load-format: bitsandbytes", False),
        ("vllm", "dtype: float32, hf-overrides: {quantization_config: {quant_method: fp8}}", False),
        ("sglang", "dtype: float32", True),
        ("sglang", "dtype: float32, quantization: w8a8_int8", False),
        ("sglang", "dtype: float32, kv-cache-dtype: fp8_e5m2", False),
        ("sglang", "dtype: float32, torchao-config: int8wo", False),
        ("sglang", "dtype: float32, modelopt-quant: fp8", False),
        ("sglang", "dtype: float32, load-format: gguf", False),
        ("tensorrt_llm", LLM_API.format(""), True),
        ("tensorrt_llm", LLM_API.format(", quant_config: {quant_algo: FP8}"), False),
        ("tensorrt_llm", LLM_API.format(", kv_cache_config: {dtype: auto}"), True),
        ("tensorrt_llm", LLM_API.format(", kv_cache_config: {dtype: fp8}"), False),
        ("tensorrt_llm", LLM_API.format("") + ", kv_cache_dtype: fp8", False),
        ("transformers", "dtype: float32", True),
        ("transformers", "dtype: float32, quantization: bnb-8bit", False),
    ],
)
def test_no_flag_that_quantises_is_single_precision(kind, args, single, tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(PLAIN.replace("KIND", kind).replace("ARGS", args))
    assert engine_of(kind).single_precision(load.load(path)) is single


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt_llm", "mlx_lm", "transformers"])
@pytest.mark.parametrize(
    "name, text, single",
    [
        ("config.json", '{"dtype": "float32"}', True),
        ("config.json", '{"dtype": "float32", "quantization_config": {"quant_method": "compressed-tensors"}}', False),
        ("config.json", '{"dtype": "float32", "compression_config": {"format": "int-quantized"}}', False),
        ("config.json", '{"dtype": "float32", "text_config": {"quantization_config": {"quant_method": "awq"}}}', False),
        ("config.json", '{"dtype": "float32", "quantization_config": null}', True),
        ("hf_quant_config.json", '{"quantization": {"quant_algo": "FP8"}}', False),
    ],
)
def test_a_quantised_checkpoint_is_not_single_precision_whatever_the_flags_say(kind, name, text, single, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"dtype": "float32"}')
    (tmp_path / "target" / name).write_text(text)
    path = tmp_path / "one.yaml"
    args = {"mlx_lm": "", "tensorrt_llm": LLM_API.format("")}.get(kind, "dtype: float32")
    path.write_text(PLAIN.replace("KIND", kind).replace("ARGS", args))
    assert engine_of(kind).single_precision(load.load(path)) is single


@pytest.mark.parametrize(
    "kind, engine_args, variant_args, single",
    [
        ("reference", "", "", True),
        ("reference", "", "numerics: 'normal:0.03'", False),
        ("reference", "numerics: 'normal:0.03'", "numerics: null", False),
        ("transformers", "dtype: float32", "", True),
        ("transformers", "dtype: float32", "dtype: bfloat16", False),
        ("transformers", "dtype: float32", "quantization: bnb-8bit", False),
        ("transformers", "dtype: bfloat16", "dtype: float32", False),
    ],
)
def test_every_arm_has_to_be_float32(kind, engine_args, variant_args, single, tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(PLAIN.replace("KIND", kind).replace("ARGS", engine_args).replace("{v: {}}", f"{{v: {{args: {{{variant_args}}}}}}}"))
    assert engine_of(kind).single_precision(load.load(path)) is single
