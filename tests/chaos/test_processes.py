"""Faults in processes and signals: nothing of ours outlives a capture, and nothing that is not ours is ended."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.server import orphans, ports, watchdog
from pytest_specdec.capture.server import server as arm_server
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.engines import docker
from pytest_specdec.engines.protocol import Command, ServerSetup
from pytest_specdec.errors import CaptureError, EngineError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.workload import Depth

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
PLAN = Plan(config="c", engine="e", model="m", depth=Depth.SMOKE, pairs=(), workloads=(), judgements=(), boots=(), estimate_s=0.0)


def row(fault, expected, *values):
    return pytest.param(*values, id=fault, marks=pytest.mark.chaos(fault, expected=expected, quick=True))


def python(code, **fields):
    return Command(argv=(sys.executable, "-S", "-c", textwrap.dedent(code)), **fields)


@pytest.fixture
def stranger():
    """A process, leader of a session of its own, that no capture started."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def run(tmp_path):
    """An earlier run, whose capture is gone."""
    directory = RunDirectory.create(tmp_path / "runs" / "then")
    run_documents.write_plan(directory, PLAN)
    (directory.root / "servers").mkdir()
    return directory


@pytest.fixture
def start(tmp_path):
    servers = []

    def _start(command, **fields):
        servers.append(ServerProcess(command, tmp_path / "logs" / "0-arm.log", **fields))
        return servers[-1]

    yield _start
    for server in servers:
        server.stop(0.0)
        assert not server.members


def noted(process, **changes):
    """Return a note by a dead owner about a process, as if it were a server of ours."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    place = {"uid": os.getuid(), "boot": boot, "namespace": os.readlink("/proc/self/ns/pid")}  # noqa: PTH115 - as the kernel says it
    server = {"pid": process.pid, "started": watchdog.stat(process.pid)[2], "marker": "0" * 32, "command": "sleep"}
    return json.dumps({**place, **server, "owner": 2**22 + 1, "owner_started": 1, **changes})


def state(process):
    return "left alone" if process.poll() is None else "killed"


def swept(run, process, note, where="then"):
    path = run.root.parent / where / "servers" / "0-arm.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(note)
    orphans.sweep(run.root.parent)
    time.sleep(0.1)
    return state(process)


@pytest.mark.chaos("a server of a capture that was killed together with its watchdog", expected="killed", quick=True)
def test_an_orphan_is_ended(run, stranger, seen):
    seen(swept(run, stranger, noted(stranger)))


@pytest.mark.chaos("a note planted in a folder beside the runs", expected="left alone", quick=True)
def test_a_note_beside_a_run_counts_for_nothing(run, stranger, seen):
    seen(swept(run, stranger, noted(stranger), where="no-run"))


@pytest.mark.chaos("a symbolic link to a run in the folder of the runs", expected="left alone", quick=True)
def test_a_linked_run_counts_for_nothing(run, stranger, tmp_path, seen):
    elsewhere = RunDirectory.create(tmp_path / "elsewhere")
    run_documents.write_plan(elsewhere, PLAN)
    (run.root.parent / "linked").symlink_to(elsewhere.root)
    seen(swept(run, stranger, noted(stranger), where="linked"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"namespace": "pid:[1]"}, id="namespace"),
        pytest.param({"boot": "another"}, id="boot"),
        pytest.param({"uid": 4_000_000}, id="user"),
        pytest.param({"started": 1}, id="start"),
        pytest.param({"pid": -1}, id="no-number"),
        pytest.param({"pid": "x"}, id="garbage"),
    ],
)
@pytest.mark.chaos("a note of another pid namespace, boot, user or process with the same number", expected="left alone", quick=True)
def test_a_note_from_elsewhere_counts_for_nothing(run, stranger, changes, seen):
    seen(swept(run, stranger, noted(stranger, **changes)))


@pytest.mark.chaos("a note in a run that another capture is at work in", expected="left alone", quick=True)
def test_a_run_that_is_held_is_not_swept(run, stranger, seen):
    holder = os.open(run.root, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        seen(swept(run, stranger, noted(stranger)))
    finally:
        os.close(holder)


@pytest.mark.chaos("the server's number is a stranger's by the time it is stopped", expected="left alone", quick=True)
def test_a_number_that_was_given_again_is_not_killed(start, stranger, seen):
    """As after a wrap of the process numbers: the first process is gone and collected, and the number leads another session."""
    time.sleep(0.05)  # a start is told in hundredths of a second, and no number comes again within one
    server = start(python("pass"))
    assert server.wait(20.0)
    server._children[-1].wait()
    server.pid = stranger.pid
    watchdog.send(signal.SIGKILL, watchdog.members(stranger.pid, server.started, server.marker))
    server.stop(0.0)
    time.sleep(0.1)
    seen(state(stranger))


@pytest.mark.chaos("the server ends long before it is stopped", expected="its number is kept from others until then", quick=True)
def test_the_number_of_an_ended_server_is_not_given_again(start, seen):
    server = start(python("pass"))
    assert server.wait(20.0)
    kept = watchdog.stat(server.pid) == ("Z", server.pid, server.started)
    server.stop(0.0)
    seen("its number is kept from others until then" if kept and watchdog.stat(server.pid)[1] == -1 else "its number is free")


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {here!r})
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.engines.protocol import Command
from pytest_specdec.files.secrets import Secrets

sleep = Command(argv=(sys.executable, "-S", "-c", "import time; time.sleep(600)"), env={{"MARK_OF_THIS_TEST": {mark!r}}})
setup = ServerSetup(model="m", port=1, secrets=Secrets())
recipe = ServerRecipe(dialect=VllmDialect(), setup=setup, command=sleep, draft_tokens=0, log=Path({log!r}), boot_s=60.0, stop_s=1.0)

def survivors():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"MARK_OF_THIS_TEST=" + {mark!r}.encode() in Path("/proc", pid, "environ").read_bytes():
                found.append(pid)
        except OSError:
            pass
    return found

leaked = 0
for attempt in range({tries}):
    delay_s = 0.02 * (attempt % 20) / 20 if attempt % 2 else 0.0005 * attempt
    timer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))
    arm = ArmServer(recipe, lambda: None)
    try:
        timer.start()
        with arm:
            time.sleep(5)
    except KeyboardInterrupt:
        pass
    timer.join()
    leaked += bool(survivors())
print("leaked", leaked)
"""


