"""A command that is out of time ends with every process it has started."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_specdec.bisect import process
from pytest_specdec.errors import DeadlineError


def has_ended(pid):
    """Whether a process is gone, or waits for its parent as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def await_end(child):
    for _ in range(1000):
        if has_ended(child):
            return
        time.sleep(0.01)  # the kernel ends the process in its own time
    pytest.fail(f"process {child} runs on")


def test_the_exit_code_is_returned_and_the_output_is_in_the_log(tmp_path):
    script = 'echo "$WORD"; echo; echo error >&2; exit 7'
    assert process.run(["sh", "-c", script], tmp_path / "logs/log", {"WORD": "out"}, folder=tmp_path, deadline=float("inf")) == 7
    assert process.last_lines(tmp_path / "logs/log", 2) == ("out", "error")
    assert process.last_lines(tmp_path / "logs/none", 2) == ()


def test_the_deadline_ends_the_command_and_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    # a shell in the background ignores SIGINT, and so shows that SIGKILL follows
    script = "sleep 60 & echo $! > child; trap '' INT; wait"
    while not (tmp_path / "child").is_file():
        with pytest.raises(DeadlineError, match="the time is up"):
            process.run(["sh", "-c", script], tmp_path / "log", {}, folder=tmp_path, deadline=time.monotonic() + 0.3)
    await_end(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("end", ["wait", "exit 0"])
def test_no_process_outlives_its_leader(tmp_path, end, monkeypatch):
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    script = f"(trap '' INT; exec sleep 60) & echo $! > child; {end}"
    while not (tmp_path / "child").is_file():
        with suppress(DeadlineError):
            process.run(["sh", "-c", script], tmp_path / "log", {}, folder=tmp_path, deadline=time.monotonic() + 0.3)
    await_end(int((tmp_path / "child").read_text()))
