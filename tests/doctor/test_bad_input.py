"""Bad input: one sentence for each, before anything is booted, the same from the doctor and from a run."""

from __future__ import annotations

import json
import os

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.capture import locks
from tests.doctor.conftest import VLLM
from tests.engines.test_llama_cpp import model_file
from tests.plugin.conftest import _no_ci, project  # noqa: F401 - fixtures

DRAFT = VLLM.replace(
    "{method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}", "{method: draft_model, model: %s, num_speculative_tokens: 3}"
)
LLAMA = "engine: {kind: llama_cpp, executable: venv/bin/llama-server, model: target.gguf}\nvariants: {v: {args: {spec-type: %s}}}\n"
SGLANG = """\
engine: {kind: sglang, executable: venv/bin/vllm, model: model, args: {max-running-requests: 4}}
variants:
  v:
    args: {speculative-algorithm: STANDALONE, speculative-draft-model-path: other, speculative-num-steps: 3,
           speculative-eagle-topk: 1, speculative-num-draft-tokens: 4}
"""
TRTLLM = """\
engine: {kind: tensorrt_llm, image: 'nvcr.io/nvidia/tensorrt-llm/release:1.3.0', model: model}
variants: {v: {args: {speculative_config: {decoding_type: Draft_Target, max_draft_len: 3, speculative_model: other}}}}
"""
ATTACHED = "engine: {kind: attach, model: m, url: 'http://127.0.0.1:9'}\nvariants: {v: {args: {draft: head, draft-tokens: 3}}}\n"
IMAGE = VLLM.replace("venv: venv", "image: vllm/vllm-openai:v0.33.0")
USAGE, FAILED = 4, 1

CASES = {
    "an argument that the engine does not know": (
        VLLM.replace("max-num-seqs", "max-num-seqz"),
        FAILED,
        "engine.args.max-num-seqz: found --max-num-seqz, which the engine does not know; did you mean '--max-num-seqs'?",
    ),
    "a value that its parser refuses": (
        VLLM.replace("max-num-seqs: 4", "dtype: float33"),
        FAILED,
        "argument --dtype: invalid choice: 'float33'",
    ),
    "a key of speculative-config": (
        VLLM.replace("prompt_lookup_max", "prompt_lookup_mox"),
        FAILED,
        "vLLM 0.32.0 has no speculative setting prompt_lookup_mox; did you mean 'prompt_lookup_max'?",
    ),
    "an argument of the scorer": (
        VLLM + "scorer: {kind: vllm, venv: venv, model: model, args: {max-num-seqz: 4}}\n",
        FAILED,
        "scorer.args.max-num-seqz: found --max-num-seqz, which the engine does not know; did you mean '--max-num-seqs'?",
    ),
    "a model of the scorer": (
        VLLM + "scorer: {kind: reference, model: tarhet}\n",
        FAILED,
        "no checkpoint tarhet; did you mean target? where: scorer.model",
    ),
    "a method that the release has lost": (
        IMAGE.replace("method: ngram", "method: medusa, model: org/m"),
        FAILED,
        "vLLM v0.33.0 has no drafting method medusa",
    ),
    "a flag that the engine has dropped": (
        LLAMA % "ngram-simple, draft-max: 4",
        FAILED,
        "llama.cpp has no --draft-max any more",
    ),
    "no draft tokens": (
        VLLM.replace("num_speculative_tokens: 3", "num_speculative_tokens: 0"),
        USAGE,
        "variants.ngram-k3.args.speculative-config.num_speculative_tokens: found 0",
    ),
    "no number of draft tokens": (
        VLLM.replace("num_speculative_tokens: 3, ", ""),
        USAGE,
        "variants.ngram-k3.args: found no num_speculative_tokens",
    ),
    "a misspelt method": (VLLM.replace("method: ngram", "method: ngran"), USAGE, 'found "ngran", an unknown drafting method'),
    "an unknown method": (VLLM.replace("method: ngram", "method: telepathy"), FAILED, "vLLM 0.32.0 has no drafting method telepathy"),
    "a draft of another vocabulary": (DRAFT % "other", FAILED, "the draft model has another vocabulary than the target"),
    "the same on SGLang": (SGLANG, FAILED, "the draft model has another vocabulary than the target"),
    "the same on TensorRT-LLM": (TRTLLM, FAILED, "the draft model has another vocabulary than the target"),
    "the same on llama.cpp": (
        LLAMA % "draft-simple, spec-draft-model: other.gguf",
        FAILED,
        "the draft model has another vocabulary than the target",
    ),
    "no Docker daemon": (IMAGE, FAILED, "the Docker daemon does not answer"),
    "weights that the device cannot hold": (DRAFT % "big", FAILED, "GiB of weights, drafter included, and "),
    "memory that something else holds": (
        VLLM.replace("max-num-seqs: 4", "max-num-seqs: 4, gpu-memory-utilization: 0.9"),
        FAILED,
        "0: A card, 0.5 of 1.0 GiB free",
    ),
    "one server as both arms": (ATTACHED, USAGE, "the baseline's own address"),
    "a feature that no request asks for": (VLLM + "require: [json_shema]\n", USAGE, "'json_shema', which no request asks for"),
}
SEVERAL = {"one server as both arms": 3, "weights that the device cannot hold": 2}
"""Failures of the doctor, where every server that is concerned has its own."""
FREE, BUSY = "0, A card, 1024, 0", "0, A card, 1024, 512"


