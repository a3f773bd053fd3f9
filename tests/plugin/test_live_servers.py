"""Live servers for people's own tests: booted once each, after all judged tests, one after the other where they stand in turn."""

from __future__ import annotations

import json
import signal
import time

import pytest

from pytest_specdec.capture.server import watchdog

ARMS = ["baseline", "draft-k3", "ngram-k3"]
BOTH = "def test_both(specdec_baseline_server, specdec_speculative_server): pass\n"

FAKE = """

from types import SimpleNamespace

from pytest_specdec.capture.server_recipes import ServerRecipes


class FakeServer:
    model = "target"

    def __init__(self, boot):
        self.arm = boot.arm
        self.recipe = SimpleNamespace(stop_s=1.0, setup=SimpleNamespace(url="http://x", api_key="k3y", headers={}))

    def start(self):
        self.log("boot")
        if os.environ.get("DEAD") == self.arm:
            raise BootError("the server died", found="command: serve\\nexit code: 7\\nlast lines of its log:\\nout of memory")

    def stop(self, stop_s):
        self.log("end")

    def log(self, what):
        with (HERE / "boots").open("a") as log:
            log.write(f"{what} {self.arm}\\n")


@pytest.fixture(autouse=True)
def tests_in_order(request):
    with (HERE / "boots").open("a") as log:
        log.write(f"test {request.node.name}\\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    ServerRecipes.server = lambda self, boot, heartbeat, left_s: FakeServer(boot)
"""

TESTS = """
def test_spec(specdec_speculative_server): assert specdec_speculative_server.url == "http://x/v1"
def test_base(specdec_baseline_server): assert specdec_baseline_server.model == "target"
def test_spec_again(specdec_speculative_server): assert "k3y" not in repr(specdec_speculative_server)
def test_other(): pass
"""


@pytest.fixture
def live(project):
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + FAKE)
    return project.tests(TESTS)


def log(project):
    path = project.path / "boots"
    return path.read_text().splitlines() if path.exists() else []


def boots(project):
    return [line for line in log(project) if not line.startswith("test")]


def test_each_server_boots_once_and_ends_before_the_next_one(live):
    live.run(subprocess=True).assert_outcomes(passed=6)
    assert boots(live) == [f"{what} {arm}" for arm in ARMS for what in ("boot", "end")]
    assert not live.captures


def test_devices_are_taken_once_however_many_servers_boot(live):
    """A lock is the session's until its end: taken again by itself, it would be waited for."""
    conftest = live.path / "conftest.py"
    conftest.write_text(conftest.read_text() + DEVICES)
    live.run(subprocess=True).assert_outcomes(passed=6)
    assert (live.path / "devices").read_text().splitlines() == ["gpu-0"]
    assert boots(live) == [f"{what} {arm}" for arm in ARMS for what in ("boot", "end")]


def test_a_suite_may_watch_the_boots_and_leave_out_the_settings_of_speed(live):
    conftest = live.path / "conftest.py"
    conftest.write_text(conftest.read_text() + WATCHED)
    live.run(subprocess=True).assert_outcomes(passed=6)
    assert (live.path / "watched").read_text().splitlines() == [f"{word} {arm}" for arm in ARMS for word in ("untimed", "before", "after")]


WATCHED = """

from contextlib import contextmanager

from pytest_specdec.plugin import live


class WatchedServer(FakeServer):
    def __init__(self, boot):
        super().__init__(boot)
        write(f"{'timed' if boot.timed else 'untimed'} {boot.arm}")


def write(line):
    with (HERE / "watched").open("a") as lines:
        lines.write(line + "\\n")


@contextmanager
def watch(arm, recipe):
    write(f"before {arm}")
    yield
    write(f"after {arm}")


def pytest_collection_finish(session):
    servers = session.config.stash[live.LIVE]
    servers.timed, servers.during_boot = False, watch


FakeServer = WatchedServer
"""

