from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.doctor import models
from pytest_specdec.doctor.arms import arms
from pytest_specdec.doctor.models import ModelHub
from pytest_specdec.engines.registry import engine_of

SECRET = "hf_abcdefghijklmnop"


@pytest.fixture
def folders(here):
    for name in ("whole", "empty"):
        (here / name).mkdir()
    (here / "whole" / "config.json").write_text("{}")
    (here / "one.gguf").write_text("")
    snapshot = here / "hf" / "hub" / "models--org--cached" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")


@pytest.mark.parametrize(
    "model, environ, level, said",
    [
        ("whole", {}, "ok", "whole"),
        ("one.gguf", {}, "ok", "one.gguf"),
        ("empty", {}, "FAIL", "holds no config.json"),
        ("./hwole", {}, "FAIL", "did you mean 'whole'?"),
        ("/nowhere/at/all", {}, "FAIL", "no model /nowhere/at/all"),
        ("bare-name", {}, "FAIL", "no model bare-name"),
        ("a/b/c", {}, "FAIL", "no model a/b/c"),
        ("org/two.gguf", {}, "FAIL", "no model org/two.gguf"),
        ("org/cached", {"HF_HUB_OFFLINE": "1"}, "ok", "in the hub cache"),
        ("org/fresh", {}, "ok", "which the first boot downloads"),
        ("org/fresh", {"HF_HUB_OFFLINE": "1"}, "FAIL", "HF_HUB_OFFLINE is set"),
        ("meta-llama/Llama-3.3-70B-Instruct", {}, "warn", "HF_TOKEN is not set"),
        ("google/gemma-3-4b-it", {}, "warn", "gated family"),
        ("google/gemma-3-4b-it", {"HF_TOKEN": SECRET}, "ok", "which the first boot downloads"),
    ],
)
def test_a_model_is_a_folder_or_a_name_on_the_hub(model, environ, level, said, *, config, here, folders):
    check = models.check(config(), "baseline", model, ModelHub.of({"HF_HOME": str(here / "hf"), **environ}))
    assert check.level == level
    assert said in check.line
    assert (check.level != "FAIL") or check.details[-1].startswith("remedy:")
    assert SECRET not in str(check)


def test_a_stored_token_counts_as_one(here):
    (here / "hf").mkdir()
    assert not ModelHub.of({"HF_HOME": str(here / "hf")}).has_token
    (here / "hf" / "token").write_text(SECRET)
    assert ModelHub.of({"HF_HOME": str(here / "hf")}).has_token


@pytest.mark.parametrize(
    "environ, cache",
    [
        ({"HF_HUB_CACHE": "/c"}, "/c"),
        ({"HUGGINGFACE_HUB_CACHE": "/d"}, "/d"),
        ({"HF_HUB_CACHE": "/c", "HUGGINGFACE_HUB_CACHE": "/d"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_cache_is_where_the_hub_client_looks_for_it(environ, cache):
    assert str(ModelHub.of(environ).cache) == cache


def test_every_model_is_named_once_with_the_first_arm_that_loads_it(config):
    loaded = config("""\
        engine: {kind: vllm, model: org/target}
        variants:
          a: {args: {speculative-config: {method: draft_model, model: org/draft, num_speculative_tokens: 3}}}
          b: {args: {speculative-config: {method: draft_model, model: org/draft, num_speculative_tokens: 5}}}
          c: {args: {speculative-config: '{"method": "eagle3", "model": "org/head"}'}}
        """)
    servers = arms(loaded, engine_of("vllm"), {})
    assert [arm.name for arm in servers] == ["baseline", "a", "b", "c", "draft model org/draft"]
    *checks, download = models.checks(loaded, engine_of("vllm"), servers, ModelHub.of({"HF_HOME": "hf"}))
    assert [check.line.partition(",")[0] for check in checks] == ["baseline: org/target", "a: org/draft", "c: org/head"]
    assert "org/target, org/draft, org/head" in download.line