def interrupted(tmp_path, tries):
    mark = f"{os.getpid()}-{tmp_path}"
    script = INTERRUPTED.format(here=str(Path.cwd()), mark=mark, log=str(tmp_path / "0.log"), tries=tries)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    return result.stdout.strip() or result.stderr[-500:]


@pytest.mark.chaos("SIGINT at any moment of 60 starts of a server", expected="leaked 0")
def test_no_server_outlives_an_interrupt(tmp_path, seen):
    seen(interrupted(tmp_path, 60))


@pytest.mark.chaos("SIGINT at any moment of 8 starts of a server", expected="leaked 0", quick=True)
def test_no_server_outlives_an_interrupt_in_short(tmp_path, seen):
    seen(interrupted(tmp_path, 8))


@pytest.mark.parametrize("place", ["between fork and note", "in the note", "while it is stopped"])
@pytest.mark.chaos("SIGINT exactly between the fork, the note and the stop of a server", expected="nothing left", quick=True)
def test_an_interrupt_at_the_worst_moment_leaves_nothing(tmp_path, place, monkeypatch, seen):
    from pytest_specdec.capture.server import process

    started, real = [], process._start_server

    def interrupt(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    def start(*args):
        started.append(real(*args))
        if place == "between fork and note":
            interrupt()
        return started[-1]

    monkeypatch.setattr(process, "_start_server", start)
    if place == "in the note":
        monkeypatch.setattr(orphans, "atomic_write", interrupt)

    def work():
        with ArmServer(recipe(tmp_path), lambda: None):
            monkeypatch.setattr(watchdog, "send", interrupt)

    monkeypatch.setattr(arm_server, "wait", lambda *_, **__: SimpleNamespace(client=None, version="", model="m"))
    with pytest.raises(KeyboardInterrupt):
        work()
    seen("nothing left" if started[0].poll() is not None else "a server")


def recipe(tmp_path):
    setup = ServerSetup(model="m", port=1, secrets=Secrets())
    command, log = Command(argv=SLEEP), tmp_path / "0.log"
    return ServerRecipe(dialect=None, setup=setup, command=command, draft_tokens=0, log=log, boot_s=60.0, stop_s=1.0)


@pytest.mark.chaos("a signal that has no name, 35, ends a server", expected="killed by signal 35, exit code -35", quick=True)
def test_a_signal_without_a_name_is_told_by_its_number(start, seen):
    server = start(python("import os; os.kill(os.getpid(), 35)"))
    assert server.wait(20.0)
    seen(server.ended)


@pytest.mark.chaos("SIGTERM is swallowed", expected="killed after stop_s", quick=True)
def test_a_deaf_server_is_killed(start, tmp_path, seen):
    server = start(python("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"))
    for _ in range(400):
        if "\ndeaf" in server.log.read_text():
            break
        time.sleep(0.02)
    server.stop(0.2)
    seen("killed after stop_s" if server.exit_code == -signal.SIGKILL else server.ended)


@pytest.mark.chaos("the capture is stuck when its deadline passes", expected="its server is ended by the watchdog", quick=True)
def test_a_server_is_ended_in_time_whatever_its_starter_does(start, seen):
    server = start(Command(argv=SLEEP), max_s=0.3)
    assert server.wait(30.0)
    seen("its server is ended by the watchdog" if server.exit_code == -signal.SIGKILL else server.ended)


@pytest.mark.chaos("a server with a log of 200 MB", expected="20 lines, under 100 MB resident")
def test_a_long_log_is_read_from_its_end(tmp_path, seen):
    code = f"""
        import resource, sys
        from pathlib import Path
        from pytest_specdec.engines.protocol import Command
        from pytest_specdec.capture.server.process import ServerProcess
        from pytest_specdec.files.secrets import Secrets
        write = "import sys; [sys.stdout.write(('y' * 99 + chr(10)) * 10_000) for _ in range(200)]; print('x' * 5_000_000)"
        secrets = Secrets(values=("sesame-open",))
        server = ServerProcess(Command(argv=(sys.executable, "-c", write), secrets=secrets), Path({str(tmp_path / "0.log")!r}))
        assert server.wait(120)
        lines = server.log_tail()
        assert max(map(len, lines)) <= 2000, len(lines)
        server.stop(0.0)
        most_kb = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
        children_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        small = max(most_kb, children_kb) < 100_000
        print(f"{{'20' if 1 <= len(lines) <= 20 else len(lines)}} lines,", "under 100 MB resident" if small else (most_kb, children_kb))
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False)
    seen(result.stdout.strip() or result.stderr[-300:])


@pytest.mark.chaos("a process of the server survives SIGKILL", expected="an error with its number, and the watchdog goes on", quick=True)
def test_a_process_that_cannot_be_ended_is_an_error(start, monkeypatch, seen):
    server = start(Command(argv=SLEEP))
    with monkeypatch.context() as patched:
        patched.setattr("pytest_specdec.capture.server.process._KILL_S", 0.01)
        patched.setattr(watchdog, "send", lambda *_: None)
        with pytest.raises(CaptureError, match=rf"survive SIGKILL: {server.pid}"):
            server.stop(0.0)
    went_on = server.wait(30.0)
    seen("an error with its number, and the watchdog goes on" if went_on else "an error, and the server lives on")


DOCKER = """#!/bin/sh
here=$(dirname "$0")
echo "$1" >> "$here/calls"
case "$1" in
run) touch "$here/alive"; echo running; exec sleep 600 ;;
ps) PS; [ -e "$here/alive" ] && echo 0123456789ab; exit 0 ;;
stop) STOP; rm -f "$here/alive" ;;
kill) KILL; rm -f "$here/alive" ;;
esac
"""
NAME = "specdec-0123456789ab"


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Put a docker on PATH whose container is a file, and which does as it is told; return the command that runs it."""

    def install(*, stop="true", kill="true", ps="true"):
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir()
        program.write_text(DOCKER.replace("STOP", stop).replace("KILL", kill).replace("PS", ps))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        stop_argv = ("docker", "stop", NAME)
        return Command(argv=("docker", "run"), stop=stop_argv, kill=docker.kill(NAME), running=docker.running(NAME), container=NAME)

    return install


