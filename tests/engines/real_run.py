"""A run of the suites on a real engine in a process of its own, watched from outside and struck while answers are in flight."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_specdec.capture.server import watchdog
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
PAUSE_S = 0.01
LONGEST_S = 900.0


@dataclass(frozen=True)
class Server:
    """A server by the note that its starter left: its first process, which leads a session, and its port."""

    pid: int
    started: int
    marker: str
    port: int
    arm: str

    def titled(self, title: str) -> list[int]:
        """Return its processes whose title begins so; its first one for no title."""
        members = watchdog.members(self.pid, self.started, self.marker)
        return [pid for pid in members if command_line(pid).startswith(title)] if title else [self.pid]

    def in_flight(self) -> int:
        """Return how many requests the engine works on at this moment, as it counts them."""
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as page:
            return int(sum(float(n) for n in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", page.read().decode(), re.MULTILINE)))
        return 0

    def survivors(self) -> list[str]:
        return [command_line(pid) for pid in watchdog.members(self.pid, self.started, self.marker)]


@dataclass
class RealRun:
    """One run directory and the sessions that capture into it."""

    root: Path
    config: str
    select: str
    servers: dict[str, Server] = field(default_factory=dict)
    """Every server that was ever seen, by marker."""
    struck: list[str] = field(default_factory=list)
    """The processes of the server that was struck, at that moment, by command line."""
    sessions: list[subprocess.Popen] = field(default_factory=list)

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.root)

    @property
    def status(self):
        return run_documents.read_status(self.directory)

    def verdicts(self):
        return {one["workload"]: one["verdict"] for one in json.loads(self.directory.run.read_text())["judgements"]}

    def transcript(self, arm, workload):
        return transcripts.read(self.directory, arm, workload)

    def bytes(self, but=()):
        """Return what was captured, by arm and workload, but for what is named."""
        found = {(path.parent.name, path.stem): path.read_bytes() for path in (self.root / "transcripts").glob("*/*.jsonl")}
        return {key: text for key, text in found.items() if key not in but}

    def begin(self):
        return self._session(f"--specdec-run-dir={self.root}")

    def resume(self):
        return self._session(f"--specdec-resume={self.root}")

    def _session(self, option):
        argv = [sys.executable, "-m", "pytest", "suites/", "-p", "no:cacheprovider", "-k", self.select]
        argv += [f"--specdec-config={self.config}", "--specdec-depth=smoke", option]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (self.root.parent / "pytest.log").open("ab") as log:
            begun = subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.sessions.append(begun)
        return begun

    def end(self):
        """End whatever a failed test left."""
        for session in self.sessions:
            session.kill()
            session.wait()
        for server in self.servers.values():
            watchdog.send(signal.SIGKILL, watchdog.members(server.pid, server.started, server.marker))

    def strike(self, session, arm, workload, title) -> tuple[Server, int]:
        """Kill the process ``title`` of the arm's server as soon as it has answers to ``workload`` in flight; return both."""
        for _ in self._watched(session):
            server = next((one for one in self.servers.values() if one.arm == arm and one.survivors()), None)
            if server and self._answering(arm, workload) and server.in_flight():
                victims = [session.pid] if title == "pytest" else server.titled(title)
                self.struck = server.survivors()
                assert len(victims) == 1, f"{title}: {victims} of {self.struck}"
                os.kill(victims[0], signal.SIGKILL)
                return server, victims[0]
        return pytest.fail(f"{arm} never had {workload} in flight\n{self.output()[-3000:]}")

    def ended(self, session) -> int:
        """Wait for the session's end; return its exit code."""
        for _ in self._watched(session):
            continue
        return session.wait()

    def survivors(self, within_s=0.0) -> list[str]:
        """Return what lives of any server of this run, after giving it a moment to be dead."""
        until_s = time.monotonic() + within_s
        while (alive := [line for one in self.servers.values() for line in one.survivors()]) and time.monotonic() < until_s:
            time.sleep(PAUSE_S)
        return alive

    def boots(self) -> list[tuple[str, int]]:
        """Return the arms' names with how often each was started."""
        names = [one.arm for one in self.servers.values()]
        return [(name, names.count(name)) for name in dict.fromkeys(names)]

    def output(self) -> str:
        return (self.root.parent / "pytest.log").read_text()

    def _watched(self, session):
        until_s = time.monotonic() + LONGEST_S
        while session.poll() is None:
            self._note()
            yield
            assert time.monotonic() < until_s, f"the session takes longer than {LONGEST_S:g} s\n{self.output()[-3000:]}"
            time.sleep(PAUSE_S)

    def _note(self):
        for path in (self.root / "servers").glob("*.json"):
            with suppress(OSError, ValueError, KeyError):
                told = json.loads(path.read_text())
                port = re.search(r"--port (\d+)", told["command"])
                arm = path.stem.partition("-")[2]
                self.servers.setdefault(
                    told["marker"], Server(told["pid"], told["started"], told["marker"], int(port[1]) if port else 0, arm)
                )

    def _answering(self, arm, workload) -> bool:
        lines = (self.root / "progress.jsonl").read_text().splitlines() if (self.root / "progress.jsonl").exists() else []
        with suppress(ValueError, IndexError):
            step = json.loads(lines[-1])
            return (step["doing"], step["arm"], step["workload"]) == ("answering", arm, workload) and step["done"] < step["of"]
        return False


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
