from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.config import load, variables
from pytest_specdec.config.variables import expand, fill
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
    engine = fill(load.load(path), {"M": "Qwen", "TAG": "v0.32.0", "KEY": "secret"}).engine
    assert (engine.model, engine.image, engine.api_key, engine.venv) == ("Qwen/m", "vllm/vllm-openai:v0.32.0", "${KEY}", None)


def test_a_model_of_an_unset_variable_is_told_by_its_key(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("engine: {kind: vllm, model: '${M}'}\nvariants: {v: {}}\n")
    with pytest.raises(ConfigError, match=r"M is not set\n  where:    engine\.model"):
        fill(load.load(path), {})


EVERYWHERE = """\
engine:
  kind: vllm
  model: ${V}
  image: org/x:${V}
  args: {dtype: '${V}', nested: [{deep: 'a-${V}'}]}
  docker: {options: ['--shm-size=${V}'], volumes: {'/${V}': '/m/${V}'}, gpus: ['${V}'], entrypoint: '${V}'}
variants: {v: {args: {speculative-config: {method: '${V}', model: 'm-${V}'}}}}
baseline: {args: {x: '${V}'}}
draft: {args: '{"y": "${V}"}'}
"""


def test_every_string_of_a_config_is_filled_in(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(EVERYWHERE)
    config = fill(load.load(path), {"V": "7"})
    engine = config.engine
    assert (engine.model, engine.image, dict(engine.args)) == ("7", "org/x:7", {"dtype": "7", "nested": [{"deep": "a-7"}]})
    assert (engine.docker.options, engine.docker.volumes) == (("--shm-size=7",), {"/7": "/m/7"})
    assert (engine.docker.gpus, engine.docker.entrypoint) == ("7", "7")
    assert config.variants[0].args == {"speculative-config": {"method": "7", "model": "m-7"}}
    assert (config.baseline.args, config.draft.args) == ({"x": "7"}, {"y": "7"})


@pytest.mark.parametrize("line", ["  api_key: ${NO}", "  env: {A: '${NO}'}", "  docker: {gpus: '${NO}'}\n  image: x"])
def test_a_variable_that_is_not_set_is_an_error_wherever_it_stands(tmp_path, line):
    path = tmp_path / "c.yaml"
    path.write_text(f"engine:\n  kind: vllm\n  model: m\n{line}\nvariants: {{v: {{}}}}\n")
    with pytest.raises(ConfigError, match="the environment variable NO is not set") as caught:
        fill(load.load(path), {})
    assert caught.value.where.startswith("engine.")


@pytest.mark.parametrize(
    "line, path, found",
    [
        ("  model: 'm:${TAG:-latest}'", "engine.model", "${TAG:-latest}"),
        ("  model: 'm-${TAG'", "engine.model", "${TAG"),
        ("  model: m\n  args: {x: '${A}-${B-'}", "engine.args.x", "${B-"),
        ("  model: m\n  args: {'${FLAG}': 1}", "engine.args.${FLAG}", "a variable in the name ${FLAG}"),
        ("  model: m\n  args: {c: {'x-${FLAG}': 1}}", "engine.args.c.x-${FLAG}", "a variable in the name x-${FLAG}"),
    ],
)
def test_what_only_looks_like_a_variable_is_refused(tmp_path, line, path, found):
    (tmp_path / "c.yaml").write_text(f"engine:\n  kind: vllm\n{line}\nvariants: {{v: {{}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load.load(tmp_path / "c.yaml")
    assert f"  {path}: found {found}, expected" in caught.value.what


@pytest.mark.parametrize(
    "line, path",
    [
        ("limits: {boot_s: '${V}'}", "limits.boot_s"),
        ("placement: '${V}'", "placement"),
        ("require: ['${V}']", "require[0]"),
        ("gates: {speedup: {at_least: '${V}'}}", "gates.speedup.at_least"),
    ],
)
def test_where_no_variable_may_stand_the_error_says_so(tmp_path, line, path):
    (tmp_path / "c.yaml").write_text(f"engine: {{kind: vllm, model: m}}\nvariants: {{v: {{}}}}\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load.load(tmp_path / "c.yaml")
    assert f'c.yaml:3  {path}: found "${{V}}", expected' in caught.value.what
    assert "write it out: variables stand in the texts of engine" in caught.value.what


PRIVATE = """
engine:
  kind: attach
  model: ${MODEL}
  headers: {Cookie: "session=${SESSION}", X-Subscription: "${SUBSCRIPTION}"}
  body: {model: "${MODEL}", metadata: [{team: "${TEAM}"}]}
  env: {DATABASE: "${DATABASE}", HF_HOME: "${SCRATCH}/hf", COUNT: "${COUNT}"}
baseline: {url: "http://${HOST}"}
variants: {v: {url: http://b, headers: {X-Route: "${ROUTE}"}, args: {fault: "${FAULT}"}}}
scorer: {kind: attach, model: m, headers: {X-Team: "${TEAM}"}}
"""
VALUES = {
    "MODEL": "Qwen/Qwen3-32B",
    "SESSION": "c2Vzc2lvbg",
    "SUBSCRIPTION": "0f1e2d3c4b5a",
    "TEAM": "platform",
    "DATABASE": "postgres://u:pw@h/db",
    "SCRATCH": "/scratch/me",
    "COUNT": "4096",
    "HOST": "gpu-7:8000",
    "ROUTE": "fast-lane",
    "FAULT": "accept-all",
}


@pytest.mark.parametrize("more, public", [("", set()), ("public: [TEAM, ROUTE]", {"TEAM", "ROUTE"})])
def test_what_headers_bodies_and_environments_take_is_secret_by_any_name(more, public):
    """Models, paths and short numbers stay readable, and so does what the config names as public."""
    masked = variables.secrets_of(PRIVATE + more, VALUES)
    secret = {name for name, value in VALUES.items() if masked.mask(f"<{value}>") != f"<{value}>"}
    assert secret == {"SESSION", "SUBSCRIPTION", "TEAM", "DATABASE", "ROUTE"} - public


@pytest.mark.parametrize("name", ["Cookie", "Ocp-Apim-Subscription-Key", "X-Api-Token", "X-Anything", "Authorization"])
@pytest.mark.parametrize("part", ["engine", "baseline", "variants.v"])
def test_a_header_that_is_written_out_is_refused_and_not_shown(tmp_path, name, part):
    layers = {"engine": "", "baseline": "", "variants.v": ""} | {part: f"headers: {{{name}: open-barley}}"}
    engine, baseline, variant = layers.values()
    text = f"engine: {{kind: attach, model: m, {engine}}}\nbaseline: {{{baseline}}}\nvariants: {{v: {{{variant}}}}}\n"
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match="written out") as caught:
        load.load(tmp_path / "c.yaml")
    assert f"{part}.headers.{name}: found a" in str(caught.value)
    assert "open-barley" not in str(caught.value)


def test_harmless_headers_may_be_written_out(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("engine: {kind: attach, model: m, headers: {User-Agent: gate/1, x-title: nightly}}\nvariants: {v: {}}\n")
    assert load.load(path).engine.headers == {"User-Agent": "gate/1", "x-title": "nightly"}


def test_a_public_variable_that_nothing_takes_is_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("engine: {kind: attach, model: m, headers: {X-Team: '${TEAM}'}}\nvariants: {v: {}}\npublic: [TAEM]\n")
    with pytest.raises(ConfigError, match=r"TAEM, which nothing in the config takes.*did you mean 'TEAM'"):
        load.load(path)