DEVICES = """

from contextlib import contextmanager

from pytest_specdec.capture import environment, locks

environment.devices, environment.uuids = (lambda: ("A",)), (lambda: ("gpu-0",))
take = locks.device


@contextmanager
def device(name, wait_s, heartbeat, say):
    with (HERE / "devices").open("a") as taken:
        taken.write(name + "\\n")
    with take(name, 1.0, heartbeat):
        yield


locks.device = device
"""


def test_they_run_behind_all_judged_tests(live):
    live.pytester.makepyfile(test_judged="from sample import *\nimport pytest\n" + TESTS_JUDGED)
    live.run(subprocess=True).assert_outcomes(passed=8)
    assert [line for line in log(live) if "test" in line] == [
        *("test test_other", "test test_judged[draft-k3]", "test test_judged[ngram-k3]", "test test_base"),
        *(f"test {name}[{arm}]" for arm in ARMS[1:] for name in ("test_spec", "test_spec_again")),
    ]
    assert boots(live) == [f"{what} {arm}" for arm in ARMS for what in ("boot", "end")]
    assert len(live.captures) == 1


TESTS_JUDGED = (
    "@pytest.mark.specdec(CHAT, family='greedy')\ndef test_judged(specdec_captured, specdec_check): specdec_check(say(specdec_captured))\n"
)


def test_side_by_side_the_baseline_stays(live):
    live.config("placement: side-by-side\n").tests(TESTS + BOTH).run(subprocess=True).assert_outcomes(passed=8)
    assert [line for line in boots(live) if line.startswith("boot")] == [f"boot {arm}" for arm in ARMS]
    assert boots(live).index("end baseline") > boots(live).index("boot ngram-k3")
    assert sorted(line for line in boots(live) if line.startswith("end")) == sorted(f"end {arm}" for arm in ARMS)


def test_both_at_once_in_turn_is_a_usage_error(live):
    result = live.tests(BOTH).run(subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*asks for two live servers*", "*where: *test_both*", "*found: *in-turn*", "*expected:*side-by-side*", "*remedy:*"]
    )
    assert not log(live)


def test_workers_are_a_usage_error(live):
    result = live.run("-n1", subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*not shared between workers*", "*where: *test_*", "*found: *xdist*", "*expected:*", "*remedy:*without -n*"]
    )
    assert not log(live)


