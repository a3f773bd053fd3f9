from __future__ import annotations

import fcntl
import os
import shutil
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.doctor import machine
from pytest_specdec.doctor.arms import arms as arms_of
from pytest_specdec.doctor.probe import ProgramResult
from pytest_specdec.engines.protocol import Footprint
from pytest_specdec.engines.registry import engine_of

GIB = 1024**3
H200 = "0, NVIDIA H200, 143771, {used}\n"


@pytest.fixture
def arms(config):
    def read(args: str):
        return arms_of(written(config, args), engine_of("vllm"), {})

    return read


def written(config, args: str):
    return config(f"""\
        engine: {{kind: vllm, model: org/m, args: {{{args}}}}}
        variants: {{a: {{args: {{speculative-config: {{method: ngram}}}}}}}}
        """)


def bind_below_ephemeral(taken):
    """Bind a free port that no other test gets while this one looks at it: systems give out those from 32768 on."""
    for number in range(20000 + os.getpid() % 10000, 32768):
        try:
            taken.bind(("127.0.0.1", number))
        except OSError:
            continue
        return number
    raise AssertionError


def test_a_pinned_port_that_is_taken_names_who_holds_it(arms):
    with socket.socket() as taken:
        number = bind_below_ephemeral(taken)
        taken.listen()
        (check,) = machine.ports(arms(f"port: {number}"))
        assert (check.level, check.line) == ("FAIL", f"port {number} is taken")
        assert any(f"process {os.getpid()}" in line for line in check.details)
        assert any(line.startswith("remedy:") for line in check.details)
    (check,) = machine.ports(arms(f"port: {number}"))
    assert (check.level, check.line) == ("ok", f"{number} is free")


def test_without_a_pinned_port_every_boot_takes_a_free_one(arms):
    (check,) = machine.ports(arms(""))
    assert check.line == "none pinned: every boot takes a free one"


@pytest.mark.parametrize("free, level", [(0.1, "FAIL"), (1.0, "warn"), (50.0, "ok")])
def test_a_run_needs_room(free, level, here, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * GIB))
    check = machine.disk(here / "deep" / "down")
    assert check.level == level
    assert f"{free:.1f} GiB free" in check.line
    assert not (here / "deep").exists()


def test_a_folder_that_cannot_be_written_to_fails(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert machine.disk(here / "runs").level == "FAIL"


@pytest.mark.parametrize("free, level", [(10.0, "warn"), (500.0, "ok")])
def test_a_download_is_told_with_what_is_free_and_no_guess_of_its_size(free, level, here, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * GIB))
    check = machine.download(here / "hub", ["org/a", "org/b"])
    assert check.level == level
    assert "org/a, org/b" in check.line


def listed(text: str, code: int | None = 0) -> tuple[machine.Device, ...]:
    return machine.devices(ProgramResult(exit_code=code, out=text, err=""))


@pytest.mark.parametrize(
    "text, args, levels",
    [
        (H200.format(used=0), "", ["ok"]),
        (H200.format(used=30000), "", ["warn"]),
        (H200.format(used=30000), "gpu-memory-utilization: 0.9", ["FAIL"]),
        (H200.format(used=30000), "gpu-memory-utilization: 0.5", ["warn"]),
        (H200.format(used=0), "tensor_parallel_size: 2", ["ok", "FAIL"]),
        (H200.format(used=0) + H200.format(used=0), "tensor-parallel-size: 2", ["ok", "ok"]),
        (H200.format(used=0) + H200.format(used=0), "tensor-parallel-size: 2, pipeline-parallel-size: 2", ["ok", "ok", "FAIL"]),
    ],
)
def test_devices_must_be_as_many_and_as_free_as_the_arms_ask(text, args, levels, config):
    footprint = engine_of("vllm").footprint(written(config, args), accelerated=True)
    checks = (*machine.free_memory(listed(text), footprint), *machine.device_count(listed(text), footprint))
    assert [check.level for check in checks] == levels


@pytest.mark.parametrize("share, level", [(0.9, "warn"), (None, "ok")])
def test_no_accelerator_is_reported(share, level):
    for present in (listed("", None), listed("No devices were found\n"), listed("0, X, [N/A], [N/A]\n")):
        (check,) = machine.free_memory(present, Footprint(device_share=share))
        assert machine.device_count(present, Footprint(device_share=share)) == ()
        assert (check.level, check.line) == (level, "no accelerator: nvidia-smi lists none")


def test_a_cpu_build_needs_no_accelerator(config, vllm, here):
    (vllm().parent.parent / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    loaded = config()
    assert engine_of("vllm").footprint(loaded, accelerated=True).device_share is None
    engine = replace(loaded.engine, venv=None, image="org/vllm:v0.32.0")
    assert engine_of("vllm").footprint(replace(loaded, engine=engine), accelerated=True).device_share == 0.92


def test_a_lease_that_another_capture_holds_is_named(here):
    assert machine.leases(here).level == "ok"
    with (here / "device-0.lock").open("w") as device, (here / "clock.lock").open("w") as clock:
        device.write("4711")
        device.flush()
        fcntl.flock(device, fcntl.LOCK_EX)
        fcntl.flock(clock, fcntl.LOCK_SH)
        check = machine.leases(here)
        assert check.level == "warn"
        assert check.line == "another capture is at work: clock (shared), device-0 (last held alone by process 4711)"
    assert machine.leases(here).level == "ok"


@pytest.mark.parametrize("visible, numbers", [
    (None, "012"), ("1", "1"), ("2,0", "20"), ("0,-1,1", "0"), ("-1", ""), ("", ""), ("0,7", "0"), ("GPU-8a1c", "012"),
])  # fmt: skip
def test_devices_that_are_hidden_from_the_server_do_not_count(visible, numbers):
    present = tuple(machine.Device(number=number, name="X", total_gib=80.0, used_gib=0.0) for number in "012")
    assert "".join(device.number for device in machine.select_visible(present, visible)) == numbers


def test_too_few_devices_are_another_check_than_their_memory():
    """No other capture that ends brings more devices."""
    present, footprint = listed(H200.format(used=0)), Footprint(device_share=0.9, devices=2)
    assert [(check.name, check.level) for check in machine.free_memory(present, footprint)] == [("device", "ok")]
    assert [(check.name, check.level) for check in machine.device_count(present, footprint)] == [("devices", "FAIL")]
