"""``engines``: two builds of one engine, laid over ``engine``."""

from __future__ import annotations

import pytest

from pytest_specdec.config import engines, load, variables
from pytest_specdec.config.engines import EngineName
from pytest_specdec.errors import ConfigError

WHOLE = """\
engine: {kind: vllm, model: target, venv: .venv, args: {dtype: float32, seed: 0}, env: {A: 1}}
engines:
  old: {executable: /old/vllm, args: {block-size: 16}, env: {B: 2}}
  new: {args: {seed: null}, model: target-int4}
variants:
  k3: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}}}
"""
LEAST = "engine: {kind: reference, model: target}\nvariants: {v: {}}\n"


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_the_engine_is_the_new_one_and_the_old_one_stands_beside_it(write):
    config = load.load(write(WHOLE))
    assert (config.engine.venv, config.engine.executable, config.engine.model) == (".venv", None, "target-int4")
    assert (config.engine.args, config.engine.env) == ({"dtype": "float32", "seed": None}, {"A": "1"})
    old = config.old_engine_config()
    assert (old.engine.venv, old.engine.executable, old.engine.model) == (None, "/old/vllm", "target")
    assert (old.engine.args, old.engine.env) == ({"dtype": "float32", "seed": 0, "block-size": 16}, {"A": "1", "B": "2"})
    assert (old.variants, old.old, old.text) == (config.variants, None, config.text)
    assert list(config.builds) == ["engines.old", "engines.new"]


def test_a_config_of_one_engine_has_no_old_one(write):
    config = load.load(write(LEAST))
    assert (config.old, config.builds) == (None, {"engine": config})
    with pytest.raises(ValueError, match="has no engines"):
        config.old_engine_config()


@pytest.mark.parametrize("name", EngineName)
def test_one_engine_alone_is_a_config_that_names_no_other_and_its_text_says_the_same(write, name):
    whole = load.load(write(WHOLE))
    alone = load.load(write(WHOLE), name)
    assert alone.old is None
    assert alone.document().line(("variants", "k3")) == 6, "of the file, though its text is written anew"
    assert alone.engine == (whole.old if name is EngineName.OLD else whole.engine)
    stored = load.load(write(alone.text))
    assert (stored.engine, stored.variants, stored.old) == (alone.engine, alone.variants, None)


def test_one_engine_of_a_config_that_names_one_is_an_error(write):
    with pytest.raises(ConfigError, match="the config names one engine"):
        load.load(write(LEAST), EngineName.OLD)


@pytest.mark.parametrize("text, found", [
    (LEAST + "engines: {old: {}, new: {}}\n", "two identical engines, expected old and new to differ"),
    (LEAST + "engines: {old: {args: {a: 1}}, new: {args: '{\"a\": 1}'}}\n", "two identical engines"),
    (LEAST + "engines: {old: {}}\n", "engines.new: found nothing, expected a value"),
    (LEAST + "engines: {old: {}, new: {venv: a, image: b}}\n", "engines.new: found venv and image, expected at most one"),
    (LEAST + "engines: {old: {}, new: {url: http://a}}\n", "engines.new.url: found an unknown key"),
    (LEAST + "engines: {old: {}, new: {kind: vllm}}\n", "engines.new.kind: found an unknown key"),
    (LEAST + "engines: {old: {}, new: {args: '[1]'}}\n", "engines.new.args: found a string that holds no JSON mapping"),
    (LEAST + "engines: {old: {}, new: {docker: {gpus: all}}}\n", "engines.new.docker: found settings of docker without an image"),
    (LEAST.replace("{v: {}}", "{v: {url: http://a}}") + "engines: {old: {}, new: {venv: a}}\n",
     "variants.v.url: found a server that runs already, beside `engines`"),
    (LEAST.replace("target", "target, url: http://a") + "engines: {old: {}, new: {venv: a}}\n", "engine.url: found a server that runs"),
    (LEAST + "engines: {old: {}, new: {env: {HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz0123456789}}}\n", "engines.new.env.HF_TOKEN: found"),
])  # fmt: skip
def test_what_makes_no_upgrade_is_one_clear_error(write, text, found):
    with pytest.raises(ConfigError) as caught:
        load.load(write(text))
    assert caught.value.what.startswith("the config has a problem\n")
    assert found in caught.value.what


def test_settings_of_docker_hold_for_the_images_of_both(write):
    text = LEAST.replace("target", "target, docker: {gpus: all}") + "engines: {old: {image: 'a:1'}, new: {image: 'a:2'}}\n"
    config = load.load(write(text))
    assert [build.engine.docker.gpus for build in config.builds.values()] == ["all", "all"]
    assert load.load(write(text.replace("{image: 'a:1'}", "{venv: v}"))).old_engine_config().engine.docker.gpus == ""


def test_variables_are_filled_in_both_and_those_of_the_environment_are_secrets_in_both(write):
    text = LEAST + "engines: {old: {venv: '${OLD}', env: {KEY: '${OLD_KEY}'}}, new: {venv: v}}\n"
    environ = {"OLD": "/builds/old", "OLD_KEY": "value-of-a-key"}
    assert variables.fill(load.load(write(text)), environ).old_engine_config().engine.venv == "/builds/old"
    assert variables.secrets_of(text, environ).mask("value-of-a-key /builds/old") == "*** /builds/old"


def test_each_is_described_by_what_tells_it_from_the_other_without_values_that_may_be_secrets(write):
    config = load.load(write(WHOLE))
    assert engines.describe(config.old, config.engine) == "executable /old/vllm; model target; args seed, block-size; env B"
    assert engines.describe(config.engine, config.old) == "venv .venv; model target-int4; args seed; no args block-size; no env B"
    plain = load.load(write(LEAST + "engines: {old: {}, new: {venv: v}}\n"))
    assert engines.describe(plain.old, plain.engine) == "reference as `engine` names it"
