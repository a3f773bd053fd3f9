"""Leases, traffic, environment, secrets, readiness: the small parts."""

from __future__ import annotations

import subprocess
import threading
from itertools import count

import pytest

from pytest_specdec.capture import environment, locks, runner
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.estimate import EstimatedStep
from pytest_specdec.capture.progress import Reporter
from pytest_specdec.capture.server import ports, server
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.thread_pool import ThreadPool
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import BootError, DeadlineError, LeaseError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.plan import Boot, Role
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route


def nothing():
    return None


def test_one_capture_holds_a_device():
    with locks.device("0", 0.0, nothing):
        with pytest.raises(LeaseError, match="another capture holds the device"), locks.device("0", 0.0, nothing):
            raise AssertionError
        with locks.device("1", 0.0, nothing):
            pass
    with locks.device("0", 0.0, nothing):
        pass


def test_any_number_of_captures_may_be_loud_but_none_beside_a_quiet_one():
    refused = pytest.raises(LeaseError, match="another capture holds this machine")
    with locks.shared(0.0, nothing), locks.shared(0.0, nothing), refused, locks.exclusive(0.0, nothing):
        raise AssertionError
    with locks.exclusive(0.0, nothing), pytest.raises(LeaseError), locks.shared(0.0, nothing):
        raise AssertionError


def test_a_quiet_capture_in_waiting_goes_before_new_loud_ones():
    waiting, done = threading.Event(), threading.Event()

    def measure():
        with locks.exclusive(20.0, waiting.set):
            done.set()

    with locks.shared(0.0, nothing):
        thread = threading.Thread(target=measure)
        thread.start()
        assert waiting.wait(20.0)
        with pytest.raises(LeaseError), locks.shared(0.0, nothing):
            raise AssertionError
    assert done.wait(20.0)
    thread.join()


def test_who_waits_for_a_lease_can_give_up():
    def give_up():
        raise DeadlineError("used up")  # noqa: EM101, TRY003

    with locks.device("0", 0.0, nothing), pytest.raises(DeadlineError), locks.device("0", 20.0, give_up):
        raise AssertionError


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_traffic_does_every_job_once_and_starts_them_in_order(concurrency):
    started = []
    lock = threading.Lock()

    def work(job):
        with lock:
            started.append(job)
        return job * job

    assert sorted(ThreadPool(range(20), work, concurrency)) == [(i, i * i) for i in range(20)]
    assert sorted(started) == list(range(20))
    assert started == sorted(started) or concurrency > 1


def test_traffic_never_runs_more_than_its_concurrency():
    running, most, lock = count(), [], threading.Semaphore(3)

    def work(_):
        assert lock.acquire(blocking=False)
        most.append(next(running))
        lock.release()

    assert len(list(ThreadPool(range(30), work, 3))) == 30


def test_traffic_starts_nothing_after_a_result_that_ends_it():
    assert list(ThreadPool(range(10), lambda job: job, 1, until=lambda result: result == 3)) == [(i, i) for i in range(4)]


def test_an_exception_in_traffic_is_raised_where_it_is_iterated():
    def work(job):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(ThreadPool([1, 2], work, 2))
    assert list(ThreadPool([], work, 4)) == []


def test_the_environment_is_that_of_this_machine(config):
    found = environment.environment(config, "1.0")
    assert (found.engine, found.engine_version, found.model) == ("fake", "1.0", "big")
    assert found.cores >= 1
    assert found.memory_gib > 0
    assert {"openai", "numpy", "pytest-specdec"} <= set(found.packages)


def test_accelerators_are_told_by_their_driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool.write_text("#!/bin/sh\necho NVIDIA H200\necho\n")
    tool.chmod(0o755)
    assert environment.devices() == ("NVIDIA H200",)
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert environment.devices() == ()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(subprocess.TimeoutExpired("nvidia-smi", 10)))
    assert environment.devices() == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert environment.devices() == ()


def test_unreadable_facts_are_left_out():
    assert environment._field("/no/such/file", "x") == ""
    assert environment._version("no-such-package") == ""


def test_values_of_variables_named_like_secrets_are_struck_out():
    secrets = Secrets.of({"HF_TOKEN": "hf_abcdef", "API_KEY": "short", "HOME": "/root"}, also=("key", None, "hf_abcdef-longer"))
    assert secrets.mask("hf_abcdef-longer hf_abcdef short /root key") == "*** *** short /root ***"
    assert "hf_" not in repr(secrets)


def test_an_arm_without_a_server_says_so(recipe, config):
    arm = ArmServer(recipe(config), nothing)
    assert (arm.running, arm.wait_for_end(), arm.log_tail()) == (False, "not started", ())
    with pytest.raises(BootError, match="the server is gone"):
        _ = arm.client


def test_a_server_that_does_not_come_up_again_ends_the_arm(recipe, config):
    with ArmServer(recipe(config), nothing) as arm:
        assert arm.ensure_running()
        arm.terminate()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(server, "wait", lambda *_, **__: (_ for _ in ()).throw(BootError("no")))
            assert [arm.ensure_running() for _ in range(4)] == [False] * 4
        assert arm.restarts == 2


def test_an_endpoint_that_is_not_there_has_no_body():
    assert server.get(ports.free(), "/health") is None
    assert server.get(ports.free(), None) is None


def test_a_connection_that_is_refused_is_a_death():
    client = Client(port=ports.free(), model="m", dialect=VllmDialect())
    sent = client.send(Request(id="a", route=Route.CHAT, body={"messages": []}), streamed=True, deadline_s=5.0)
    assert (sent.ending, sent.answer.status, sent.tokens) == (FailureKind.DIED, None, 0)
    assert "connection lost" in sent.answer.error
    client.close()


def test_what_is_left_is_the_estimate_at_the_pace_so_far(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    steps = [
        EstimatedStep(boot=0, doing="booting", arm="v", seconds=5.0),
        EstimatedStep(boot=0, doing="answering", arm="v", workload="w", seconds=10.0),
    ]
    said = []
    reporter = Reporter(steps, 1, None, said.append)
    boot = Boot(index=0, role=Role.VARIANT, arm="v")
    reporter.step(boot, "booting", "v")
    for clock[0] in (4.0, 5.0, 5.1, 10.0):
        reporter.update(0, 0)
    reporter.step(boot, "answering", "v", "w", of=10)
    reporter.update(1, 5)
    reporter.update(10, 50)
    reporter.step(boot, "stopping", "v")
    booting = [(0, 0, 15.0), (0, 0, 10.2), (0, 0, 10.2)]
    assert [(p.done, p.tokens, p.remaining_s) for p in said] == [*booting, (0, 0, 20.0), (10, 50, 0.0), (0, 0, 0.0)]
    reporter.check()


def test_without_steps_nothing_is_expected():
    said = []
    reporter = Reporter([], 1, -1.0, said.append)
    reporter.update(1, 1)
    reporter.step(Boot(index=0, role=Role.VARIANT, arm="v"), "booting", "v")
    assert [p.remaining_s for p in said] == [None]
    with pytest.raises(DeadlineError, match="used up"):
        reporter.check()


@pytest.mark.parametrize(
    "found,visible,names",
    [((), "0", ()), (("A", "B"), None, ("0", "1")), (("A", "B"), "1, 0", ("0", "1")), (("A",), "", ()), (("A",), "GPU-7", ("GPU-7",))],
)
def test_the_leased_devices_are_the_visible_ones(found, visible, names, monkeypatch):
    monkeypatch.setattr(environment, "devices", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert runner._devices() == names
