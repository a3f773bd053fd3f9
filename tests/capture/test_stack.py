"""Servers of several processes: started in order, ended in reverse, dead as soon as one is, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.deadlines import Deadlines
from pytest_specdec.capture.server import counters, ports, readiness, stack
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.workload_runner import WorkloadRunner
from pytest_specdec.config.config import StackProcess
from pytest_specdec.engines.protocol import Command, CounterSource, ServerSetup
from pytest_specdec.engines.server_counts import Traffic
from pytest_specdec.engines.stack import ProcessRecipe, StackCommands, footprint
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import BootError, SetupError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import FailureKind
from tests.capture.conftest import SERVER, FakeEngine

PAGE = """process_start_time_seconds 100.5
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
"""


class DrainingDialect(VllmDialect):
    counters_drain = True


def nothing():
    return None


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def process(name, *words, ready="", asked=False, listens=False):
    """A process of the stack that is no server, unless it is asked."""
    port = ports.free()
    program = (sys.executable, "-S", str(SERVER), "m", "--port", str(port)) if asked else (sys.executable, "-S", "-u", "-c", *words)
    return ProcessRecipe(name=name, command=Command(argv=program), port=port, ready=ready, listens=listens or asked, is_asked=asked)


SLEEPS = "import time; print('it is up'); time.sleep(60)"


@pytest.fixture
def arm(recipe, config):
    def _arm(*processes, boot_s=20.0):
        asked = next(one for one in processes if one.is_asked)
        plain = recipe(config)
        setup = replace(plain.setup, port=asked.port)
        return ArmServer(replace(plain, command=None, setup=setup, processes=processes, boot_s=boot_s), nothing)

    return _arm


def test_processes_start_in_order_and_end_in_reverse(arm, monkeypatch):
    order = []
    start, stop = stack.ServerProcess, stack._stop_process
    monkeypatch.setattr(stack, "ServerProcess", lambda command, log, **rest: order.append(log.name) or start(command, log, **rest))
    monkeypatch.setattr(stack, "_stop_process", lambda one, stop_s: order.append(one.log.name) or stop(one, stop_s))
    with arm(process("worker", SLEEPS, ready="it is up"), process("front", asked=True)) as served:
        members, folder = served._server.members, served.recipe.log.parent
        assert served.running
        assert sorted(path.name for path in folder.glob("*.json")) == ["0.front.json", "0.worker.json"]
        assert len(members) == 2
    assert order == ["0.worker.log", "0.front.log", "0.front.log", "0.worker.log"]
    assert not any(map(alive, members))
    assert not list(folder.glob("*.json"))


def test_a_process_that_dies_at_boot_is_named_with_its_log(arm):
    dying = process("prefill", "import sys; print('no such model'); sys.exit(3)", ready="it is up")
    served = arm(process("first", SLEEPS, ready="it is up"), dying, process("front", asked=True))
    with pytest.raises(BootError) as caught:
        served.start()
    assert "died at boot: process prefill, exit code 3 (0.prefill.log)" in caught.value.what
    assert caught.value.where.endswith("0.prefill.log")
    assert "no such model" in caught.value.found
    assert not served.running


def test_a_process_that_is_never_ready_is_named_with_what_was_awaited(arm):
    served = arm(process("kv", SLEEPS, ready="a word that never comes"), process("front", asked=True), boot_s=0.3)
    with pytest.raises(BootError, match=r"process kv of the stack, by 'a word that never comes'") as caught:
        served.start()
    assert caught.value.expected == "process kv: 'a word that never comes' in its log"


def test_the_death_of_any_process_ends_the_server_and_a_restart_starts_all(arm):
    with arm(process("worker", SLEEPS, ready="it is up"), process("front", asked=True)) as served:
        before = served._server.members
        served.note_processes()
        os.kill(next(one.pid for recipe, one in served._server._processes if recipe.name == "worker"), signal.SIGKILL)
        assert served.wait_for_end() == "process worker, killed by SIGKILL, exit code -9 (0.worker.log)"
        assert served.log_tail()[-1:] == ("it is up",)
        assert served.ensure_running()
        assert served.restarts == 1
        assert not set(before) & set(served._server.members)


def test_an_interrupt_while_it_boots_leaves_nothing_behind(arm, monkeypatch):
    served = arm(
        process("worker", SLEEPS, ready="it is up"), process("front", SLEEPS, ready="never", asked=False), process("x", asked=True)
    )
    seen = []

    def interrupt():
        seen.append(served._server.members)
        if len(seen[-1]) == 2:
            raise KeyboardInterrupt

    served._heartbeat = interrupt
    with pytest.raises(KeyboardInterrupt):
        served.start()
    assert not any(alive(pid) for members in seen for pid in members)


def test_the_end_of_a_process_that_fails_no_request_is_recorded(arm, workload):
    """As of a rank that a router passes over: the answers are whole, and the server is not."""
    with arm(process("worker", SLEEPS, ready="it is up"), process("front", asked=True)) as served:
        asked = workload(requests=2)
        reporter = SimpleNamespace(left_s=60.0, update=lambda *_: None, extend=lambda _: None, check=lambda: None)
        runner = WorkloadRunner(served, asked, name="v", boot=0, deadlines=Deadlines(10.0, None, paced=False), reporter=reporter)
        runner.begin()
        runner.answer(0)
        os.kill(next(one.pid for recipe, one in served._server._processes if recipe.name == "worker"), signal.SIGKILL)
        assert served._server.wait(10.0)
        runner.end()
        (failure,) = runner.result().transcript.server_failures
        assert not served.has_ended_silently, "it is recorded once"
    assert (failure.ending, failure.recurred) == (FailureKind.DIED, None)
    assert "process worker, killed by SIGKILL" in failure.process
    assert failure.log_tail[-1] == "it is up"


def commands(config, *processes, args=None, speculative=False, **setup):
    names = [name for one in processes for name in (one.name, *one.ports)]
    config = replace(config, stack=processes)
    given = ServerSetup(model="big", port=0, args=args or {}, speculative=speculative, secrets=Secrets(), **setup)
    numbers = {name: 1000 + at for at, name in enumerate(names)}
    return StackCommands(config=config, engine=FakeEngine(), setup=given, ports=numbers)


def test_the_arguments_of_an_arm_go_to_the_engines_and_placeholders_are_filled(config, monkeypatch):
    monkeypatch.setenv("SIDE", "eth0")
    made = commands(
        config,
        StackProcess(name="prefill", args={"speculative-config": None, "kv": {"port": "{port.kv}"}}, ports=("kv",), env={"NET": "${SIDE}"}),
        StackProcess(name="decode", is_counted=True),
        StackProcess(name="proxy", command=("{program}", "--to", "http://{host}:{port.decode}", "--port", "{port.proxy}"), is_asked=True),
        StackProcess(name="worker", command=("work", "{args}")),
        args={"speculative-config": "{}", "seed": 1},
        env={"OMP": "1"},
    )
    prefill, decode, proxy, worker = made.recipes()
    assert prefill.command.argv[3:] == ("big", "--seed", "1", "--kv", '{"port":1001}', "--port", "1000")
    assert dict(prefill.command.env) == {"OMP": "1", "NET": "eth0"}
    assert (decode.command.argv[-2:], decode.ready) == (("--port", "1002"), "/health")
    assert proxy.command.argv == (sys.executable, "--to", "http://127.0.0.1:1002", "--port", "1003")
    assert (dict(proxy.command.env), proxy.listens, worker.listens) == ({}, True, False)
    assert worker.command.argv == ("work", "--speculative-config", "{}", "--seed", "1")
    asked = made.asked_setup()
    assert (asked.port, asked.counted) == (1003, (CounterSource(name="decode", url="http://127.0.0.1:1002"),))


def test_addresses_of_counters_come_before_counted_processes(config):
    given = counters.sources(["http://{host}:{port.system}/metrics"])
    made = commands(config, StackProcess(name="all", ports=("system",), is_asked=True, is_counted=True), counted=given)
    assert [(one.name, one.url) for one in made.asked_setup().counted] == [("127.0.0.1:1001/metrics", "http://127.0.0.1:1001/metrics")]


def test_a_stack_takes_the_memory_and_devices_of_all_its_engines(config):
    engines = (StackProcess(name="a"), StackProcess(name="b"), StackProcess(name="proxy", command=("x",)))
    assert footprint(replace(config, stack=engines), FakeEngine(), accelerated=False).memory_gib == pytest.approx(0.2)
    device = FakeEngine()
    device.footprint = lambda config, accelerated: replace(FakeEngine().footprint(config, accelerated=accelerated), device_share=0.4)
    assert footprint(replace(config, stack=engines), device, accelerated=True).device_share == pytest.approx(0.8)
    apart = tuple(replace(one, env={"CUDA_VISIBLE_DEVICES": str(at)}) for at, one in enumerate(engines[:2]))
    both = footprint(replace(config, stack=apart), device, accelerated=True)
    assert (both.device_share, both.devices) == (0.4, 2)
    unnamed = (*engines[:2], replace(engines[2], env={"CUDA_VISIBLE_DEVICES": "0"}))
    assert footprint(replace(config, stack=unnamed), device, accelerated=True).device_share == pytest.approx(0.8)
    crowded = (*apart, replace(engines[0], name="c", env={"CUDA_VISIBLE_DEVICES": "1, 2"}))
    three = footprint(replace(config, stack=crowded), device, accelerated=True)
    assert (three.device_share, three.devices) == (pytest.approx(0.8), 3)


@pytest.fixture
def pages(monkeypatch):
    """Counters by address."""
    by_url = {}
    monkeypatch.setattr(readiness, "get", lambda setup, path, seconds: by_url.get(f"{setup.url}{path}"))
    return by_url


def setup_of(*urls):
    return ServerSetup(model="m", port=9, counted=counters.sources(urls), secrets=Secrets())


def test_counters_of_several_addresses_are_added_up_and_kept_by_rank(pages):
    pages["http://a:1/metrics"] = PAGE.format(tokens=50, drafts=20, accepted=30)
    pages["http://b:2/prom"] = PAGE.format(tokens=7, drafts=4, accepted=0)
    reading = counters.read(setup_of("http://a:1/", "http://b:2/prom"), VllmDialect(), seconds=1.0)
    assert (reading.counters.drafts, reading.counters.accepted_tokens) == (24, 30)
    assert reading.traffic == Traffic(started_s=100.5, generated_tokens=57)
    ranks = [(rank.name, rank.counters.drafts, rank.generated_tokens) for rank in reading.ranks.values()]
    assert ranks == [("a:1", 20, 50), ("b:2/prom", 4, 7)]


@pytest.mark.parametrize("url, place", [
    ("http://a:1/", ("a:1", "http://a:1", "/metrics")),
    ("https://u:p@a:1/rank/0/", ("a:1/rank/0", "https://u:p@a:1", "/rank/0")),
    ("http://a:1/prom?rank=0", ("a:1/prom?rank=0", "http://a:1", "/prom?rank=0")),
    ("http://u:p@a:1/x@y", ("a:1/x@y", "http://u:p@a:1", "/x@y")),
    ("http://a:1?x=/y", ("a:1?x=/y", "http://a:1", "/metrics?x=/y")),
])  # fmt: skip
def test_an_address_of_counters_is_asked_as_it_is_and_named_without_its_password(url, place):
    ((name, setup, path),) = counters.places(setup_of(url), VllmDialect())
    assert (name, setup.url, path) == place


def test_two_paths_of_one_host_are_two_sources(pages):
    pages["http://a:1/rank/0"] = pages["http://a:1/rank/1"] = PAGE.format(tokens=50, drafts=20, accepted=30)
    reading = counters.read(setup_of("http://a:1/rank/0", "http://a:1/rank/1"), VllmDialect(), seconds=1.0)
    assert (reading.counters.drafts, [*reading.ranks]) == (40, ["a:1/rank/0", "a:1/rank/1"])


def test_an_address_that_does_not_answer_leaves_no_sum(pages):
    pages["http://a:1/metrics"] = PAGE.format(tokens=50, drafts=20, accepted=30)
    assert counters.read(setup_of("http://a:1", "http://b:2"), VllmDialect(), seconds=1.0) is None


def test_ranks_of_one_page_are_told_apart_by_their_label(pages):
    page = PAGE.format(tokens=50, drafts=20, accepted=30)
    other = PAGE.format(tokens=5, drafts=2, accepted=1).replace('engine="0"', 'engine="1"')
    plain = ServerSetup(model="m", port=9, secrets=Secrets())
    pages["http://127.0.0.1:9/metrics"] = page + other.partition("\n")[2]
    reading = counters.read(plain, VllmDialect(), seconds=1.0)
    assert (reading.counters.drafts, reading.traffic.generated_tokens) == (22, 55)
    assert [(name, rank.counters.drafts) for name, rank in reading.ranks.items()] == [("engine 0", 20), ("engine 1", 2)]
    pages["http://127.0.0.1:9/metrics"] = page
    assert counters.read(plain, VllmDialect(), seconds=1.0).ranks == {}


def test_growth_is_by_rank_and_unknown_where_the_ranks_change(pages):
    pages["http://a:1/metrics"] = PAGE.format(tokens=50, drafts=20, accepted=30)
    before = counters.read(setup_of("http://a:1"), VllmDialect(), seconds=1.0).ranks
    pages["http://a:1/metrics"] = PAGE.format(tokens=60, drafts=25, accepted=30)
    after = counters.read(setup_of("http://a:1"), VllmDialect(), seconds=1.0).ranks
    (counted,) = counters.subtract_ranks(before, after)
    assert (counted.counters.drafts, counted.counters.accepted_tokens, counted.generated_tokens) == (5, 0, 10)
    assert counters.subtract_ranks({}, after) == ()
    assert counters.subtract_ranks(after, before) == (), "its counters began anew"


def test_counters_that_a_reading_resets_are_of_one_address_and_outlive_a_lost_reading(pages, recipe, config):
    two = setup_of("http://a:1", "http://b:2")
    counters.check_sources(two, VllmDialect())
    with pytest.raises(SetupError, match="several counters that every reading resets: a:1, b:2"):
        counters.check_sources(two, DrainingDialect())
    plain = recipe(config)
    setup = replace(plain.setup, counted=setup_of("http://a:1").counted)
    served = ArmServer(replace(plain, dialect=DrainingDialect(), setup=setup), nothing)
    for page in (PAGE.format(tokens=50, drafts=20, accepted=30), None, PAGE.format(tokens=5, drafts=2, accepted=0)):
        pages["http://a:1/metrics"] = page
        served.counters()
    assert served.ranks["a:1"].counters.drafts == 22
