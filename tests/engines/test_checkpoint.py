"""What a checkpoint's config.json says of long contexts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_specdec.config.config import Config, EngineSettings, Overlay
from pytest_specdec.engines.checkpoint import describe_positions

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LAYERS = ["sliding_attention", "full_attention"] * 12


@pytest.mark.parametrize(
    "settings, args, words",
    [
        ({}, {}, ""),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "sliding_window": None}, {}, ""),
        ({"rope_scaling": YARN}, {}, "YaRN x4.0 over 32,768 positions"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {}, "linear x2"),
        ({}, {"hf-overrides": {"rope_parameters": YARN}}, "YaRN x4.0 over 32,768 positions"),
        ({"text_config": {}}, {"hf-overrides": {"text_config": {"rope_parameters": YARN}}}, "YaRN x4.0 over 32,768 positions"),
        ({"sliding_window": 4096}, {}, "sliding window of 4,096 tokens"),
        ({"sliding_window": 4096, "use_sliding_window": False}, {}, ""),
        ({"sliding_window": 1024, "layer_types": ["full_attention"]}, {}, ""),
        ({"text_config": {"sliding_window": 128, "layer_types": LAYERS}}, {}, "sliding window of 128 tokens in 12 of 24 layers"),
        (
            {"rope_scaling": YARN, "sliding_window": 128, "layer_types": LAYERS},
            {},
            "YaRN x4.0 over 32,768 positions, sliding window of 128 tokens in 12 of 24 layers",
        ),
    ],
)
def test_stretched_positions_and_sliding_windows_are_named(tmp_path, settings, args, words):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    engine = EngineSettings(kind="vllm", model=str(tmp_path), args=args)
    config = Config(name="tiny", path=Path("tiny.yaml"), text="", engine=engine, baseline=Overlay(), variants=())
    assert describe_positions(config) == words
