"""The command line, and checkpoints that are not there or not ours."""

from __future__ import annotations

import json
import shutil

import pytest

from pytest_specdec.errors import EngineError
from pytest_specdec.reference import checkpoint
from pytest_specdec.reference.cli import ServerSettings, Speculation, parse
from pytest_specdec.reference.engine import ReferenceEngine
from pytest_specdec.reference.tokenizer import Tokenizer


def test_the_defaults_are_vllms():
    assert parse(["target"]) == ServerSettings(model="target")
    assert parse(["target"]).name == "target"
    assert parse(["target"]).token_prompts
    assert not parse(["target", "--no-token-prompts"]).token_prompts
    assert parse(["target", "--served-model-name", "me"]).name == "me"
    assert parse(["target"]).prompt_logprobs
    assert not parse(["target", "--no-prompt-logprobs"]).prompt_logprobs


@pytest.mark.parametrize(
    "config,expected",
    [
        (
            {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3},
            Speculation(method="draft_model", tokens=3, model="draft"),
        ),
        (
            {"method": "draft-model", "model": "d", "num-speculative-tokens": 1, "draft-sample-method": "probabilistic"},
            None,
        ),
        (
            {"method": "draft_model", "model": "d", "num-speculative-tokens": 1, "draft-sample-method": "probabilistic"},
            Speculation(method="draft_model", tokens=1, model="d", probabilistic=True),
        ),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}, Speculation(method="ngram", tokens=2, n_min=2, n_max=3)),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 1}, Speculation(method="ngram", tokens=2, n_min=1, n_max=1)),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 1, "prompt_lookup_min": 2}, None),
        ({"method": "ngram", "num_speculative_tokens": 0}, None),
        ({"method": "ngram", "num_speculative_tokens": True}, None),
        ({"method": "ngram"}, None),
        ({"method": "eagle3", "num_speculative_tokens": 2}, None),
        ({"method": "draft_model", "num_speculative_tokens": 2}, None),
        ({"method": "draft_model", "model": "d", "num_speculative_tokens": 2, "draft_sample_method": "hot"}, None),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_mx": 3}, None),
        ([], None),
    ],
)
def test_the_speculative_setting_is_read_in_vllms_words(config, expected):
    arguments = ["target", "--speculative-config", json.dumps(config)]
    if expected is not None:
        assert parse(arguments).speculation == expected
        return
    with pytest.raises(EngineError, match="--speculative-config"):
        parse(arguments)


def test_a_misspelt_key_is_told_its_neighbour():
    with pytest.raises(EngineError, match="did you mean 'prompt_lookup_max'"):
        parse(["target", "--speculative-config", '{"method": "ngram", "prompt_lookup_mx": 3}'])


@pytest.mark.parametrize("arguments", [["target", "--max-num-seqs", "0"], ["target", "--colour"], []])
def test_a_wrong_option_ends_with_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments,told",
    [
        (["target", "--speculative-config", "{"], "a JSON object"),
        (["target", "--per-request-spec-decode-metrics", "detailed"], "a baseline has no speculation"),
    ],
)
def test_settings_that_contradict_are_refused(arguments, told):
    with pytest.raises(EngineError, match=told):
        parse(arguments)


def test_a_path_is_a_checkpoint_too(tmp_path):
    shutil.copytree(checkpoint.locate("draft"), tmp_path / "mine")
    assert checkpoint.read(str(tmp_path / "mine")).shape == checkpoint.read("draft").shape


@pytest.mark.parametrize("name,told", [("targte", "did you mean 'target'"), ("/nowhere/at/all", "no such folder")])
def test_a_missing_checkpoint_is_one_clear_error(name, told):
    with pytest.raises(EngineError, match=told):
        checkpoint.locate(name)


def test_a_folder_that_is_no_checkpoint_says_what_it_lacks(tmp_path):
    with pytest.raises(EngineError, match=r"a folder without config\.json, model\.safetensors"):
        checkpoint.locate(str(tmp_path))


def changed(tmp_path, name, change):
    folder = tmp_path / "mine"
    shutil.copytree(checkpoint.locate("draft"), folder)
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))
    return folder


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


def test_another_kind_of_tokenizer_is_refused(tmp_path):
    folder = changed(tmp_path, "tokenizer.json", lambda t: t.update(decoder={"type": "WordPiece"}))
    with pytest.raises(EngineError, match="ByteLevel"):
        Tokenizer(folder, 4096)


def test_a_checkpoint_without_a_template_refuses_conversations_only(tmp_path):
    folder = changed(tmp_path, "config.json", lambda _: None)
    (folder / "chat_template.jinja").unlink()
    tokenizer = Tokenizer(folder, 4096)
    assert tokenizer.encode("def")
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.converse([{"role": "user", "content": "x"}])


def test_a_template_that_raises_refuses_the_messages(tmp_path):
    folder = changed(tmp_path, "config.json", lambda _: None)
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ValueError, match="refuses these messages"):
        Tokenizer(folder, 4096).converse([])


def test_words_decode_as_the_tokenizer_decodes():
    tokenizer = Tokenizer(checkpoint.locate("target"), 4096)
    text = "naïve «déjà vu» 你好 🙂\n\tx"
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.pieces[i] for i in ids).decode() == text
    assert tokenizer._encoder.decode(ids) == text
    assert (tokenizer.words[1], tokenizer.pieces[1]) == ("<|im_start|>", b"")


def test_a_context_longer_than_the_models_is_refused():
    with pytest.raises(EngineError, match="at most 2048"):
        ReferenceEngine(ServerSettings(model="target", max_model_len=4096))


def test_a_draft_of_another_vocabulary_is_refused(tmp_path):
    folder = changed(tmp_path, "config.json", lambda c: c.update(vocab_size=5000))
    with pytest.raises(EngineError, match="another vocabulary"):
        ReferenceEngine(ServerSettings(model="target", speculation=Speculation(method="draft_model", tokens=2, model=str(folder))))