@pytest.mark.parametrize(
    "lies",
    [
        row("docker stop works", "gone", {}),
        row("docker stop fails, the client dies of its signal", "killed by name", {"stop": "exit 1"}),
        row("docker stop hangs", "killed by name", {"stop": "exec sleep 600"}),
        row("docker stop says that it stopped, and did not", "killed by name", {"stop": "exit 0"}),
        row("docker stop and docker kill fail", f"an error that names {NAME}", {"stop": "exit 1", "kill": "exit 1"}),
        row("docker hangs, whatever it is asked", f"an error that names {NAME}", dict.fromkeys(("stop", "kill", "ps"), "exec sleep 600")),
        row("docker ps fails", f"an error that names {NAME}", {"stop": "exit 1", "ps": "exit 1"}),
    ],
)
def test_a_container_is_gone_when_docker_says_so(tmp_path, monkeypatch, container, lies, seen):
    monkeypatch.setattr("pytest_specdec.capture.server.process._KILL_S", 0.3)
    monkeypatch.setattr("pytest_specdec.capture.server.process._ASK_S", 0.3)
    server = ServerProcess(container(**lies), tmp_path / "logs" / "0-arm.log")
    alive, calls = tmp_path / "bin" / "alive", tmp_path / "bin" / "calls"
    while not alive.exists():
        time.sleep(0.01)
    try:
        server.stop(0.3)
    except CaptureError as error:
        outcome = f"an error that names {NAME}" if NAME in error.found and NAME in error.remedy else str(error)
    else:
        outcome = "left running" if alive.exists() else "killed by name" if "kill" in calls.read_text() else "gone"
    seen(outcome)


