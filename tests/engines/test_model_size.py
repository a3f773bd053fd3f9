"""The size of a model, by its files or by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.engines import checkpoint, model_size

NOWHERE = Path("/nowhere")


@pytest.mark.parametrize(
    "model, weights_gb, active_gb",
    [
        ("Qwen/Qwen3-32B", 64.0, 64.0),
        ("Qwen/Qwen3-0.6B", 1.2, 1.2),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.27, 0.27),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 72.1, 72.1),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", 39.9, 39.9),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 3.99, 3.99),
        ("mlx-community/Llama-3.2-3B-Instruct-4bit", 1.71, 1.71),
        ("openai/gpt-oss-120b", 61.9, 2.7),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 93.4, 25.8),
        ("org/model-4x3b", 24.0, 24.0),
        ("Qwen/Qwen3-30B-A3B", 60.0, 6.0),
        ("deepseek-ai/DeepSeek-V3", 671.0, 37.0),
    ],
)
def test_a_name_tells_the_size(model, weights_gb, active_gb):
    size = model_size.of(model, NOWHERE)
    assert (size.weights_gb, size.active_gb) == pytest.approx((weights_gb, active_gb), rel=0.02)


@pytest.mark.parametrize("model", ["target", "org/phi-3-mini-4k-instruct", "org/gemma-3n-E4B", "org/some-4bit-model", "v2"])
def test_a_name_that_tells_nothing_has_no_size(model):
    assert model_size.of(model, NOWHERE) is None


def test_files_count_before_the_name(tmp_path):
    folder = tmp_path / "model-30b-a3b"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(bytes(3000))
    (folder / "b.safetensors").write_bytes(bytes(1000))
    size = model_size.of(str(folder), folder)
    assert (size.weights_gb, size.active_gb) == pytest.approx((4e-6, 0.4e-6))
    assert model_size.of("m.gguf", folder / "a.safetensors").weights_gb == pytest.approx(3e-6)


def test_a_set_of_weights_with_a_dangling_link_is_not_the_smallest(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(2048))
    (tmp_path / "b.bin").symlink_to(tmp_path / "gone.bin")
    assert checkpoint.weights_gib(tmp_path) == 2048 / 1024**3
    (tmp_path / "lost.gguf").symlink_to(tmp_path / "nowhere")
    assert checkpoint.gib(tmp_path) is not None
