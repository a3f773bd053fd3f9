"""Server processes, their watchdog, orphans and ports."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pytest_specdec.capture.server import orphans, ports, watchdog
from pytest_specdec.capture.server.death import cause
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.config.config import Config, EngineSettings, Limits
from pytest_specdec.engines import docker
from pytest_specdec.engines.protocol import Command
from pytest_specdec.errors import CaptureError, EngineError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.workload import Depth


def python(code, **fields):
    return Command(argv=(sys.executable, "-c", textwrap.dedent(code)), **fields)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "servers" / "0-arm.log"


@pytest.fixture
def start(log):
    servers = []

    def _start(command):
        servers.append(ServerProcess(command, log))
        return servers[-1]

    yield _start
    for server in servers:
        server.stop(0.0)
        assert not server.members


def said(log, text):
    """Wait until the server itself, not the line with its command, has said ``text``."""
    for _ in range(400):
        if any(line.startswith(text) for line in log.read_text().splitlines()[1:]):
            return
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def until(found):
    """Return what ``found`` finds, once it does: the kernel lays out a new process's environment a moment after it has been started."""
    for _ in range(400):
        if there := found():
            return there
        time.sleep(0.02)
    return found()


def test_a_server_has_a_session_of_its_own_and_a_log(start, log):
    server = start(python("print('hello', flush=True); import time; time.sleep(600)"))
    said(log, "hello")
    assert os.getsid(server.pid) == server.pid != os.getsid(0)
    assert log.read_text().startswith(f"# {sys.executable} -c")
    assert (server.exit_code, server.ended) == (None, "")
    server.stop(5.0)
    assert server.ended == "killed by SIGTERM, exit code -15"


def test_the_end_of_a_server_is_told_in_words(start):
    server = start(python("raise SystemExit(3)"))
    assert server.wait(20.0)
    assert server.ended == "exit code 3"


def test_a_server_that_ignores_sigterm_is_killed(start, log):
    server = start(python("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"))
    said(log, "deaf")
    assert not server.wait(0.05)
    server.stop(0.2)
    assert server.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("own_session", [False, True])
def test_grandchildren_that_outlive_their_parent_are_ended(start, own_session):
    sleep = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session={own_session})"
    server = start(python(f"import subprocess, sys; {sleep}"))
    assert server.wait(20.0)
    assert len(server.members) == 1
    server.stop(0.5)
    assert not server.members


@pytest.mark.parametrize("collected, words", [(False, "was killed by SIGKILL"), (True, "is gone")])
def test_a_process_that_was_killed_is_named_with_its_signal_until_its_parent_collects_it(start, log, collected, words):
    """A worker's parent is the engine core, which mostly has other things to do than to wait for it."""
    code = f"""
        import os, subprocess, sys, time
        child = subprocess.Popen(["worker", "-c", "import time; time.sleep(600)"], executable=sys.executable)
        print("born", child.pid, flush=True)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        {"child.wait()" if collected else "pass"}
        print("over", flush=True)
        time.sleep(600)
    """
    server = start(python(code))
    said(log, "born")
    server.note_processes()
    child = int(log.read_text().rpartition("\nborn ")[2].split()[0])
    os.kill(child, signal.SIGKILL)
    said(log, "over")
    server.note_dead_processes()
    assert server.dead_processes == (f"worker -c import time; time.sleep(600) (process {child}) {words}",)


def test_a_process_that_lost_its_environment_is_found_by_its_session(start, log):
    code = (
        "import os, sys, time; os.execve(sys.executable, [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'], {})"
    )
    server = start(python(code))
    said(log, "1")
    assert watchdog.members(server.pid, server.started, "no such marker") == {server.pid: server.started}
    assert watchdog.members(-1, -1, server.marker) == {}


def test_variables_that_would_set_up_a_server_are_scrubbed(start, log, monkeypatch):
    monkeypatch.setenv("ENGINE_MODEL_DRAFT", "surprise")
    monkeypatch.setenv("KEPT", "kept")
    start(
        python(
            "import os; print(os.environ.get('ENGINE_MODEL_DRAFT'), os.environ['KEPT'], os.environ['ADDED'])",
            env={"ADDED": "added"},
            scrubbed=("ENGINE_",),
        )
    )
    said(log, "None kept added")