@pytest.mark.chaos("a container of a capture that was killed together with its watchdog", expected="killed by name", quick=True)
def test_an_orphaned_container_is_killed(run, stranger, tmp_path, container, seen):
    container()
    (tmp_path / "bin" / "alive").touch()
    swept(run, stranger, noted(stranger, container=NAME))
    seen("left running" if (tmp_path / "bin" / "alive").exists() else "killed by name")


@pytest.mark.parametrize("name", ["--help", "web", f"{NAME}; reboot", 7])
@pytest.mark.chaos("a note that names a container which is none of ours", expected="docker is not called", quick=True)
def test_a_container_of_another_name_is_left_alone(run, stranger, tmp_path, container, name, seen):
    container()
    swept(run, stranger, noted(stranger, container=name))
    seen("docker is called" if (tmp_path / "bin" / "calls").exists() else "docker is not called")


@pytest.mark.parametrize(
    "exec_",
    [
        row("docker exec prints bytes that are no UTF-8", "nobody is blamed", "printf '\\377\\376socket'"),
        row("docker exec hangs", "docker does not say what a container has open", "exec sleep 600"),
        row("docker exec fails", "nobody is blamed", "exit 1"),
    ],
)
def test_a_container_that_does_not_say_what_it_has_open_blames_nobody(start, monkeypatch, exec_, seen):
    monkeypatch.setattr(ports, "_LOOK_S", 0.3)
    with socket.socket() as listening:
        listening.bind((ports.HOST, 0))
        listening.listen()
        server = start(Command(argv=SLEEP, look=("sh", "-c", exec_), container=NAME))
        try:
            blamed = ports.foreign_listener(server, listening.getsockname()[1])
        except EngineError as error:
            blamed = error.what
    seen(blamed or "nobody is blamed")
