"""Checkpoints that are missing, or of a kind that the reference engine cannot run."""

from __future__ import annotations

import json
import shutil

import pytest

from pytest_specdec.errors import EngineError
from pytest_specdec.model.workload import Route
from specdec_reference import checkpoint
from specdec_reference.cli import ServerSettings, Speculation
from specdec_reference.engine import ReferenceEngine


def changed(tmp_path, name, change):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint.locate("draft"), folder)
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))
    return folder


def test_a_path_is_a_checkpoint_too(tmp_path):
    shutil.copytree(checkpoint.locate("draft"), tmp_path / "copy")
    assert checkpoint.read(str(tmp_path / "copy")).shape == checkpoint.read("draft").shape


@pytest.mark.parametrize("name,words", [("targte", "did you mean 'target'"), ("/nowhere/at/all", "no such folder")])
def test_a_missing_checkpoint_is_one_clear_error(name, words):
    with pytest.raises(EngineError, match=words):
        checkpoint.locate(name)


def test_a_folder_that_is_no_checkpoint_says_what_it_lacks(tmp_path):
    with pytest.raises(EngineError, match=r"a folder without config\.json, model\.safetensors"):
        checkpoint.locate(str(tmp_path))


def test_another_architecture_is_refused(tmp_path):
    folder = changed(tmp_path, "config.json", lambda c: c.update(architectures=["LlamaForCausalLM"]))
    with pytest.raises(EngineError, match="Qwen3ForCausalLM"):
        checkpoint.read(str(folder))


def test_older_configs_say_rope_theta_at_the_top(tmp_path):
    def older(config):
        del config["rope_parameters"]
        config.update(rope_theta=5e5, eos_token_id=[2, 0])
        del config["head_dim"]

    shape = checkpoint.read(str(changed(tmp_path, "config.json", older))).shape
    assert (shape.rope_theta, shape.eos_ids, shape.head_dim) == (5e5, (2, 0), 64)


def test_unreadable_weights_are_refused(tmp_path):
    folder = changed(tmp_path, "config.json", lambda _: None)
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(EngineError, match="weights cannot be read"):
        checkpoint.read(str(folder))


def test_a_context_longer_than_the_models_is_refused():
    with pytest.raises(EngineError, match="at most 2048"):
        ReferenceEngine(ServerSettings(model="target", max_model_len=4096))


def test_a_draft_of_another_vocabulary_is_refused(tmp_path):
    folder = changed(tmp_path, "config.json", lambda c: c.update(vocab_size=5000))
    with pytest.raises(EngineError, match="another vocabulary"):
        ReferenceEngine(ServerSettings(model="target", speculation=Speculation(method="draft_model", tokens=2, model=str(folder))))


def test_default_sampling_parameters_are_those_of_the_generation_config(tmp_path):
    folder = changed(tmp_path, "generation_config.json", lambda document: document.update(temperature=0.6, top_k=20, eos_token_id=5))
    assert checkpoint.read_defaults(folder) == {"temperature": 0.6, "top_k": 20}
    assert checkpoint.read_defaults(tmp_path) == checkpoint.read_defaults(checkpoint.locate("target")) == {}
    engine = ReferenceEngine(ServerSettings(model=str(folder), max_model_len=64))
    plain, stated = (
        engine.parse(Route.COMPLETIONS, {"prompt": "A", **more}) for more in ({"top_k": None}, {"temperature": 1.0, "top_k": 5})
    )
    assert [(request.temperature, request.top_k, request.top_p) for request in (plain, stated)] == [(0.6, 20, 1.0), (1.0, 5, 1.0)]