def test_only_the_last_lines_of_this_start_are_shown(start, log):
    first = start(python("print('first')"))
    assert first.wait(20.0)
    second = start(python("print(*range(30), sep=chr(10))"))
    assert second.wait(20.0)
    assert second.log_tail() == tuple(map(str, range(10, 30)))
    assert "first" in log.read_text()


def test_secrets_are_struck_out_of_command_tail_and_log(start, log):
    command = python("print('key sesame-open')", secrets=Secrets(values=("sesame-open",)))
    server = start(command)
    assert server.wait(20.0)
    assert server.log_tail() == ("key ***",)
    assert "sesame" not in str(command)
    server.stop(0.0)
    assert "sesame" not in log.read_text()


def test_a_command_that_cannot_be_executed_says_so(start):
    with pytest.raises(EngineError, match="the server cannot be started: No such file") as caught:
        start(Command(argv=("/no/such/program", "serve")))
    assert caught.value.found == "/no/such/program serve"


def test_a_process_that_cannot_be_ended_is_an_error(start, monkeypatch):
    server = start(python("import time; time.sleep(600)"))
    with monkeypatch.context() as patched:
        patched.setattr("pytest_specdec.capture.server.process._KILL_S", 0.01)
        patched.setattr(watchdog, "send", lambda *_: None)
        with pytest.raises(CaptureError, match=rf"survive SIGKILL: {server.pid}"):
            server.stop(0.0)


def test_a_watchdog_that_somebody_killed_is_not_missed(start):
    server = start(python("import time; time.sleep(600)"))
    server._children[0].kill()
    server._children[0].wait()
    server.stop(5.0)
    assert server.exit_code == -signal.SIGTERM


KILLED = """
import sys, time
from pathlib import Path
from pytest_specdec.engines.protocol import Command
from pytest_specdec.capture.server.process import ServerProcess
server = ServerProcess(Command(argv=(sys.executable, "-c", "import time; time.sleep(600)"), kill=("touch", {touched!r})), Path({log!r}))
print(server.marker, flush=True)
time.sleep(600)
"""


def test_a_server_dies_with_its_killed_starter(tmp_path):
    touched = tmp_path / "killed by name"
    starter = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(touched=str(touched), log=str(tmp_path / "log"))], stdout=subprocess.PIPE, text=True
    )
    marker = starter.stdout.readline().strip()
    born = until(lambda: watchdog.members(-1, -1, marker))
    starter.kill()
    starter.communicate()
    assert len(born) == 1
    for _ in range(400):
        if touched.exists() and not watchdog.members(-1, -1, marker):
            return
        time.sleep(0.02)
    raise AssertionError(watchdog.members(-1, -1, marker))


PLAN = Plan(config="c", engine="e", model="m", depth=Depth.SMOKE, pairs=(), workloads=(), judgements=(), boots=(), estimate_s=0.0)


def servers_of(root):
    """Return the servers' folder of a run in ``root``, begun here."""
    run_documents.write_plan(RunDirectory.create(root), PLAN)
    (root / "servers").mkdir()
    return root / "servers"


@pytest.fixture
def then(tmp_path):
    """The servers' folder of an earlier run."""
    return servers_of(tmp_path / "runs" / "then")


def note_of_dead_owner(note, server):
    """Write a note about a server whose owner ended."""
    orphans.note(note, server)
    note.write_text(note.read_text().replace('"owner_started": ', '"owner_started": 1'))


@pytest.mark.parametrize("place", ["then", "then/groups/on", "then/old"])
def test_a_later_run_ends_the_servers_of_a_dead_owner(start, tmp_path, place):
    runs, folder = tmp_path / "runs", tmp_path / "runs" / place
    server, note = start(python("import time; time.sleep(600)")), servers_of(folder) / "0-arm.json"
    orphans.note(note, server)
    assert orphans.sweep(runs) == ()
    note_of_dead_owner(note, server)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert orphans.sweep(runs) == (), "a capture is at work there"
    os.close(descriptor)
    assert orphans.sweep(runs) == (server.pid,)
    assert server.wait(20.0)
    assert orphans.sweep(runs) == ()


