"""Groups of a matrix on a cluster that is faked: its tasks run the fake capture in this process, part by part.

What the process on a node does is in test_cluster_node; a real cluster of Ray in tests/benchmarks/test_ray_nodes.
"""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace

import pytest

from pytest_specdec import __version__
from pytest_specdec.capture import planner, ray_cluster
from pytest_specdec.capture.cluster import Node, NodeLostError, TaskFailedError
from pytest_specdec.errors import RunError
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.folder_stream import FilePart, FolderReader, write_parts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.status import State
from pytest_specdec.plugin import capture, cluster_node, cluster_sessions
from pytest_specdec.plugin.run_state import RunState

LOADED = (planner,)
"""Loaded before the sessions here, which would forget it: what is pickled has to be of one module."""
MATRIX = """
matrix:
  axes:
    engine.args.max-num-seqs: [8, 16]
"""
GROUPS = ("max-num-seqs-8", "max-num-seqs-16")
ONE = ("-k", "test_chat", "--specdec-depth=smoke", "--specdec-run-dir=run", "--specdec-cluster=auto")


class Task:
    """A capture on a node; ``fate`` says after how many parts it ends in which error."""

    def __init__(self, folder, group, parts, fate):
        self.parts = self.capture(folder, group, parts)
        self.fate = fate
        self.given = 0
        self.is_cancelled = False

    @staticmethod
    def capture(folder, group, parts):
        group = pickle.loads(pickle.dumps(group))
        folder.mkdir(parents=True)
        write_parts(folder, parts)
        reader = FolderReader(folder)
        reader.skip(parts)
        settings = replace(group.settings, resume=folder if group.is_resumed else None, run_dir=folder, cluster="")
        state = RunState(settings, group.config, root=folder, plan=group.plan, warnings=())
        state.session = group.session
        if group.planned_by:
            state.plan = group.planned_by(group.config)
        capture.capture(state, lambda _: None, in_worker=False)
        for part in list(reader.changes()):
            yield [part]
        yield [FilePart(path=cluster_node.OUTPUT, data=b"a line of the node\n")]

    def next(self):
        if self.fate and self.given == self.fate[0]:
            raise self.fate[1]
        self.given += 1
        return next(self.parts, None)

    def cancel(self):
        self.is_cancelled, self.fate = True, None
        self.parts = iter(())


class FakeCluster:
    def __init__(self, folder):
        self.folder = folder
        self.submitted, self.groups = [], []
        self.fates = {}
        self.releases = {"a/1": __version__, "b/2": __version__}
        self.is_closed = False
        self.tasks = []

    def nodes(self):
        return [Node(id=name[-1], name=name, resources={"CPU": 2.0}, labels={}) for name in ("a/1", "b/2")]

    def versions(self):
        return self.releases

    def submit(self, name, work, group, parts, needs):
        self.submitted.append((name, [part.path for part in parts]))
        self.groups.append(group)
        fates = self.fates.get(name, [])
        self.tasks.append(Task(self.folder / f"{len(self.submitted)}", group, parts, fates.pop(0) if fates else None))
        return self.tasks[-1]

    def wait(self, tasks, wait_s):
        return tasks[:1]

    def close(self):
        self.is_closed = True


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    made = FakeCluster(tmp_path / "nodes")
    monkeypatch.setattr(ray_cluster, "connect", lambda address: made)
    return made


@pytest.fixture
def matrix(project):
    return project.tests().config(MATRIX)


def status_of(project, group):
    return run_documents.read_status(RunDirectory(matrix_run.group_directory(project.path / "run", group)))


def test_runs_come_back_from_the_nodes_and_are_judged_here(matrix, cluster):
    result = matrix.run(*ONE)
    result.assert_outcomes(passed=4)
    assert sorted(cluster.submitted) == [(group, []) for group in sorted(GROUPS)]
    assert cluster.is_closed
    result.stdout.fnmatch_lines(["specdec: 2 groups on a cluster of 2 nodes", "specdec: max-num-seqs-* has begun"])
    result.stdout.fnmatch_lines_random([f"specdec: capture complete after * ({group})" for group in GROUPS])
    assert matrix_run.group_output(matrix.path / "run", GROUPS[0]).read_text() == "a line of the node\n"
    matrix.run("--specdec-replay=run", "-k", "test_chat").assert_outcomes(passed=4)


def test_a_run_without_a_matrix_is_one_task(project, cluster):
    project.tests().run(*ONE).assert_outcomes(passed=2)
    assert cluster.submitted == [("run", [])]


