from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.config import load
from pytest_specdec.config.variables import expand, filled
from pytest_specdec.errors import ConfigError

ENVIRON = {"KEY": "secret", "OTHER": "${KEY}", "EMPTY": ""}


@pytest.mark.parametrize(
    "value, expected",
    [
        ("${KEY}", "secret"),
        ("a-${KEY}-${KEY}", "a-secret-secret"),
        ("${OTHER}", "${KEY}"),
        ("${EMPTY}", ""),
        ("$KEY", "$KEY"),
        ("${}", "${}"),
        ("$${KEY}", "$secret"),
        ({"${KEY}": ["${KEY}", 1, None, {"x": "${KEY}"}]}, {"${KEY}": ["secret", 1, None, {"x": "secret"}]}),
        (("${KEY}",), ["secret"]),
    ],
)
def test_variables_are_filled_in_once_and_in_values_only(value, expected):
    assert expand(value, ENVIRON) == expected


@settings(deadline=None, derandomize=True)
@given(st.recursive(st.none() | st.integers() | st.text(st.characters(exclude_characters="$")), st.lists, max_leaves=5))
def test_what_has_no_variable_stays(value):
    assert expand(value, {}) == value


def test_an_unset_variable_is_told_with_its_place_and_the_remedy():
    with pytest.raises(ConfigError) as caught:
        expand({"env": ["x", "${HF_TOKN}"]}, {"HF_TOKEN": "x"}, ("engine",))
    error = caught.value
    assert (error.what, error.where) == ("the environment variable HF_TOKN is not set", "engine.env[1]")
    assert error.remedy == "export HF_TOKN=…; did you mean 'HF_TOKEN'?"


def test_an_unset_variable_like_no_other_has_no_nearest_name():
    with pytest.raises(ConfigError) as caught:
        expand("${ZZZ}", {})
    assert (caught.value.where, caught.value.remedy) == ("the file", "export ZZZ=…")


def test_the_model_and_where_the_engine_stands_are_filled_in(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("engine: {kind: vllm, model: '${M}/m', image: 'vllm/vllm-openai:${TAG}', api_key: '${KEY}'}\nvariants: {v: {}}\n")
    engine = filled(load.load(path), {"M": "Qwen", "TAG": "v0.32.0", "KEY": "secret"}).engine
    assert (engine.model, engine.image, engine.api_key, engine.venv) == ("Qwen/m", "vllm/vllm-openai:v0.32.0", "${KEY}", None)


def test_a_model_of_an_unset_variable_is_told_by_its_key(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("engine: {kind: vllm, model: '${M}'}\nvariants: {v: {}}\n")
    with pytest.raises(ConfigError, match=r"M is not set\n  where:    engine\.model"):
        filled(load.load(path), {})
