from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pytest_specdec.config import load, shipped
from pytest_specdec.config.config import Overlay
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.baseline import Slo
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.workload import Family

SUITES = Path(__file__).parents[2] / "suites" / "configs"
LEAST = "engine: {kind: reference, model: target}\nvariants: {v: {}}\n"


@pytest.fixture
def write(tmp_path):
    """Write a config file and return its path."""

    def written(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def told(path):
    """The problems of a config, one a line, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        load.load(path)
    what, *lines = caught.value.what.splitlines()
    assert what == ("the config has a problem" if len(lines) == 1 else f"the config has {len(lines)} problems")
    return [line.strip().removeprefix(f"{path}:") for line in lines]


def test_the_config_that_comes_with_the_suites_loads():
    config = load.load(SUITES / "reference.yaml")
    assert (config.name, config.engine.kind, config.engine.model) == ("reference", "reference", "target")
    assert [variant.name for variant in config.variants] == ["draft-k3", "ngram-k3"]
    assert config.engine.args == {"max-num-seqs": 32, "max-model-len": 1024}
    assert config.speed == Overlay(args={"padded-layers": 24})
    assert config.variant("ngram-k3").args["speculative-config"]["method"] == "ngram"
    assert repr(config) == "<Config reference: reference target, draft-k3, ngram-k3>"


def test_the_config_that_comes_with_the_suites_points_editors_at_the_schema():
    first = (SUITES / "reference.yaml").read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (SUITES / first.partition("$schema=")[2]).resolve().is_file()


def test_the_least_config_gets_the_defaults(write):
    config = load.load(write(LEAST))
    assert (config.placement, config.lossy, config.require, config.allow_inconclusive) == (Placement.IN_TURN, False, (), ())
    assert (config.limits.boot_s, config.limits.request_s, config.limits.stop_s) == (600.0, 120.0, 20.0)
    (gate,) = config.gates
    assert (gate.figure, gate.at_least, gate.source) == ("speedup", 1.0, "mine.yaml: gates.speedup (default)")


FULL = """\
engine:
  kind: vllm
  model: ./model
  args: '{"max-model-len": 4096, "sc": {"k": [1]}}'
  env: {A: 1, B: "on", HF_TOKEN: "${HF_TOKEN}"}
  venv: .venv
  api_key: ${KEY}
variants:
  eagle3-k3:
    args: {speculative-config: '{"method": "eagle3"}', max-model-len: null}
    env: {C: x}
baseline: {args: {a: 1}}
draft: {args: {b: 2}, env: {D: 3}}
placement: in-turn
lossy: true
require: [json_schema]
allow_inconclusive: [sampling]
gates:
  acceptance_length: {at_least: 2}
  speedup: {at_least: 1.5}
slo: {ttft_s: 0.5, tpot_s: 0.05}
limits: {boot_s: 60, devices: [0, GPU-7]}
"""


def test_everything_is_read_and_values_of_args_stay_as_they_are(write):
    config = load.load(write(FULL))
    assert config.engine.args == {"max-model-len": 4096, "sc": {"k": [1]}}
    assert config.engine.env == {"A": "1", "B": "on", "HF_TOKEN": "${HF_TOKEN}"}
    assert config.variants[0].args == {"speculative-config": '{"method": "eagle3"}', "max-model-len": None}
    assert (config.baseline.args, config.draft.env) == ({"a": 1}, {"D": "3"})
    assert (config.engine.venv, config.engine.api_key, config.lossy) == (".venv", "${KEY}", True)
    assert (config.require, config.allow_inconclusive, config.limits.boot_s) == (("json_schema",), (Family.SAMPLING,), 60.0)
    assert config.limits.devices == ("0", "GPU-7")
    assert [(gate.figure, gate.at_least, gate.source) for gate in config.gates] == [
        ("acceptance_length", 2.0, "mine.yaml:19 gates.acceptance_length"),
        ("speedup", 1.5, "mine.yaml:20 gates.speedup"),
    ]
    assert config.slo == Slo(ttft_s=0.5, tpot_s=0.05)
    assert str(config.slo) == "time to first token 500 ms, time per token 50 ms"
    assert config.published == ()
    assert config.text == FULL


PROBLEMS = [
    (
        "engin: {kind: reference, model: target}\nvariants: {v: {}}\n",
        ["1  engin: found an unknown key, expected {top}; did you mean 'engine'?"],
    ),
    ("engine: {kind: reference, model: target}\nvariants: {}\n", ["2  variants: found none, expected at least one"]),
    ("engine: {kind: reference}\nvariants: {v: {}}\n", ["1  engine.model: found nothing, expected a value: it must be given"]),
    ("", ["1  the file: found nothing, expected a mapping"]),
    ("- 1\n", ["1  the file: found [1], expected a mapping"]),
    ("engine:\nvariants: {v: {}}\n", ["1  engine: found nothing, expected a mapping"]),
    (LEAST + "variant: 1\n", ["3  variant: found an unknown key, expected {top}; did you mean 'variants'?"]),
    (LEAST + "zzz: 1\n", ["3  zzz: found an unknown key, expected {top}"]),
    (LEAST + "lossy: on\n", ['3  lossy: found "on", expected true or false']),
    (
        LEAST + "placement: side-by-sid\n",
        ["3  placement: found \"side-by-sid\", expected in-turn, side-by-side or auto; did you mean 'side-by-side'?"],
    ),
    (LEAST + "require:\n  - json_schema\n  - JSON\n", ['5  require[1]: found "JSON", expected the name of a feature, such as json_schema']),
    (LEAST + "require: [seed, n, seed]\n", ["3  require: found seed twice, expected each once"]),
    (LEAST + "gates: {speedup: {at_least: .nan}}\n", ["3  gates.speedup.at_least: found nan, expected a number"]),
    (LEAST + "gates: {acceptance_length: {at_least: .inf}}\n", ["3  gates.acceptance_length.at_least: found inf, expected a number"]),
    (LEAST + "gates: {speedup: {at_least: 0}}\n", ["3  gates.speedup.at_least: found 0, expected more than 0"]),
    (LEAST + "slo: {tpot_s: .inf}\n", ["3  slo.tpot_s: found inf, expected a number"]),
    (LEAST + "slo: {}\n", ["3  slo: found none, expected at least one"]),
    (LEAST + "slo: {itl_s: 1}\n", ["3  slo.itl_s: found an unknown key, expected ttft_s, tpot_s or request_s"]),
    (
        LEAST + "published: [{speedup: 2}]\n",
        [
            "3  published[0].setup: found nothing, expected a value: it must be given",
            "3  published[0].source: found nothing, expected a value: it must be given",
        ],
    ),
    (LEAST + "gates: {speedup: {}}\n", ["3  gates.speedup: found none, expected at least one"]),
    (
        LEAST + "gates: {speed: {at_least: 1}}\n",
        ["3  gates.speed: found an unknown key, expected speedup, acceptance_length, upgrade or verify_noise; did you mean 'speedup'?"],
    ),
    (LEAST + "limits: {boot_s: ten}\n", ['3  limits.boot_s: found "ten", expected a number']),
    (
        "engine:\n  kind: reference\n  model: target\n  env: {A: true, B-C: x}\nvariants: {v: {}}\n",
        [
            "4  engine.env.A: found true, expected a string or a whole number; quote it",
            "4  engine.env.B-C: found this name, expected the name of a variable, such as OMP_NUM_THREADS",
        ],
    ),
    (
        "engine:\n  kind: Reference!\n  model: ''\n  image: a\n  venv: b\n  executable: c\nvariants: {v: {}}\n",
        [
            "1  engine: found executable, venv and image, expected at most one of executable, venv and image",
            '2  engine.kind: found "Reference!", expected the name of an engine: lower-case letters, digits, - and _',
            "3  engine.model: found an empty string, expected at least one character",
        ],
    ),
    (
        "engine: {kind: reference, model: target}\nvariants:\n  Eagle_3: {}\n  control: {}\n  ok: {arg: {}}\n",
        [
            "3  variants.Eagle_3: found this name, expected lower-case letters, digits and dashes, such as eagle3-k3",
            "4  variants.control: found a name that means another arm, expected a name other than baseline, control, draft and scorer",
            (
                "5  variants.ok.arg: found an unknown key, expected args, env, url, metrics_url, served_as, headers, body, "
                "drafting_depends_on_load or draft_context; did you mean 'args'?"
            ),
        ],
    ),
    (
        "engine: {kind: reference, model: target, args: '[1]'}\nvariants:\n  v: {args: '{'}\ndraft: {args: 5}\n",
        [
            "1  engine.args: found a string that holds no JSON mapping: '[1]', expected a mapping, or JSON that holds one",
            "3  variants.v.args: found a string that holds no JSON mapping: '{{', expected a mapping, or JSON that holds one",
            "4  draft.args: found 5, expected a mapping or a string; quote it",
        ],
    ),
    (
        LEAST + "allow_inconclusive: [gredy]\nlimits: 1\nrequire: " + "x" * 70 + "\n",
        [
            "3  allow_inconclusive[0]: found \"gredy\", expected {families}; did you mean 'greedy'?",
            "4  limits: found 1, expected a mapping",
            '5  require: found "' + "x" * 58 + "…, expected a list",
        ],
    ),
]
TOP = (
    "engine, engines, variants, matrix, baseline, draft, speed, stack, scorer, may_kill, images, public, placement, lossy, require, "
    "allow_inconclusive, waivers, gates, slo, published, prompts, reasoning, between, endurance, cluster or limits"
)
FAMILIES = f"{', '.join(Family)} or the dotted name of another package's family, such as acme.tone"


@pytest.mark.parametrize("text, expected", PROBLEMS)
def test_all_problems_are_told_at_once_in_the_order_of_the_file(write, text, expected):
    assert told(write(text)) == [line.format(top=TOP, families=FAMILIES) for line in expected]


def test_a_required_feature_that_no_request_asks_for_is_told_with_the_nearest(write):
    (problem,) = told(write(LEAST + "require: [json_shema]\n"))
    assert problem.startswith("3  require[0]: found 'json_shema', which no request asks for")
    assert problem.endswith("did you mean 'json_schema'?")


def test_a_duplicate_key_is_told_with_both_lines(write):
    with pytest.raises(ConfigError, match="the key 'v' again, first on line 3"):
        load.load(write("engine: {kind: reference, model: target}\nvariants:\n  v: {}\n  v: {}\n"))


@pytest.mark.parametrize(
    "make",
    [lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\xfe\x00"), lambda path: None],
    ids=["folder", "bytes", "absent"],
)
def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path, make):
    make(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="the config cannot be read"):
        load.load(tmp_path / "x.yaml")


@pytest.mark.parametrize("name", ["reference", "reference.yaml", "suites/configs/reference", str(SUITES / "reference.yaml")])
def test_a_config_is_found_by_name_or_path(name):
    assert load.find(name, SUITES.parents[1]) == SUITES / "reference.yaml"


def test_a_shipped_config_is_found_from_anywhere(tmp_path):
    assert load.find("reference", tmp_path) == shipped.CONFIGS / "reference.yaml"
    assert shipped.CONFIGS == SUITES


def test_a_file_here_comes_before_the_roots_its_suites_and_the_shipped_ones(tmp_path):
    here, root = tmp_path / "here", tmp_path / "root"
    places = [
        here / "reference.yml",
        root / "reference.yaml",
        root / "suites/configs/reference.yaml",
        here / "suites/configs/reference.yaml",
    ]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LEAST)
    for path in places:
        assert load.find("reference", here, root) == path
        path.unlink()
    assert load.find("reference", here, root) == SUITES / "reference.yaml"


def test_a_config_that_is_not_there_is_told_with_the_nearest_name_all_names_and_where_they_were_looked_for(tmp_path):
    (tmp_path / "my-model.yaml").write_text(LEAST)
    with pytest.raises(ConfigError, match="no config my-modle; did you mean 'my-model'") as caught:
        load.find("my-modle", tmp_path)
    assert caught.value.expected.removeprefix("a path, or one of ").split(", ") == [
        "my-model",
        *sorted(path.stem for path in SUITES.glob("*.yaml")),
    ]
    assert caught.value.where.split(", ") == [str(tmp_path), str(SUITES)]
    assert "init my-modle" in caught.value.remedy


@pytest.mark.parametrize("name", ["", "."])
def test_an_empty_name_is_no_config(tmp_path, name):
    (tmp_path / ".yaml").write_text(LEAST)
    with pytest.raises(ConfigError, match="no config"):
        load.find(name, tmp_path)


def test_a_config_without_any_folder_is_told_too(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "CONFIGS", tmp_path / "configs")
    with pytest.raises(ConfigError) as caught:
        load.find("mine/x.yaml", tmp_path)
    assert (caught.value.what, caught.value.expected) == ("no config mine/x.yaml", "a path")


def test_what_stands_beside_the_config_becomes_absolute_and_the_rest_stays(write, tmp_path):
    (tmp_path / "model").mkdir()
    config = load.load(write(LEAST))
    assert config.resolve("model") == config.resolve("./model") == str(tmp_path / "model")
    for name in ("Qwen/Qwen3-8B", "target", "", str(tmp_path / "absent")):
        assert config.resolve(name) == name
    assert config.resolve("~") == str(Path.home())


def test_an_unknown_variant_is_a_key_error(write):
    with pytest.raises(KeyError):
        load.load(write(LEAST)).variant("w")


def test_a_problem_prints_without_a_suggestion_when_there_is_none():
    from pytest_specdec.config.validate import Problem

    problem = Problem(source="x.yaml", line=3, path="a.b", found="1", expected="2")
    assert str(problem) == "x.yaml:3  a.b: found 1, expected 2"
    assert {field.name for field in fields(Problem)} >= {"source", "line", "path", "found", "expected", "suggestion"}


@pytest.mark.parametrize("text, depends", [("{}", False), ("{drafting_depends_on_load: true}", True)])
def test_a_variant_may_say_that_its_drafting_depends_on_load(write, text, depends):
    config = load.load(write(f"engine: {{kind: reference, model: target}}\nvariants: {{v: {text}}}\n"))
    assert config.variant("v").drafting_depends_on_load is depends
