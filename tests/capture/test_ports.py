"""A free port stays free until its server binds it, seconds later."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

from pytest_specdec.capture.server import ports

RESERVES = "import sys; from pytest_specdec.capture.server import ports; print(*[ports._reserve(int(port)) for port in sys.argv[1:]])"


def test_a_port_lies_below_those_that_the_kernel_hands_out(monkeypatch):
    assert ports._FIRST_PORT <= ports.free() < ports._first_kernel_port()
    monkeypatch.setattr(ports, "_first_kernel_port", lambda: ports._FIRST_PORT)
    assert ports.free() not in range(ports._FIRST_PORT), "where the kernel hands out all of them, it is asked for one"


def test_what_is_taken_or_reserved_is_passed_over(monkeypatch):
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        candidates = [taken.getsockname()[1], chosen := ports.free(), reserved := ports.free(), left := ports.free()]
        monkeypatch.setattr(ports, "_CHOSEN_PORTS", {chosen})
        monkeypatch.setattr(ports, "_candidates", lambda: iter(candidates))
        monkeypatch.setattr(ports, "_reserve", lambda port: port != reserved)
        assert ports.free() == left


def test_a_port_is_reserved_from_other_sessions_until_this_one_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    port = str(ports.free())
    other = [sys.executable, "-c", RESERVES, port, "1"]
    ask = ["-c", f"import subprocess, sys; {RESERVES}; print(subprocess.run({other!r}, capture_output=True, text=True).stdout)"]
    result = subprocess.run([sys.executable, *ask, port], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.split() == ["True", "False", "True"], "the first session; then the second, which asks for another port too"
    again = subprocess.run(other, capture_output=True, text=True, check=True, env=os.environ)
    assert again.stdout.split() == ["True", "True"], "the first session has ended"


def test_a_pinned_port_is_waited_for_while_connections_of_an_ended_server_hold_it(monkeypatch):
    with socket.socket() as server, socket.socket() as client:
        server.bind((ports.HOST, 0))
        server.listen()
        client.connect(server.getsockname())
        server.accept()[0].close()
        assert not ports.is_held(port := server.getsockname()[1]), "a process listens there"
        server.close()
        assert ports.is_held(port)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset ends the other side at once
        monkeypatch.setattr(ports.time, "sleep", lambda _seconds: client.close())
        assert ports.require_port(port) == port
