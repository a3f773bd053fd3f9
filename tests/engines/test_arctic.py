"""Arctic Inference: the plugin is on in every arm, its keys are its own, and a vLLM that runs without it is a boot that failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.config.config import Config, EngineSettings, Overlay, VariantSettings
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import BootError, EngineError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import DraftKind
from tests.engines.doubles import arctic as double

SPECULATOR = {"method": "arctic", "model": "draft", "num_speculative_tokens": 3}


def variant(**setting):
    return VariantSettings(name="v", args={"speculative-config": setting})


@pytest.fixture
def config(tmp_path):
    return Config(
        name="one",
        path=tmp_path / "one.yaml",
        text="",
        engine=EngineSettings(kind="arctic", model="target", executable=str(double.vllm(tmp_path))),
        variants=(variant(**SPECULATOR),),
    )


def setup(**fields):
    return ServerSetup(**{"model": "target", "port": ports.free(), "secrets": Secrets(), **fields})


def test_the_plugin_is_on_in_the_baseline_too(config):
    command = engine_of("arctic").command(config, setup())
    assert command.env["ARCTIC_INFERENCE_ENABLED"] == "1"
    assert command.argv[1:3] == ("serve", "target")


@pytest.mark.parametrize(
    "setting,kind",
    [
        (SPECULATOR, DraftKind.HEAD),
        ({**SPECULATOR, "enable_suffix_decoding": True}, DraftKind.UNKNOWN),
        ({"method": "suffix", "num_speculative_tokens": 3}, DraftKind.UNKNOWN),
        ({"method": "ngram", "num_speculative_tokens": 3}, DraftKind.NGRAM),
    ],
)
def test_a_speculator_is_no_model_that_can_be_served_alone(setting, kind):
    draft = engine_of("arctic").draft({"speculative-config": setting})
    assert draft is not None
    assert (draft.kind, draft.tokens, draft.model) == (kind, 3, None)


@pytest.mark.parametrize("keys,most", [({}, 0), ({"disable_by_batch_size": 4}, 0), ({"hard_disable_by_batch_size": 4}, 3)])
def test_only_the_hard_limit_leaves_a_batch_without_drafts(keys, most):
    assert engine_of("arctic").draft({"speculative-config": {**SPECULATOR, **keys}}).most_requests == most


@pytest.mark.parametrize(
    "keys,tokens",
    [({}, 16), ({"num_speculative_tokens": 5}, 5), ({"num_speculative_tokens": 5, "suffix_speculative_tokens": 8}, 8)],
)
def test_suffix_decoding_drafts_as_many_tokens_as_the_plugin_takes_from_its_keys(keys, tokens):
    assert engine_of("arctic").draft({"speculative-config": {"method": "suffix", **keys}}).tokens == tokens


def test_vllms_own_keys_of_suffix_decoding_are_refused_with_the_plugins_name(config):
    wrong = variant(method="suffix", num_speculative_tokens=3, suffix_decoding_max_tree_depth=24)
    with pytest.raises(EngineError, match="did you mean suffix_cache_max_depth") as caught:
        engine_of("arctic").check(replace(config, variants=(wrong,)))
    assert "variants.v.args.speculative-config" in str(caught.value)
    engine_of("arctic").check(replace(config, variants=(variant(method="suffix", num_speculative_tokens=3, suffix_cache_max_depth=24),)))


def test_an_arm_without_the_plugin_is_refused(config):
    without = Overlay(env={"ARCTIC_INFERENCE_ENABLED": "0"})
    with pytest.raises(EngineError, match=r"baseline\.env\.ARCTIC_INFERENCE_ENABLED"):
        engine_of("arctic").check(replace(config, baseline=without))


@pytest.fixture
def arm(config, tmp_path):
    def _arm(**env):
        engine, fields = engine_of("arctic"), setup(args={"speculative-config": SPECULATOR}, env=env, speculative=True)
        recipe = ServerRecipe(
            dialect=engine.dialect(config, fields),
            setup=fields,
            command=engine.command(config, fields),
            draft_tokens=3,
            log=tmp_path / "server.log",
            boot_s=60.0,
            stop_s=2.0,
        )
        return ArmServer(recipe, heartbeat=lambda: None)

    return _arm


def test_a_server_with_the_banner_in_its_log_is_ready(arm):
    with arm() as server:
        assert server.running


def test_a_vllm_that_the_plugin_is_not_made_for_is_a_boot_that_failed(arm):
    """Such a vLLM runs on without a word of it: the double's takes the reference engine's own setting then."""
    server = arm(ARCTIC_DOUBLE_OTHER_RELEASE="1")
    plain = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}
    args = {**server.recipe.setup.args, "speculative-config": plain}
    fields = replace(server.recipe.setup, args=args)
    argv = [word.replace('"method":"arctic"', '"method":"draft_model"') for word in server.recipe.command.argv]
    server.recipe = replace(server.recipe, setup=fields, command=replace(server.recipe.command, argv=tuple(argv)))
    with pytest.raises(BootError, match="Arctic Inference plugin is enabled!"):
        server.start()
    assert not server.running