def test_a_group_or_an_old_engine_behind_a_link_is_not_looked_at(start, tmp_path):
    server, runs = start(python("import time; time.sleep(600)")), tmp_path / "runs"
    for place in ("whole/groups/on", "whole/old", "parts/on"):
        note_of_dead_owner(servers_of(tmp_path / place) / "0-arm.json", server)
    (runs / "one").mkdir(parents=True)
    (runs / "linked").symlink_to(tmp_path / "whole")
    (runs / "one/groups").symlink_to(tmp_path / "parts")
    assert orphans.sweep(runs) == ()
    assert not server.wait(0.05)


def test_a_process_that_only_bears_an_orphans_number_is_left_alone(start, then):
    server, note = start(python("import time; time.sleep(600)")), then / "0-arm.json"
    orphans.note(note, server)
    text = note.read_text().replace('"owner_started": ', '"owner_started": 1').replace('"started": ', '"started": 1')
    note.write_text(text.replace(server.marker, "0" * 32))
    note.with_name("1-half.json").write_text(text[:20])
    assert orphans.sweep(then.parent.parent) == ()
    assert not server.wait(0.05)


def test_a_pinned_port_that_is_taken_names_its_holder():
    with socket.socket() as holder:
        holder.bind((ports.HOST, 0))
        holder.listen()
        with pytest.raises(EngineError, match=rf"held by process {os.getpid()}: ") as caught:
            ports.require_port(holder.getsockname()[1])
        assert "remove `port` from args" in caught.value.remedy


@pytest.mark.parametrize(
    "listed,stranger",
    [("socket:[{inode}]", ""), ("socket:[1]", "a process outside of the container"), ("", "")],
    ids=["its own", "another's", "unknown"],
)
def test_a_container_is_asked_whether_the_port_is_its_own(start, listed, stranger, monkeypatch):
    """The container's processes are root's, whose open files only root may read."""
    with socket.socket() as listening:
        listening.bind((ports.HOST, 0))
        listening.listen()
        inode = os.fstat(listening.fileno()).st_ino
        monkeypatch.setattr(ports, "_describe_listener", lambda _: "")
        server = start(python("import time; time.sleep(600)", look=("echo", listed.format(inode=inode))))
        assert ports.foreign_listener(server, listening.getsockname()[1]) == stranger


def test_a_port_that_is_bound_but_not_listened_on_is_taken_too(monkeypatch):
    monkeypatch.setattr(ports, "_RELEASE_S", 1.0)
    with socket.socket() as holder:
        holder.bind((ports.HOST, 0))
        with pytest.raises(EngineError, match="Address already in use"):
            ports.require_port(holder.getsockname()[1])


def test_free_ports_can_be_pinned():
    assert ports.require_port(free := ports.free()) == free


def test_a_container_is_run_and_ended_by_name(start, log, tmp_path, monkeypatch):
    """A docker on PATH that lives until somebody stops it by its name."""
    fake = tmp_path / "bin" / "docker"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = run ] && echo running $SECRET && exec sleep 600\nexit 0\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    secrets = Secrets(values=("sesame",))
    config = Config(
        name="c",
        path=tmp_path / "c.yaml",
        text="",
        engine=EngineSettings(kind="any", model="m", image="org/server:v1"),
        variants=(),
        limits=Limits(stop_s=1.0),
    )
    command = docker.command(config, ["m", "--port", "1"], env={"SECRET": "sesame"}, folders=["/m"], secrets=secrets)
    server = start(command)
    said(log, "running")
    server.stop(5.0)
    name = command.argv[command.argv.index("--name") + 1]
    run, stop, running = (tmp_path / "calls").read_text().splitlines()[:3]
    assert running == f"ps --quiet --filter name=^/?{name}$"
    assert run.startswith(f"run --rm --name {name} --network host --gpus all --ipc host ")
    assert " --env SECRET " in run
    assert " --volume /m:/m:ro " in run
    assert run.endswith(" org/server:v1 m --port 1")
    assert stop == f"stop --time 1 {name}"
    assert "sesame" not in log.read_text()


