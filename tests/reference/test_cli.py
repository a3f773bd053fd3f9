"""The command line of the reference engine: defaults, the speculative setting, and settings that contradict."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.errors import EngineError
from specdec_reference.cli import ServerSettings, Speculation, parse


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
        (
            {"method": "draft_model", "model": "d", "num_speculative_tokens": 1, "max_model_len": 64},
            Speculation(method="draft_model", tokens=1, model="d", max_model_len=64),
        ),
        ({"method": "draft_model", "model": "d", "num_speculative_tokens": 1, "max_model_len": 0}, None),
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
    "arguments,words",
    [
        (["target", "--speculative-config", "{"], "a JSON object"),
        (["target", "--per-request-spec-decode-metrics", "detailed"], "a baseline has no speculation"),
    ],
)
def test_settings_that_contradict_are_refused(arguments, words):
    with pytest.raises(EngineError, match=words):
        parse(arguments)