@pytest.fixture
def machine(here, vllm, monkeypatch):
    """Engines that answer for their help, models of two vocabularies, one card of 1 GiB, and a docker without a daemon."""
    vllm(version="echo 0.32.0")
    (here / "venv" / "lib" / "python3.12" / "site-packages" / "vllm-0.32.0.dist-info").mkdir(parents=True)
    for name, size, gib in (("model", 1000, 0), ("other", 2000, 0), ("big", 1000, 2)):
        (here / name).mkdir(exist_ok=True)
        (here / name / "config.json").write_text(json.dumps({"vocab_size": size, "torch_dtype": "float16"}))
        with (here / name / "model.safetensors").open("wb") as weights:
            weights.truncate(gib * 1024**3)
    model_file(here / "target.gguf")
    model_file(here / "other.gguf", tokens=("<e>", *"fedcba"))
    for program, script in {
        "docker": "echo 'Cannot connect to the Docker daemon' >&2; exit 1",
        "nvidia-smi": f"cat {here}/card",
        "llama-server": f"cat {here}/help.txt; echo 'version: 0.5.0'",
    }.items():
        path = here / "venv" / "bin" / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    (here / "card").write_text(FREE)
    (here / "locks").mkdir(mode=0o700)
    monkeypatch.setattr(locks, "folder", lambda: here / "locks")
    monkeypatch.setenv("PATH", f"{here / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return here


@pytest.mark.examples(2)
@pytest.mark.parametrize("name", CASES)
def test_it_is_one_sentence_before_anything_boots(name, machine, project, capsys, monkeypatch):  # noqa: F811 - the fixture
    text, status, sentence = CASES[name]
    (machine / "card").write_text(BUSY if "something else" in name else FREE)
    (machine / "bad.yaml").write_text(text)
    monkeypatch.chdir(machine)
    code = main(["doctor", "bad.yaml"])
    out = capsys.readouterr().out
    failed = [line for line in out.splitlines() if line.startswith("  FAIL")]
    assert (code, len(failed)) == (1, SEVERAL.get(name, 1)), out
    assert sentence in flat(out), out
    assert "remedy:" in out[out.index(failed[0]) :], "every failure says what to do"
    refused = "  FAIL  pair" in out or "  FAIL  config" in out
    assert ("\n  ok    plan" in out) != refused, "what the suites would say of a refused pair is the same once more"
    monkeypatch.chdir(project.path)
    result = project.tests().run(config=str(machine / "bad.yaml"))
    said = flat(result.stdout.str() + result.stderr.str())
    assert result.ret == status, said
    assert sentence in said
    assert "Traceback" not in said
    assert not project.captures, "nothing was booted"


def test_without_a_mistake_nothing_of_it_is_said(machine, project, capsys, monkeypatch):  # noqa: F811 - the fixture
    (machine / "good.yaml").write_text(VLLM)
    monkeypatch.chdir(machine)
    assert main(["doctor", "good.yaml"]) == 0, capsys.readouterr().out
    monkeypatch.chdir(project.path)
    project.tests().run(config=str(machine / "good.yaml")).assert_outcomes(passed=2)
    assert len(project.captures) == 1


def flat(text: str) -> str:
    """Return a text on one line, with the spaces of a sentence."""
    return " ".join(text.split())
