"""Groups of a matrix side by side: a session for each, on devices of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from pytest_specdec.capture import devices, environment, locks
from pytest_specdec.capture.devices import Device, Job
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.status import State
from pytest_specdec.plugin import child_session

MATRIX = """
matrix:
  axes:
    engine.args.max-num-seqs: [8, 16]
"""
GROUPS = ("max-num-seqs-8", "max-num-seqs-16", "max-num-seqs-32")
ONE = ("-k", "test_chat", "--specdec-depth=smoke", "--specdec-run-dir=run")

MEETING = """

def note(what, directory):
    with (HERE / "events").open("a") as events:
        events.write(f"{what} {directory.root.name} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")


def meet():
    for _ in range(1200):  # until the other group has begun too; a minute is for a machine under load
        if (HERE / "events").read_text().count("begin") > 1 or os.environ.get("ALONE"):
            return
        time.sleep(0.05)


_fake = fake


def fake(config, plan, directory, *, deadline_s, tell):
    note("begin", directory)
    try:
        meet()
    except KeyboardInterrupt:
        _fake(config, plan, directory, deadline_s=deadline_s, tell=tell)
        records.write_status(directory, Status(state=State.INCOMPLETE, error="the capture was ended by KeyboardInterrupt: "))
        raise
    if directory.root.name == os.environ.get("DIES"):
        os._exit(9)
    status = _fake(config, plan, directory, deadline_s=deadline_s, tell=tell)
    note("end", directory)
    return status
"""


@pytest.fixture
def matrix(project, temporary, monkeypatch):
    """A project of two groups, whose captures wait for each other, and two places on the CPU."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + MEETING.replace("\\\\", "\\"))
    return project.tests().config(MATRIX + "limits: {devices: 2}\n")


def events_of(project):
    path = project.path / "events"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def status_of(project, group):
    return run_documents.read_status(RunDirectory(matrix_run.group_directory(project.path / "run", group)))


def test_groups_are_captured_at_once_on_devices_of_their_own_and_judged_here(matrix, monkeypatch):
    """The third of them begins on a device that comes free; its session dies, and takes no other down.

    In turn each would get a third of the deadline.
    """
    monkeypatch.setenv("DIES", GROUPS[2])
    matrix.config(MATRIX.replace("16]", "16, 32]") + "limits: {devices: 2}\n")
    result = matrix.run(*ONE, "--specdec-exit-codes", "--specdec-deadline=1h")
    result.assert_outcomes(passed=4, errors=1)
    assert result.ret == 75
    events = events_of(matrix)
    assert [event[0] for event in events if event[1] != GROUPS[2]] == ["begin", "begin", "end", "end"]
    assert [event[:2] for event in events if event[1] == GROUPS[2]] == [["begin", GROUPS[2]]]
    assert {group: device for _, group, device in events[:2]} == {GROUPS[0]: "0", GROUPS[1]: "1"}
    assert {device for _, _, device in events} == {"0", "1"}
    assert [status_of(matrix, group).state for group in GROUPS] == [State.COMPLETE, State.COMPLETE, State.INCOMPLETE]
    assert len({capture["pid"] for capture in matrix.captures}) == len(matrix.captures) == 2
    assert min(capture["deadline_s"] for capture in matrix.captures) > 3000
    result.stdout.fnmatch_lines(["specdec: 3 groups, at most 2 at once, on places on the CPU 0, 1: about *"])
    result.stdout.fnmatch_lines_random([f"specdec: capture complete after * ({group})" for group in GROUPS[:2]])
    result.stdout.fnmatch_lines(["*the session of the group ended early, with exit code 9; its output is in *groups/max-num-seqs-32.log*"])
    for group in GROUPS[:2]:
        assert "passed" not in matrix_run.group_output(matrix.path / "run", group).read_text()
        document = json.loads((matrix_run.group_directory(matrix.path / "run", group) / "run.json").read_text())
        assert [judgement["verdict"]["outcome"] for judgement in document["judgements"]] == ["pass", "pass"]


@pytest.mark.nightly
def test_groups_that_were_not_begun_are_captured_at_the_depth_of_the_run(matrix):
    matrix.run(*ONE)
    for group in GROUPS[:2]:
        shutil.rmtree(matrix_run.group_directory(matrix.path / "run", group))
    matrix.run("-k", "test_chat", "--specdec-resume=run").assert_outcomes(passed=4)
    assert {capture["depth"] for capture in matrix.captures} == {"smoke"}


@pytest.mark.nightly
def test_workers_capture_groups_side_by_side_once(matrix):
    result = matrix.run(*ONE, "-n2", "-pxdist", subprocess=True)
    result.assert_outcomes(passed=4)
    assert [event[0] for event in events_of(matrix)] == ["begin", "begin", "end", "end"]


