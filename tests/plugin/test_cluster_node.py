"""The process that captures a group on a node, with real servers: what it sends is the run, and nothing outlives who started it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture import environment, locks, planner, ray_cluster
from pytest_specdec.capture.cluster import TaskFailedError
from pytest_specdec.capture.server import orphans
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.config import variables
from pytest_specdec.engines.protocol import Command
from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents
from pytest_specdec.files.folder_stream import write_parts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth
from pytest_specdec.plugin import cluster_node
from tests.plugin.test_cluster_sessions import ONE, FakeCluster

LOADED = (planner,)
PLAN = Plan(config="c", engine="e", model="m", depth=Depth.SMOKE, pairs=(), workloads=(), judgements=(), boots=(), estimate_s=0.0)
WORK = """
import pickle, sys
from pathlib import Path
from pytest_specdec.plugin.cluster_node import work
for _ in work(pickle.loads(Path(sys.argv[1]).read_bytes()), ()):
    print(1, flush=True)
"""


@pytest.fixture
def group(project, monkeypatch, tmp_path, temporary):
    """What a session hands to a cluster."""
    cluster = FakeCluster(tmp_path / "nodes")
    cluster.fates["run"] = [(0, TaskFailedError("only looked at"))]
    monkeypatch.setattr(ray_cluster, "connect", lambda address: cluster)
    project.tests().run(*ONE)
    return cluster.groups[0]


def folders():
    return list((locks.folder() / "cluster").iterdir())


@pytest.mark.nightly
def test_a_node_sends_the_run_as_it_is_written_and_leaves_nothing(group, tmp_path):
    run = tmp_path / "arrived"
    count = 0
    for parts in cluster_node.work(group, ()):
        write_parts(run, parts)
        count += 1
    status = run_documents.read_status(RunDirectory(run))
    assert (status.state, status.missing) == (State.COMPLETE, ()), (run / cluster_node.OUTPUT).read_text()
    assert count > 2
    assert run_documents.session(RunDirectory(run)) == group.session
    assert len(list((run / "servers").glob("*.log"))) == status.boots
    assert folders() == []


def test_what_has_arrived_is_not_captured_again_unless_the_machine_is_of_another_kind(group, tmp_path):
    """The capture itself is a fake in a folder that looks like a run: whether it resumes is what counts."""
    directory = RunDirectory(tmp_path / "run")
    run_documents.write_environment(directory, environment.environment(group.config, "0"))
    run_documents.write_variables(directory, variables.digests(group.config.text, os.environ))
    assert cluster_node._fits_this_node(directory, group.config)
    run_documents.write_environment(directory, replace(environment.environment(group.config, "0"), cores=1000))
    assert not cluster_node._fits_this_node(directory, group.config)
    assert not cluster_node._fits_this_node(RunDirectory(tmp_path / "none"), group.config)


def test_a_run_of_an_earlier_session_is_not_cleared_on_another_machine(group, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    run_documents.write_environment(directory, replace(environment.environment(group.config, "0"), cores=1000))
    run_documents.write_variables(directory, variables.digests(group.config.text, os.environ))
    with pytest.raises(RunError, match="another kind of machine"):
        cluster_node._capture(replace(group, is_resumed=True), directory)
    assert directory.environment.is_file()


def test_a_capture_without_devices_sees_none_and_has_the_threads_of_a_machine_of_its_own(group, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    names = cluster_node._environment(group)
    assert names["CUDA_VISIBLE_DEVICES"] == ""
    assert "OMP_NUM_THREADS" not in names
    assert cluster_node._environment(replace(group, devices=2))["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_nothing_outlives_the_task_and_the_next_one_clears_its_folder(group, tmp_path):
    (tmp_path / "group").write_bytes(pickle.dumps(group))
    command = [sys.executable, "-c", WORK, str(tmp_path / "group")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as task:
        task.stdout.readline()
        (folder,) = folders()
        task.kill()
    until_s = time.monotonic() + 30
    while (left := processes_of(folder)) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert left == []
    with cluster_node._folder() as mine:
        assert folders() == [mine]


def test_servers_of_a_task_and_a_capture_that_are_gone_are_ended_before_their_notes_are_removed(tmp_path):
    folder = tmp_path / "task"
    directory = RunDirectory.create(folder / "run")
    run_documents.write_plan(directory, PLAN)
    server = ServerProcess(Command(argv=("sleep", "60")), directory.server_log(0, "arm"))
    try:
        note = directory.server_log(0, "arm").with_suffix(".json")
        orphans.note(note, server)
        note.write_text(note.read_text().replace('"owner_started": ', '"owner_started": 1'))
        cluster_node._remove_abandoned(folder)
        assert server.wait(10.0)
    finally:
        server.stop(0.0)
    assert not folder.exists()


def test_the_folder_of_a_task_killed_before_its_run_began_is_removed(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    cluster_node._remove_abandoned(folder)
    assert not folder.exists()


def processes_of(folder):
    """Return the processes with ``folder`` on their command line."""
    lines = {int(path.parent.name): path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
    return [pid for pid, line in lines.items() if str(folder).encode() in line and pid != os.getpid()]
