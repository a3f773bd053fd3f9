"""The environment: machine, accelerators, packages."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from pytest_specdec.capture import environment
from pytest_specdec.config.config import EngineSettings, VariantSettings


def test_the_environment_is_that_of_this_machine(config):
    found = environment.environment(config, "1.0")
    assert (found.engine, found.engine_version, found.model) == ("fake", "1.0", "big")
    assert found.cores >= 1
    assert found.memory_gib > 0
    assert {"openai", "numpy", "pytest-specdec"} <= set(found.packages)


def test_a_variant_is_known_by_checkpoints_dtype_and_flags(config, tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "big/config.json").write_text("{}")
    text = "engine: {kind: fake, args: {seed: 0}}\nvariants: {draft-k3: {}, ngram-k3: {args: {key: '${SECRET}'}}}\n"
    before = environment.environment(replace(config, text=text), "").variants
    assert before["draft-k3"]["model"].startswith("big@")
    assert before["draft-k3"]["draft"].endswith(", 3 tokens")
    assert (before["draft-k3"]["dtype"], len(before["draft-k3"]["flags"])) == ("auto", 12)
    assert before["draft-k3"]["flags"] != before["ngram-k3"]["flags"]
    (tmp_path / "big/config.json").write_text('{"a": 1}')
    after = environment.environment(replace(config, text=text.replace("seed: 0", "seed: 1")), "").variants
    assert {part for part in before["draft-k3"] if before["draft-k3"][part] != after["draft-k3"][part]} == {"model", "flags"}


def test_a_checkpoint_may_be_one_file_and_may_be_elsewhere(config, tmp_path):
    (tmp_path / "big.gguf").write_bytes(b"GGUF")
    path = str(tmp_path / "big.gguf")
    models = [
        environment.environment(replace(config, engine=replace(config.engine, model=model)), "").variants["draft-k3"]["model"]
        for model in (path, "org/elsewhere")
    ]
    assert models[0].startswith("big.gguf@")
    assert models[1] == "org/elsewhere"


@pytest.mark.parametrize("target", ["big.gguf", "org/big"])
def test_a_draft_model_of_the_hub_is_known_by_its_files_beside_a_target_in_a_file_too(target, config, tmp_path):
    """llama.cpp names no target of the hub then, and the draft model is the first of its models."""
    (tmp_path / "org/small").mkdir(parents=True)
    args = {"spec-type": "draft-simple", "spec-draft-hf": "org/small"}
    pair = replace(config, engine=EngineSettings(kind="llama_cpp", model=target), variants=(VariantSettings(name="draft-k3", args=args),))
    drafts = []
    for weights in (b"GGUF", b"GGUF again"):
        (tmp_path / "org/small/model.gguf").write_bytes(weights)
        drafts.append(environment.environment(pair, "").variants["draft-k3"]["draft"])
    assert all(re.fullmatch(r"model org/small@[0-9a-f]{12}, 3 tokens", draft) for draft in drafts), drafts
    assert drafts[0] != drafts[1]


def test_accelerators_are_told_by_their_driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool.write_text("#!/bin/sh\necho NVIDIA H200\necho\n")
    tool.chmod(0o755)
    assert environment.devices() == ("NVIDIA H200",)
    tool.write_text("#!/bin/sh\ncase $1 in --query-gpu=driver_version) echo 580.95.05; echo 580.95.05; esac\n")
    assert environment.driver() == "580.95.05"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert environment.devices() == ()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(subprocess.TimeoutExpired("nvidia-smi", 10)))
    assert environment.devices() == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert environment.devices() == ()


@pytest.mark.parametrize("visible, expected", [(None, True), ("0", True), ("GPU-1", True), ("", False), ("-1", False), ("-1,0", False)])
def test_a_process_from_which_all_devices_are_hidden_has_none(tmp_path, monkeypatch, visible, expected):
    """CUDA stops at the first name that is no device, such as -1."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(environment, "Path", lambda _: tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment.has_accelerator() is expected


def test_unreadable_facts_are_left_out():
    assert environment._read_field("/no/such/file", "x") == ""
    assert environment._installed_version("no-such-package") == ""
