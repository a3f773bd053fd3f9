"""Device memory: weights against the share of the devices that a server takes."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.doctor import memory
from pytest_specdec.doctor.arms import arms
from pytest_specdec.doctor.machine import Device
from pytest_specdec.engines.protocol import Footprint
from pytest_specdec.engines.registry import engine_of

GIB = 1024**3


@pytest.fixture
def weights(here):
    """Make a checkpoint that takes so many GiB of a disk's address space, and none of the disk."""

    def make(folder, gib, names=("model.safetensors",), **described):
        folder = here / folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(described))
        for name in names:
            with (folder / name).open("wb") as file:
                file.truncate(int(gib * GIB))

    return make


@pytest.fixture
def check(config):
    """Check a config whose target and drafter are given, on devices of so many GiB."""

    def check_memory(model, drafter, args="", *, total=80.0, share=0.9, devices=1, takes_first=True):
        loaded = config(f"""\
            engine: {{kind: vllm, model: {model}, args: {{{args}}}}}
            variants: {{v: {{args: {{speculative-config: {{method: eagle3, model: {drafter}, num_speculative_tokens: 3}}}}}}}}
            """)
        engine = engine_of("vllm")
        footprint = Footprint(device_share=share, devices=devices, takes_first=takes_first, options="gpu-memory-utilization")
        present = [Device(number=str(n), name="GPU", total_gib=total, used_gib=0.0) for n in range(devices)]
        return memory.checks(loaded, engine, arms(loaded, engine, {}), present, footprint)

    return check_memory


def test_weights_that_fit_are_said_to_fit(check, weights):
    weights("big", 60)
    weights("head", 2)
    (found,) = check("./big", "./head")
    assert (found.level, found.line) == ("ok", "the weights that are known go into 72.0 GiB")


def test_of_a_server_that_may_spread_over_all_devices_nothing_is_said(check, weights):
    weights("target", 150.0)
    weights("eagle", 2.0)
    assert check("target", "eagle", takes_first=False) == ()
    assert check("target", "eagle") != ()


def test_the_drafter_counts_in_the_arm_that_loads_it(check, weights):
    weights("big", 60)
    weights("head", 20)
    (found,) = check("./big", "./head")
    assert (found.level, found.line) == ("FAIL", "v: 80.0 GiB of weights, drafter included, and 72.0 GiB for a server")
    assert found.details == ("remedy:   raise gpu-memory-utilization, or serve a smaller or quantised model",)
    assert check("./big", "./head", devices=2)[0].level == "ok"


def test_weights_in_two_formats_count_once(check, weights):
    weights("big", 60, ("model.safetensors", "pytorch_model.bin", "consolidated.safetensors"))
    weights("head", 2)
    assert check("./big", "./head")[0].level == "ok"


@pytest.mark.parametrize("args, described", [("quantization: fp8", {}), ("cpu-offload-gb: 30", {}), ("", {"torch_dtype": "float32"})])
def test_weights_that_may_shrink_are_a_warning(check, weights, args, described):
    weights("big", 100, **described)
    weights("head", 2)
    assert {found.level for found in check("./big", "./head", args)} == {"warn"}


def test_a_model_in_the_hubs_cache_is_measured_there(check, weights):
    weights("hf/hub/models--org--big/snapshots/abc", 100)
    weights("head", 2)
    assert {found.level for found in check("org/big", "./head")} == {"FAIL"}


def test_a_model_that_is_only_a_name_is_a_warning(check):
    found = check("org/Llama-3.3-70B-Instruct", "org/Llama-3.2-1B")
    assert [(each.level, each.line.split(" of")[0]) for each in found] == [
        ("warn", "baseline: 130.4 GiB"),
        ("warn", "v: 132.2 GiB"),
    ]


@pytest.mark.parametrize(
    "name, args, gib",
    [
        ("Qwen/Qwen3-8B", {}, 14.9),
        ("nm-testing/Llama-3.3-70B-Instruct-FP8-dynamic", {}, 65.2),
        ("Qwen/Qwen3-30B-A3B", {}, 55.9),
        ("mistralai/Mixtral-8x7B-v0.1", {}, 104.3),
        ("openai/gpt-oss-120b", {}, 61.5),
        ("Qwen/Qwen3-8B", {"quantization": "fp8"}, 7.5),
        ("org/model", {}, 0.0),
        ("org/eagle3", {}, 0.0),
    ],
)
def test_a_name_says_what_the_weights_take(name, args, gib):
    assert memory.guess_weights_gib(name, args) == pytest.approx(gib, abs=0.1)


def test_without_a_device_nothing_is_said(config):
    loaded = config()
    engine = engine_of("vllm")
    assert memory.checks(loaded, engine, (), (), Footprint(device_share=0.9)) == ()