def test_a_docker_that_is_not_there_does_not_keep_the_rest_from_ending(start):
    server = start(python("import time; time.sleep(600)", stop=("/no/such/docker", "stop"), kill=("/no/such/docker", "kill")))
    server.stop(0.0)
    assert server.exit_code is not None


def test_the_watchdog_imports_next_to_nothing():
    code = "import sys; exec(open(sys.argv[1]).read(), {'__name__': 'x'}); print(*sys.modules)"
    argv = [sys.executable, "-I", "-S", "-c", code, str(Path(watchdog.__file__))]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert {"signal", "os"} <= set(loaded)
    assert not {"subprocess", "pathlib", "typing", "re", "json", "socket", "threading"} & set(loaded)


VLLM = """\
(APIServer pid=10) WARNING 11-21 13:39:33 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many`
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063]   File "/x/ops/topk_topp_sampler.py", line 529, in apply_top_k_only
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063]     max_top_k = k.max()
(Worker pid=12) ERROR 11-21 13:40:26 [multiproc_executor.py:1063] RuntimeError: max(): Expected reduction dim to be specified
(EngineCore pid=11) ERROR 11-21 13:40:26 [core.py:1512]   File "/x/vllm/v1/engine/core.py", line 1500, in run_busy_loop
(EngineCore pid=11) ERROR 11-21 13:40:26 [core.py:1512] RuntimeError: Worker failed with error 'max(): …'
INFO:     127.0.0.1:35294 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
"""


NOT_OFFLOADED = """\
(EngineCore pid=11) ERROR 11-28 16:23:22 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=11) ERROR 11-28 16:23:22 [core.py:1510]   File "/x/vllm/v1/kv_offload/cpu/spec.py", line 200, in get_worker
(EngineCore pid=11) ERROR 11-28 16:23:22 [core.py:1510]     raise Exception(
(EngineCore pid=11) ERROR 11-28 16:23:22 [core.py:1510] Exception: CPU Offloading is only supported on GPUs
Traceback (most recent call last):
  File "/x/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
RuntimeError: Engine core initialization failed. See root cause above.
"""


PYTHON = """\
INFO:     Application startup complete.
Traceback (most recent call last):
  File "engine.py", line 7, in step
    raise KeyError(token)
KeyError: 42
"""


@pytest.mark.parametrize(
    "log, expected",
    [
        (VLLM, "RuntimeError: max(): Expected reduction dim to be specified (topk_topp_sampler.py:529, in apply_top_k_only)"),
        (NOT_OFFLOADED, "Exception: CPU Offloading is only supported on GPUs (spec.py:200, in get_worker)"),
        (PYTHON, "KeyError: 42 (engine.py:7, in step)"),
        ("main: loading\nGGML_ASSERT(n_tokens > 0) failed\nAborted\n", "GGML_ASSERT(n_tokens > 0) failed"),
        ("RuntimeError: said by a model, without a traceback\n", ""),
        ("INFO: all is well\n", ""),
        ("", ""),
    ],
)
def test_the_first_exception_is_the_cause(log, expected):
    assert cause(log) == expected


def test_the_folders_of_a_command_are_made_before_it_runs_and_are_this_users(start, tmp_path):
    folder = tmp_path / "cache" / "compiled"
    server = start(python(f"import os; print(os.listdir({str(folder)!r}), flush=True)", folders=(str(folder),)))
    server.wait(10)
    assert server.exit_code == 0
    assert folder.stat().st_uid == os.getuid()


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(start, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot be made") as caught:
        start(python("", folders=(str(tmp_path / "file" / "cache"),)))
    assert caught.value.found.startswith(str(tmp_path / "file" / "cache"))
