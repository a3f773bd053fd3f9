"""A checkpoint's tokenizer: found in a folder or in the hub's cache, and read as its server reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_specdec.config import load
from pytest_specdec.engines import checkpoint, checkpoint_tokenizer
from pytest_specdec.engines.checkpoint_tokenizer import CheckpointTokenizer
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Request, Route

TARGET = Path(__file__).parents[2] / "specdec_reference" / "checkpoints" / "target"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the target's tokenizer with other settings beside it."""

    def _copy(template=None, **settings):
        shutil.copy(TARGET / "tokenizer.json", tmp_path)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        return CheckpointTokenizer.of(str(tmp_path), {})

    return _copy


def test_text_goes_to_ids_and_back_without_special_tokens():
    tokenizer = CheckpointTokenizer.of(str(TARGET), {})
    ids = tokenizer.encode("def f(x):")
    assert tokenizer.decode([*ids, *tokenizer.find_ids("<|im_end|>")]) == "def f(x):"
    assert [tokenizer.find_ids(tokenizer.name(token)) for token in ids] == [[token] for token in ids]
    assert tokenizer.name(10**6) == ""
    assert tokenizer.find_ids("no such token") == ()


def test_a_name_of_the_hub_is_looked_for_in_its_cache(tmp_path):
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert CheckpointTokenizer.of("org/name", environ) is None
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert CheckpointTokenizer.of("org/name", environ) is None
    shutil.copy(TARGET / "tokenizer.json", snapshot)
    assert CheckpointTokenizer.of("org/name", environ).encode("hi")
    assert CheckpointTokenizer.of("org/name", {}) is None


@pytest.mark.parametrize("kind", ["transformers", "tensorrt_llm"])
def test_a_server_with_a_cache_of_its_own_is_read_from_there(kind, tmp_path):
    """``engine.env`` names another cache of the hub than this process's."""
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(TARGET / name, snapshot)
    path = tmp_path / "one.yaml"
    path.write_text(f"engine: {{kind: {kind}, model: org/name, env: {{HF_HUB_CACHE: '{tmp_path}/hub'}}}}\nvariants: {{v: {{}}}}\n")
    config, engine = load.load(path), engine_of(kind)
    dialect = engine.dialect(config, ServerSetup(model="org/name", port=1, env=config.engine.env, secrets=Secrets()))
    request = Request(id="a", route=Route.COMPLETIONS, body={"prompt": "def f(x):", "temperature": 0.0})
    assert dialect.prompt_token_ids(request, lambda _: None) == CheckpointTokenizer.of(str(TARGET), {}).encode("def f(x):")
    assert engine.vocabulary(config) == checkpoint.vocabulary(TARGET)
    if kind == "transformers":
        assert json.loads(dialect.sent(request, stream=False)["generation_config"])["eos_token_id"] == [2]


def test_without_the_packages_there_is_none(monkeypatch):
    monkeypatch.setattr(checkpoint_tokenizer, "find_spec", lambda name: None if name == "tokenizers" else name)
    assert CheckpointTokenizer.of(str(TARGET), {}) is None


@pytest.mark.parametrize("text,name", [(" .", "."), (" n't", "n't"), (" x", " x")])
def test_names_lose_the_spaces_that_the_servers_decoder_takes(copy, text, name):
    cleaned = copy(clean_up_tokenization_spaces=True)
    plain = CheckpointTokenizer.of(str(TARGET), {})
    for token in plain.find_ids(text):
        assert token in cleaned.find_ids(name)


def test_a_template_may_stand_in_the_settings_and_take_arguments(copy):
    template = "{{ bos_token }}{{ messages[0].content }}{% if thinking %}!{% endif %}{{ strftime_now('%Y') }}{{ messages | tojson }}"
    tokenizer = copy(chat_template=[{"name": "default", "template": template}], bos_token={"content": "<s>"})
    text = tokenizer.decode(tokenizer.encode_chat(HELLO, {"thinking": True}))
    assert text == '<s>hi!2026-01-01[{"role": "user", "content": "hi"}]'


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no system role') }}", "{{ messages.nothing.at_all }}"])
def test_a_conversation_without_a_template_that_takes_it_has_no_ids(copy, template):
    assert copy(template).encode_chat(HELLO, {}) == ()
