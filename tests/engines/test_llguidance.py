"""Whether a server's grammars are llguidance's is what its arguments say."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.config import load
from pytest_specdec.engines import reference
from pytest_specdec.engines.llguidance import ServesLlguidance, installed_release, mapping, stop_ids
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.vllm.structured_backend import grammar_backend
from specdec_reference.grammar import LAYOUT

CONFIG = """
engine: {kind: KIND, model: ./model, venv: ./venv, args: {ARGS}}
variants:
  one: {args: {MORE}}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 5, "content": "<end>"}]}))
    for program in ("vllm", "python"):
        path = tmp_path / "venv" / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    for package in ("vllm-0.32.0", "sglang-0.5.23", "llguidance-1.7.6"):
        (tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / f"{package}.dist-info").mkdir(parents=True)

    def make(kind, args="", more=""):
        path = tmp_path / "one.yaml"
        path.write_text(CONFIG.replace("KIND", kind).replace("ARGS", args).replace("MORE", more))
        return load.load(path)

    return make


CHOSEN = [
    ("structured-outputs-config: {backend: guidance}", True),
    ("structured_outputs_config: {backend: guidance, disable_any_whitespace: true}", False),
    ('structured-outputs-config: \'{"backend": "guidance"}\'', True),
    ("structured-outputs-config.backend: guidance", True),
    ("guided-decoding-backend: guidance", True),
    ("guided-decoding-backend: 'guidance:disable-any-whitespace'", False),
    ("guided-decoding-backend: guidance, guided-decoding-disable-any-whitespace: true", False),
]


@pytest.mark.parametrize("args, flexible", CHOSEN)
def test_vllm_uses_llguidance_where_it_is_told_to(config, args, flexible):
    backend = engine_of("vllm").grammar_backend(config("vllm", args))
    assert (backend.json_options, backend.release, backend.eos_ids) == ({"whitespace_flexible": flexible}, "1.7.6", (5,))
    assert (backend.checkpoint.name, backend.unknown) == ("model", "")


@pytest.mark.parametrize("args", ["", "structured-outputs-config: {backend: auto}", "structured-outputs-config: xgrammar", "dtype: auto"])
def test_of_another_backend_or_one_chosen_by_request_nothing_is_known(config, args):
    assert engine_of("vllm").grammar_backend(config("vllm", args)) is None


def test_arms_of_different_backends_have_no_mask_in_common(config):
    backend = "structured-outputs-config: {backend: guidance}"
    assert engine_of("vllm").grammar_backend(config("vllm", more=backend)) is None
    assert engine_of("vllm").grammar_backend(config("vllm", backend, "dtype: auto")) is not None


@pytest.mark.parametrize("options", [{"disable-additional-properties": True}, {"backend": "guidance:no-additional-properties"}])
def test_a_setting_that_changes_schemas_is_named(options, tmp_path):
    backend = grammar_backend({"structured-outputs-config": {"backend": "guidance", **options}}, tmp_path, "")
    assert backend.unknown == "disable_additional_properties"


def test_sglang_uses_llguidance_where_it_is_told_to(config):
    backend = engine_of("sglang").grammar_backend(config("sglang", "grammar-backend: llguidance"))
    assert (backend.json_options, backend.release, backend.eos_ids) == ({"whitespace_pattern": None}, "1.7.6", (5,))
    assert engine_of("sglang").grammar_backend(config("sglang")) is None


def test_the_reference_engines_documents_are_laid_out_as_its_adapter_says():
    assert reference._LAYOUT == LAYOUT


def test_engines_with_other_backends_leave_it_out():
    assert isinstance(engine_of("vllm"), ServesLlguidance)
    assert not isinstance(engine_of("mlx_lm"), ServesLlguidance)


@pytest.mark.parametrize("value, read", [({"a_b": 1}, {"a-b": 1}), ('{"a": 1}', {"a": 1}), ("{", {}), ("xgrammar", {}), (7, {})])
def test_mappings_come_in_yaml_and_as_text(value, read):
    assert mapping(value) == read


def test_a_checkpoint_without_an_end_of_its_own_has_none(tmp_path):
    assert stop_ids(tmp_path) == ()
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": null}')
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": []}')
    assert stop_ids(tmp_path) == ()


def test_the_release_beside_a_venvs_linked_python_is_found(tmp_path):
    (tmp_path / "base" / "bin").mkdir(parents=True)
    (tmp_path / "base" / "bin" / "python").write_text("")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "llguidance-1.7.6.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to(tmp_path / "base" / "bin" / "python")
    assert installed_release(str(python)) == "1.7.6"
    assert installed_release(str(tmp_path / "base" / "bin" / "python")) == ""
