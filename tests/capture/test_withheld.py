"""Workloads with needs are sent where the config, the engine's arguments or the checkpoint tell that the servers meet them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_specdec.capture.events import events_of
from pytest_specdec.capture.stated_limits import admitted_tokens
from pytest_specdec.capture.withheld import withheld_workloads
from pytest_specdec.capture.workloads import apply_config
from pytest_specdec.config.config import Config, Endurance, EngineSettings, Overlay, StackProcess, VariantSettings
from pytest_specdec.engines.attach import Attach
from pytest_specdec.engines.llama_cpp.adapter import LlamaCpp
from pytest_specdec.engines.reference import Reference
from pytest_specdec.engines.sglang.adapter import Sglang
from pytest_specdec.engines.vllm.adapter import Vllm
from pytest_specdec.model.event import EventStep
from pytest_specdec.model.workload import Family
from pytest_specdec.prompts import between
from pytest_specdec.prompts.endurance import mixed_traffic
from pytest_specdec.prompts.images import conversations
from pytest_specdec.prompts.thinking import BUDGETS

IMAGES = conversations()


def config(folder, kind, model="target", variant=None, **args):
    engine = EngineSettings(kind=kind, model=str(model), args=args)
    variants = (VariantSettings(name="v", args=variant or {}),)
    return Config(name="c", path=folder / "c.yaml", text="", engine=engine, variants=variants)


def test_traffic_for_minutes_is_sent_for_as_long_as_the_config_says(tmp_path):
    traffic, base = mixed_traffic(), config(tmp_path, "reference")
    lasting = replace(base, endurance=Endurance(minutes=2.0))
    reason = withheld_workloads(base, Reference(), [(traffic, Family.ENDURANCE)])[traffic.name]
    assert "endurance: {minutes: 30}" in reason
    assert not withheld_workloads(lasting, Reference(), [(traffic, Family.ENDURANCE)])
    assert apply_config(traffic, lasting, ()).soak_s == 120.0


def withheld(base, engine):
    return withheld_workloads(base, engine, [(IMAGES, Family.IMAGES)]).get("images", "")


@pytest.mark.parametrize("engine", [Vllm(), Sglang()], ids=["vllm", "sglang"])
def test_a_checkpoint_with_a_vision_part_is_sent_images(engine, tmp_path):
    for name, settings in (("seeing", {"vision_config": {}}), ("blind", {"architectures": ["Qwen3ForCausalLM"]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(settings))
    assert not withheld(config(tmp_path, engine.kind, tmp_path / "seeing"), engine)
    assert "takes text alone" in withheld(config(tmp_path, engine.kind, tmp_path / "blind"), engine)
    assert "images: true in the config" in withheld(config(tmp_path, engine.kind, "nobody/here"), engine)


@pytest.mark.parametrize(
    "engine, args",
    [
        (Vllm(), {"limit-mm-per-prompt": {"image": 0}}),
        (Vllm(), {"language-model-only": True}),
        (Sglang(), {"enable-multimodal": False}),
    ],
)
def test_an_argument_may_leave_images_out(engine, args, tmp_path):
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    assert not withheld(config(tmp_path, engine.kind, tmp_path), engine)
    assert "takes text alone" in withheld(config(tmp_path, engine.kind, tmp_path, **args), engine)
    assert "takes text alone" in withheld(config(tmp_path, engine.kind, tmp_path, variant=args), engine)


def test_llama_cpp_needs_a_projector_in_every_arm(tmp_path):
    engine = LlamaCpp()
    assert not withheld(config(tmp_path, "llama_cpp", "a.gguf", mmproj="b.gguf"), engine)
    assert "takes text alone" in withheld(config(tmp_path, "llama_cpp", "a.gguf"), engine)
    assert "takes text alone" in withheld(config(tmp_path, "llama_cpp", "a.gguf", variant={"mmproj": "b.gguf"}), engine)
    assert "tell" in withheld(config(tmp_path, "llama_cpp", "ggml-org/some-model"), engine)


def test_the_reference_engine_takes_images_with_its_flag(tmp_path):
    assert not withheld(config(tmp_path, "reference", images=True), Reference())
    assert "takes text alone" in withheld(config(tmp_path, "reference"), Reference())


@pytest.mark.parametrize(
    "engine, tier",
    [
        (Reference(), {"offload-blocks": 8}),
        (Vllm(), {"kv-offloading-size": 4}),
        (Vllm(), {"kv-transfer-config": {"kv_connector": "LMCacheConnectorV1"}}),
    ],
)
def test_a_second_tier_is_needed_in_every_arm(engine, tier, tmp_path):
    without = dict.fromkeys(tier)
    assert engine.why_not_offloaded(config(tmp_path, engine.kind)).startswith("needs")
    assert engine.why_not_offloaded(config(tmp_path, engine.kind, variant=tier)).startswith("needs")
    assert engine.why_not_offloaded(config(tmp_path, engine.kind, variant=without, **tier)).startswith("needs")
    assert not engine.why_not_offloaded(config(tmp_path, engine.kind, **tier))
    every_arm = replace(config(tmp_path, engine.kind, variant=tier), baseline=Overlay(args=tier))
    assert not engine.why_not_offloaded(every_arm)


def a_stack(*args):
    return tuple(StackProcess(name=f"rank-{rank}", args=each, is_asked=not rank) for rank, each in enumerate(args))


@pytest.mark.parametrize("engine, tier", [(Reference(), {"offload-blocks": 8}), (Vllm(), {"kv-offloading-size": 4})])
def test_a_second_tier_may_be_that_of_one_process_of_a_stack(engine, tier, tmp_path):
    base = config(tmp_path, engine.kind)
    assert engine.why_not_offloaded(replace(base, stack=a_stack({}, {})))
    assert not engine.why_not_offloaded(replace(base, stack=a_stack(tier, {})))
    assert engine.why_not_offloaded(replace(config(tmp_path, engine.kind, **tier), stack=a_stack(dict.fromkeys(tier))))
    beside = StackProcess(name="proxy", command=("proxy",), args=tier, is_asked=True)
    assert engine.why_not_offloaded(replace(base, stack=(*a_stack({}), beside)))


def test_limits_of_the_processes_of_a_stack_are_those_of_the_server(tmp_path):
    base = config(tmp_path, "vllm")
    assert admitted_tokens(replace(base, stack=a_stack({"max_model_len": 4096}, {"max-model-len": 2048}))) == 2048
    assert admitted_tokens(replace(base, stack=a_stack({"max-model-len": 4096}, {}))) is None


@pytest.mark.parametrize("engine, stated", [(Reference(), {"reasoning-end": '":'}), (Vllm(), {"reasoning-parser": "qwen3"})])
def test_a_budget_for_reasoning_needs_reasoning_in_every_arm(engine, stated, tmp_path):
    selected = [(BUDGETS, Family.PARAMETERS)]
    assert "needs a server that" in withheld_workloads(config(tmp_path, engine.kind), engine, selected)[BUDGETS.name]
    assert withheld_workloads(config(tmp_path, engine.kind, variant=dict.fromkeys(stated), **stated), engine, selected)
    assert not withheld_workloads(config(tmp_path, engine.kind, **stated), engine, selected)


def test_an_engine_without_budgets_for_reasoning_is_sent_none(tmp_path):
    reasons = withheld_workloads(config(tmp_path, "sglang"), Sglang(), [(BUDGETS, Family.PARAMETERS)])
    assert "does not know" in reasons[BUDGETS.name]


def test_the_config_says_it_for_attached_servers_and_against_what_the_engine_knows(tmp_path):
    attached = replace(config(tmp_path, "attach", "m"), baseline=Overlay(url="http://127.0.0.1:1"))
    assert "an attached server does not tell" in withheld(attached, Attach())
    assert not withheld(replace(attached, images=True), Attach())
    assert not withheld(replace(config(tmp_path, "reference"), images=True), Reference())
    assert "images: false" in withheld(replace(config(tmp_path, "reference", images=True), images=False), Reference())


def test_the_engines_own_events_are_not_done_to_one_process_of_a_stack(tmp_path):
    """A router would pass /pause to one rank and /resume to the other."""
    base, engine = config(tmp_path, "reference"), Reference()
    assert events_of(base, engine)
    stack = (StackProcess(name="router", command=("{program}",), is_asked=True),)
    assert not events_of(replace(base, stack=stack), engine)
    workload = between.around_events()
    reason = withheld_workloads(replace(base, stack=stack), engine, [(workload, Family.BETWEEN)])[workload.name]
    assert "one process of a stack alone" in reason
    own = replace(base, stack=stack, between={"mine": (EventStep(command=("true",)),)})
    assert workload.name not in withheld_workloads(own, engine, [(workload, Family.BETWEEN)])
