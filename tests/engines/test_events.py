"""Events of engines: those alone that every arm's arguments and variables enable."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.capture.events import events_of
from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.engines.registry import engine_of

DEV = {"VLLM_SERVER_DEV_MODE": "1"}
SLEEP = {"enable-sleep-mode": True}
MILD = ["pause-resume", "reset-prefix-cache", "reload-weights"]


def served(kind, *, args=None, env=None, variant=None):
    engine = EngineSettings(kind=kind, model="m", args=args or {}, env=env or {})
    config = Config(name="c", path=Path("c.yaml"), text="", engine=engine, variants=(VariantSettings(name="v", args=variant or {}),))
    return events_of(config, engine_of(kind))


@pytest.mark.parametrize(
    "kind, fields, names",
    [
        ("vllm", {}, []),
        ("vllm", {"args": SLEEP}, []),
        ("vllm", {"env": DEV}, MILD),
        ("vllm", {"env": DEV, "args": SLEEP}, [*MILD, "sleep-1", "sleep-2"]),
        ("vllm", {"env": DEV, "args": SLEEP, "variant": {"enable-sleep-mode": None}}, MILD),
        ("vllm", {"env": {"VLLM_SERVER_DEV_MODE": "0"}}, []),
        ("sglang", {}, MILD),
        ("sglang", {"args": {"enable-memory-saver": True}}, [*MILD, "sleep-2"]),
        ("sglang", {"args": {"enable-memory-saver": True, "enable-weights-cpu-backup": True}}, [*MILD, "sleep-1", "sleep-2"]),
        ("llama_cpp", {}, []),
        ("llama_cpp", {"args": {"slot-save-path": "slots"}}, ["slot-save-restore"]),
        ("transformers", {}, []),
    ],
)
def test_events_are_those_that_every_arm_serves(kind, fields, names):
    assert [*served(kind, **fields)] == names


def test_every_slot_is_saved_before_one_is_erased():
    steps = served("llama_cpp", args={"slot-save-path": "slots", "parallel": 2})["slot-save-restore"]
    paths = [step.path for step in steps]
    assert paths == [f"/slots/{slot}?action={action}" for action in ("save", "erase", "restore") for slot in (0, 1)]
    assert [step.body["filename"] for step in steps[:2]] == ["specdec-{arm}-slot-0.bin", "specdec-{arm}-slot-1.bin"]


def test_sleep_of_level_2_loads_the_weights_again_before_the_cache_wakes():
    steps = served("vllm", env=DEV, args=SLEEP)["sleep-2"]
    assert [step.path for step in steps] == ["/sleep?level=2", "/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"]
