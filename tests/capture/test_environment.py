"""The environment: machine, accelerators, packages."""

from __future__ import annotations

import subprocess

from pytest_specdec.capture import environment


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
