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