@pytest.mark.nightly
def test_an_interrupt_ends_all_groups_and_a_resumed_matrix_completes_them(matrix, begun_here):
    """The groups wait for a third that never comes: both are at work when the interrupt arrives."""
    command = [sys.executable, "-m", "pytest", *ONE, "--specdec-config=tiny"]
    conftest = matrix.path / "conftest.py"
    text = conftest.read_text()
    conftest.write_text(text.replace('count("begin") > 1', 'count("begin") > 2'))
    with subprocess.Popen(command, cwd=matrix.path, stdout=subprocess.DEVNULL) as session:
        while len(events_of(matrix)) < 2:
            time.sleep(0.05)
        session.send_signal(signal.SIGINT)
    assert session.returncode == pytest.ExitCode.INTERRUPTED
    assert [status_of(matrix, group).state for group in GROUPS[:2]] == [State.INCOMPLETE, State.INCOMPLETE]
    assert [event[0] for event in events_of(matrix)] == ["begin", "begin"]
    conftest.write_text(text)
    for group in GROUPS[:2]:
        begun_here(matrix_run.group_directory(matrix.path / "run", group))
    resumed = matrix.run(*ONE[:-1], "--specdec-resume=run")
    resumed.assert_outcomes(passed=4)
    assert sorted(event[0] for event in events_of(matrix)[2:]) == ["begin", "begin", "end", "end"]
    assert {device for _, _, device in events_of(matrix)[2:]} == {"0", "1"}


@pytest.mark.parametrize("more, visible, line", [
    ("limits: {devices: [1]}", "1", "specdec: max-num-seqs-8"),
    # Servers on the CPU, with as many devices as there are groups beside them.
    pytest.param("", "None", "specdec: max-num-seqs-8", marks=pytest.mark.nightly),
    pytest.param(
        "limits: {devices: 2}\nbaseline: {env: {CUDA_VISIBLE_DEVICES: '0'}}",
        "0,1",
        "specdec: groups one after another, though limits.devices is set: the config sets CUDA_VISIBLE_DEVICES",
        marks=pytest.mark.nightly,
    ),
])  # fmt: skip
def test_groups_that_cannot_be_captured_at_once_are_captured_in_turn(matrix, monkeypatch, more, visible, line):
    monkeypatch.setenv("ALONE", "1")
    monkeypatch.setattr(environment, "devices", lambda: ("A", "A"))
    monkeypatch.setattr(environment, "uuids", lambda: ("GPU-a", "GPU-b"))
    result = matrix.config(f"{MATRIX}{more}\n").run(*ONE)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([line])
    assert [(event[0], event[2]) for event in events_of(matrix)] == [("begin", visible), ("end", visible)] * 2
    assert len({capture["pid"] for capture in matrix.captures}) == 1


def test_groups_give_up_devices_that_others_hold_and_name_the_holder(matrix, monkeypatch):
    monkeypatch.setattr(locks, "MAX_WAIT_S", 0.0)
    lease = devices.take([Job(name="other", devices=2, seconds=1.0)], devices.available(2).devices)
    result = matrix.run(*ONE)
    lease.close()
    result.assert_outcomes(errors=2)
    holder = f"process {os.getpid()} since *"
    result.stdout.fnmatch_lines([f"specdec: waiting for devices: 0 last held by {holder}; 1 last held by {holder}"])
    result.stdout.fnmatch_lines(
        [
            "*found: *other captures hold the devices",
            "* where: *0, 1",
            f"*found: *0 last held by {holder}",
            "*remedy: *captures what is missing",
        ]
    )
    assert events_of(matrix) == []


def test_groups_whose_sessions_cannot_be_written_for_take_no_other_down(matrix, monkeypatch, full_disk):
    """Of one group not even the status can be written: its tests get both reasons from the session itself."""
    monkeypatch.setattr(matrix_run, "group_output", lambda root, name: root / "matrix.json" / name)
    full_disk(GROUPS[0])
    result = matrix.run(*ONE)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["not captured: *", "  found: *Not a directory", "  found: *No space left on device"])
    assert not RunDirectory(matrix_run.group_directory(matrix.path / "run", GROUPS[0])).status.exists()
    assert "Not a directory" in status_of(matrix, GROUPS[1]).error
    assert events_of(matrix) == []


def test_a_lease_lasts_as_long_as_the_session_that_it_was_taken_for(tmp_path, temporary):
    """The session that took it may be killed before the servers have ended."""
    lease = devices.take([Job(name="it", devices=1, seconds=1.0)], [Device(name="0", lock="it")])
    command = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    with child_session.start(command, tmp_path / "log", folder=tmp_path, descriptors=lease.descriptors) as session:
        lease.close()
        descriptor = locks.try_device("it")
        session.terminate()
    assert descriptor is None
    assert locks.try_device("it") is not None


def test_a_stated_device_that_is_not_here_boots_nothing(matrix, monkeypatch):
    monkeypatch.setattr(environment, "devices", lambda: ("A",))
    result = matrix.run(*ONE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: a stated device is not here", "  found:    2", "  expected: some of the 1 devices here: 0"])
    assert events_of(matrix) == []