def test_a_mark_and_a_live_server_are_a_usage_error(live):
    live.tests(
        TESTS_JUDGED.replace("specdec_check)", "specdec_check, specdec_baseline_server)").join(
            ["from sample import *\nimport pytest\n", ""]
        )
    )
    result = live.run(subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*found a mark and the fixture specdec_baseline_server*", "*expected: *without a mark*"])


def test_a_replay_skips_them(live):
    live.pytester.makepyfile(test_judged="from sample import *\nimport pytest\n" + TESTS_JUDGED)
    live.run("-k", "judged", subprocess=True)
    (run,) = live.runs
    result = live.run(f"--specdec-replay={run}", "-rs", subprocess=True)
    result.assert_outcomes(passed=3, skipped=5)
    result.stdout.fnmatch_lines(["*a replay has no live servers*"])
    assert not boots(live)


@pytest.mark.examples(1)
@pytest.mark.parametrize("option", ["--co", "--setup-plan"])
def test_listing_boots_nothing(live, option):
    assert live.run(option, subprocess=True).ret == 0
    assert not boots(live)
    assert not live.runs


def test_a_failed_boot_is_a_set_up_error_in_full_once(live, monkeypatch):
    monkeypatch.setenv("DEAD", "draft-k3")
    result = live.run(subprocess=True)
    result.assert_outcomes(passed=4, errors=2)
    text = result.stdout.str()
    assert text.count("out of memory") == 1
    result.stdout.fnmatch_lines(["*command: serve*", "*exit code: 7*", "*out of memory*", "*draft-k3 did not come up: see *test_spec*"])
    assert boots(live).count("boot draft-k3") == 1


@pytest.mark.examples(1)
@pytest.mark.parametrize(
    "end", ["raise KeyboardInterrupt", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"], ids=["Ctrl-C", "SIGTERM"]
)
def test_whatever_ends_the_session_ends_the_server(live, end):
    result = live.tests(f"def test_it(specdec_baseline_server): {end}\n").run(subprocess=True)
    assert result.ret in {pytest.ExitCode.INTERRUPTED, 143}
    assert boots(live) == ["boot baseline", "end baseline"]


def test_a_skipped_test_boots_nothing(live):
    live.tests("import pytest\n@pytest.mark.skip\ndef test_it(specdec_baseline_server): pass\n").run(subprocess=True)
    assert not boots(live)


HELD = """

from contextlib import ExitStack

from pytest_specdec.capture import locks

locks.MAX_WAIT_S = 0.2
other_session = ExitStack()
other_session.enter_context(locks.exclusive(0.0, lambda: None))


@pytest.fixture
def benchmark(): pass


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    if "first" in nodeid:
        other_session.close()
"""

LOCKED = """
import pytest

from pytest_specdec.capture import locks
from pytest_specdec.errors import LeaseError


def test_first(specdec_baseline_server): pass


def test_second(specdec_baseline_server):
    with locks.shared(0.0, lambda: None):
        pass
    with pytest.raises(LeaseError), locks.exclusive(0.0, lambda: None):
        pytest.fail("another session measures speed meanwhile")


def test_third(benchmark, specdec_baseline_server):
    with pytest.raises(LeaseError), locks.shared(0.0, lambda: None):
        pytest.fail("another session sends meanwhile")
"""


def test_other_sessions_measure_no_speed_meanwhile_and_a_lock_not_got_in_time_fails_one_test(live, temporary):
    conftest = live.path / "conftest.py"
    conftest.write_text(conftest.read_text() + HELD)
    result = live.tests(LOCKED).run(subprocess=True)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*another capture holds this machine*"])
    assert log(live) == ["boot baseline", "test test_second", "test test_third", "end baseline"]


BENCHMARK = """
def completed(server):
    return server.client.completions.create(model=server.model, prompt="one two one two one", max_tokens=4, temperature=0)


def test_baseline(benchmark, specdec_baseline_server):
    assert benchmark.pedantic(completed, args=(specdec_baseline_server,), rounds=2).choices[0].text


def test_latency(benchmark, specdec_speculative_server):
    assert benchmark.pedantic(completed, args=(specdec_speculative_server,), rounds=2).choices[0].text
"""


def test_benchmarks_of_real_servers_are_in_the_json(project, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # where it is set, pytest-benchmark is off
    project.pytester.makeini("[pytest]\naddopts = -p no:randomly -p no:cacheprovider\n")
    result = project.tests(BENCHMARK).run("--benchmark-json=x.json", subprocess=True)
    result.assert_outcomes(passed=3)
    benchmarks = json.loads((project.path / "x.json").read_text())["benchmarks"]
    assert [one["name"] for one in benchmarks] == ["test_baseline", "test_latency[draft-k3]", "test_latency[ngram-k3]"]
    assert [one["stats"]["rounds"] for one in benchmarks] == [2, 2, 2]
    (run,) = project.runs
    assert sorted(path.name for path in (run / "live/servers").glob("*.log"))
    assert len(list((run / "live/servers").glob("*.log"))) == 3
    assert not list((run / "live/servers").glob("*.json"))


KILLED = """
import os, signal

def test_it(specdec_baseline_server): os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_session_leaves_no_server(project):
    assert project.tests(KILLED).run(subprocess=True).ret == -signal.SIGKILL
    (note,) = project.path.glob(".specdec/*/live/servers/*.json")
    server = json.loads(note.read_text())
    deadline_s = time.monotonic() + 60.0
    while watchdog.stat(server["pid"])[2] == server["started"] and time.monotonic() < deadline_s:
        time.sleep(0.05)  # the watchdog ends the server some moments after its starter
    assert watchdog.stat(server["pid"])[2] != server["started"]