def test_a_process_that_ends_before_its_run_begins_says_why(project, cluster, monkeypatch):
    def end_early(*_):
        yield [FilePart(path=cluster_node.OUTPUT, data=b"ImportError: no module of ours\n")]

    monkeypatch.setattr(Task, "capture", end_early)
    result = project.tests().run(*ONE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ended early:*", "*ImportError: no module of ours"])
    assert (project.path / "run" / cluster_node.OUTPUT).read_text() == "ImportError: no module of ours\n"


def test_a_group_that_loses_its_node_goes_on_with_what_has_arrived(matrix, cluster):
    """All answers had arrived, and not yet the word that nothing is missing."""
    cluster.fates[GROUPS[0]] = [(5, NodeLostError("node a/1 is dead"))]
    result = matrix.run(*ONE)
    result.assert_outcomes(passed=4)
    again = [parts for name, parts in cluster.submitted if name == GROUPS[0]]
    assert again[0] == []
    assert len(again[1]) == 5
    result.stdout.fnmatch_lines([f"specdec: {GROUPS[0]} lost its node, and goes on on another one: node a/1 is dead"])


def test_a_group_that_loses_node_after_node_is_missing_and_takes_no_other_down(matrix, cluster):
    cluster.fates[GROUPS[0]] = [(0, NodeLostError("gone"))] * 9
    result = matrix.run(*ONE, "--specdec-exit-codes")
    result.assert_outcomes(passed=2, errors=1)
    assert result.ret == 75
    assert status_of(matrix, GROUPS[0]).state is State.INCOMPLETE
    result.stdout.fnmatch_lines(
        ["*the group lost 4 nodes, the last one by: gone*", "*remedy: *--specdec-resume=*run captures what is missing*"]
    )


def test_a_failed_task_is_not_tried_on_every_node(matrix, cluster):
    cluster.fates[GROUPS[1]] = [(0, TaskFailedError("no such image"))]
    matrix.run(*ONE).assert_outcomes(passed=2, errors=1)
    assert len(cluster.submitted) == 2
    assert "no such image" in status_of(matrix, GROUPS[1]).error


def test_an_interrupt_cancels_all_tasks_and_a_resumed_run_completes_them(matrix, cluster, begun_here):
    cluster.fates[GROUPS[0]] = [(6, pytest.exit.Exception("told to end", 143))]
    result = matrix.run(*ONE)
    assert result.ret == 143
    assert [task.is_cancelled for task in cluster.tasks] == [True, True]
    assert cluster.is_closed
    assert status_of(matrix, GROUPS[0]).error.startswith("the capture was ended by Exit: told to end")
    for group in GROUPS:
        begun_here(matrix_run.group_directory(matrix.path / "run", group))
    resumed = matrix.run(*(option for option in ONE if "run-dir" not in option), "--specdec-resume=run")
    resumed.assert_outcomes(passed=4)
    by_name = dict(cluster.submitted[2:])
    assert "plan.json" in by_name[GROUPS[0]]


def test_another_release_on_a_node_is_one_error_before_anything_boots(matrix, cluster):
    cluster.releases = {"a/1": __version__, "b/2": ""}
    result = matrix.run(*ONE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: nodes of the cluster have another release of pytest-specdec", "*found: *b/2: no package pytest-specdec"]
    )
    assert cluster.submitted == []
    assert cluster.is_closed


@pytest.mark.parametrize("more, words", [
    ("cluster: {cpus: 64}\n", "no node of the cluster is large enough"),
    ("baseline: {env: {CUDA_VISIBLE_DEVICES: '0'}}\n", "the config cannot be captured on a cluster"),
])  # fmt: skip
def test_what_no_node_can_capture_is_one_error(matrix, cluster, more, words):
    result = matrix.config(MATRIX + more).run(*ONE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {words}"])
    assert cluster.submitted == []


def test_a_busy_cluster_is_said_and_given_up_after_an_hour(matrix, cluster, monkeypatch):
    monkeypatch.setattr(cluster_sessions, "_SAY_AFTER_S", -1.0)
    monkeypatch.setattr(cluster_sessions.locks, "MAX_WAIT_S", 0.3)
    monkeypatch.setattr(FakeCluster, "wait", lambda self, tasks, wait_s: [])
    result = matrix.run(*ONE)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["specdec: waiting for nodes that others hold, each with 1 CPU"])
    assert "no node of the cluster was free for an hour" in status_of(matrix, GROUPS[0]).error


@pytest.mark.parametrize("option", ["--specdec-replay=run", "--specdec-against=run"])
def test_a_stored_run_needs_no_cluster(matrix, cluster, option):
    matrix.run(*ONE).assert_outcomes(passed=4)
    shutil.rmtree(matrix.path / "nodes", ignore_errors=True)
    result = matrix.run("-k", "test_chat", "--specdec-cluster=auto", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --specdec-cluster: found {option.partition('=')[0]}; *"])


def test_files_that_cannot_be_written_end_their_group_alone(matrix, cluster, monkeypatch):
    write = cluster_sessions.write_parts

    def full(root, parts):
        if root.name == GROUPS[0]:
            msg = "the file cannot be written"
            raise RunError(msg, where=str(root), found="No space left on device")
        write(root, parts)

    monkeypatch.setattr(cluster_sessions, "write_parts", full)
    matrix.run(*ONE).assert_outcomes(passed=2, errors=1)
    assert "No space left on device" in status_of(matrix, GROUPS[0]).error
    assert [task.is_cancelled for task in cluster.tasks] == [True, False]


def test_a_disk_that_is_full_while_tasks_are_cancelled_hides_no_interrupt(matrix, cluster, monkeypatch):
    cluster.fates[GROUPS[0]] = [(6, pytest.exit.Exception("told to end", 143))]
    monkeypatch.setattr(Task, "cancel", cancelled_with_a_part)
    write = cluster_sessions.write_parts

    def full(root, parts):
        if any(part.path == "late" for part in parts):
            msg = "the file cannot be written"
            raise RunError(msg, where=str(root), found="No space left on device")
        write(root, parts)

    monkeypatch.setattr(cluster_sessions, "write_parts", full)
    assert matrix.run(*ONE).ret == 143
    for group in GROUPS:
        assert status_of(matrix, group).error.startswith("the capture was ended by Exit: told to end")


def cancelled_with_a_part(task):
    """Cancel the task, from which a last file still comes."""
    task.is_cancelled, task.fate, task.parts = True, None, iter([[FilePart(path="late", data=b"")]])
