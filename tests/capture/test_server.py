"""Servers: ready or not, restarted or gone."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from pytest_specdec.capture.server import ports, readiness, server
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.transport import Recorder
from pytest_specdec.engines.protocol import Command, ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import BootError
from pytest_specdec.files.secrets import Secrets


def nothing():
    return None


def test_an_arm_without_a_server_says_so(recipe, config):
    arm = ArmServer(recipe(config), nothing)
    assert (arm.running, arm.wait_for_end(), arm.log_tail()) == (False, "not started", ())
    with pytest.raises(BootError, match="no restart left"):
        _ = arm.client


def test_a_server_that_does_not_come_up_again_ends_the_arm(recipe, config):
    with ArmServer(recipe(config), nothing) as arm:
        assert arm.ensure_running()
        arm.terminate()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(server, "wait", lambda *_, **__: (_ for _ in ()).throw(BootError("no")))
            assert [arm.ensure_running() for _ in range(4)] == [False] * 4
        assert arm.restarts == 2


def test_a_limit_and_what_a_server_survived_bound_the_requests_in_flight(recipe, config):
    arm = ArmServer(replace(recipe(config), concurrency=4), nothing)
    assert [arm.concurrency(wanted) for wanted in (2, 8)] == [2, 4]
    arm.max_in_flight = 1
    assert arm.concurrency(8) == 1
    assert ArmServer(recipe(config), nothing).concurrency(8) == 8


def test_an_endpoint_that_is_not_there_has_no_body():
    assert readiness.get(ServerSetup(model="m", port=ports.free(), secrets=Secrets()), "/health") is None
    assert readiness.get(ServerSetup(model="m", port=ports.free(), secrets=Secrets()), None) is None


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
def test_a_header_of_the_config_replaces_that_of_the_key_however_it_is_written(monkeypatch, name):
    """Names of headers have no case; a gateway refuses a request with two of this one."""
    recorder = Recorder()
    monkeypatch.setattr(readiness, "Transport", lambda _: recorder)
    readiness.look(ServerSetup(model="m", port=1, api_key="k", headers={name: "Basic x"}, secrets=Secrets()), "/v1/models")
    fields = [line for line in recorder.content.splitlines() if line.lower().startswith(b"authorization:")]
    assert [line.partition(b": ")[2] for line in fields] == [b"Basic x"]


PLANT = """
import sys
from specdec_reference.{module} import {name}
from specdec_reference.cli import main
def broken(*_):
    raise RuntimeError("planted")
{name}.{method} = broken
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("module,name,method", [("scheduler", "Batch", "_prefill"), ("engine", "ReferenceEngine", "_empty_queues")])
def test_an_engine_that_breaks_is_a_boot_that_died_with_its_traceback(module, name, method, tmp_path):
    setup = ServerSetup(model="target", port=ports.free(), secrets=Secrets())
    code = PLANT.format(module=module, name=name, method=method)
    process = ServerProcess(Command(argv=(sys.executable, "-c", code, "target", "--port", str(setup.port))), tmp_path / "server.log")
    try:
        with pytest.raises(BootError, match=r"(?s)died at boot: exit code 1.*Traceback.*RuntimeError: planted"):
            readiness.wait(process, setup, VllmDialect(), draft_tokens=0, boot_s=600.0, heartbeat=lambda: None)
    finally:
        process.stop(0.0)
