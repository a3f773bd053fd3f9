"""The groups of a session captured on a cluster: a task for each, whose run comes back as it is written, and is judged here.

A group is the part of a matrix that shares one baseline, or the whole of a config without a matrix; it has one run. A part is a change of
one file of the run, in the order of the changes. Workers are processes of pytest-xdist.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from pytest_specdec import __version__
from pytest_specdec.capture import cluster as clusters
from pytest_specdec.capture import devices, locks, placement, ray_cluster
from pytest_specdec.errors import PlanError, RunError
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.folder_stream import FilePart, FolderReader, write_parts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.plugin import capture, child_session, cluster_node
from pytest_specdec.plugin.progress import Ticker, last_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.capture.cluster import Cluster, Needs, Task
    from pytest_specdec.plugin.run_state import RunState

__all__ = ["capture_on_cluster"]

_SAY_AFTER_S = 30.0
"""Seconds without any node before the wait is reported: on a free node a task begins sooner."""
_MOST_LOSSES = 3
"""Nodes that a group may lose before it counts as missing."""


def capture_on_cluster(runs: Sequence[RunState], config: pytest.Config, address: str) -> None:
    """Capture ``runs`` on the nodes of the cluster at ``address``.

    As many are captured at once as the cluster has room for. If a task ends early, its run's status has the reason. After SIGTERM pytest's
    exit exception is raised; in a worker of xdist the runs have the reason instead. Raises ConfigError or CaptureError if the cluster
    cannot be reached or refuses what the config states, PlanError for a config that no node can capture and for nodes with another release
    of this package, and RunError if a directory belongs to another session.
    """
    for run in runs:
        _require_any_node(run)
    root = runs[0].matrix_root or runs[0].root  # a matrix has one directory for all its runs
    with capture.claim_directory(root):
        if not (waiting := [run for run in runs if not capture.is_finished(run)]):
            return
        with capture.exit_on_sigterm(), _connection(address) as cluster:
            nodes = cluster.nodes()
            needs = {run.root.name: clusters.needs_of(run.config, nodes) for run in waiting}
            clusters.require_fit(needs, nodes)
            # An image or a package that Ray sets up brings a release of this package, whatever the node has.
            if not any(need.runtime_env for need in needs.values()):
                _require_release(cluster.versions(), nodes)
            try:
                _ClusterSessions(waiting, needs, cluster, Ticker(config)).run()
            except pytest.exit.Exception as ended:
                # A worker of xdist goes on to its tests, which report why the capture ended.
                if not hasattr(config, "workerinput"):
                    raise
                for run in waiting:
                    if not capture.is_finished(run):
                        _write_lost(run, str(ended))


@contextmanager
def _connection(address: str) -> Iterator[Cluster]:
    """Connect to a cluster while the block runs; SIGTERM raises pytest's exit exception in it."""
    cluster = ray_cluster.connect(address)
    try:
        # Only after connecting: the cluster's library may set a handler of its own for SIGTERM.
        with capture.exit_on_sigterm():
            yield cluster
    finally:
        cluster.close()


def _require_any_node(run: RunState) -> None:
    """Raise PlanError for a config that not every node could capture.

    Such a config has an old engine, or pins ports or devices of its servers. Attached servers run already, wherever the capture does.
    """
    if run.config.old is not None:
        setting = "engines"
    elif placement.attached_arms(run.config):
        setting = ""
    else:
        setting = devices.why_in_turn(run.config)  # here the reason is a pinned port or device, or none
    if setting:
        what, expected = "the config cannot be captured on a cluster", "one engine, and servers whose ports and devices are chosen at boot"
        remedy = "leave --specdec-cluster out, or that setting"
        raise PlanError(what, where=f"--specdec-cluster, {run.config.path}", found=setting, expected=expected, remedy=remedy)


def _require_release(versions: Mapping[str, str], nodes: Sequence[clusters.Node]) -> None:
    """Raise PlanError unless every node has this release of the package."""
    others = {node.name: versions.get(node.name) for node in nodes if versions.get(node.name) != __version__}
    if others:
        lines = "\n".join(
            f"{name}: {'no answer' if version is None else version or 'no package pytest-specdec'}" for name, version in others.items()
        )
        what, remedy = (
            "nodes of the cluster have another release of pytest-specdec",
            "install this release on them, or name an image in `cluster`",
        )
        raise PlanError(what, where="--specdec-cluster", found=lines, expected=f"{__version__} on every node", remedy=remedy)


@dataclass(slots=True, kw_only=True)
class _Session:
    """A group on the cluster."""

    run: RunState
    needs: Needs
    task: Task
    losses: int = 0
    is_placed: bool = False
    """Whether anything has come from its node."""
    unwritten_output: list[FilePart] = field(default_factory=list)
    """Output of its process that has come and cannot be written yet."""


class _ClusterSessions:
    """Submits a task for each run, and follows them all.

    ``_sessions`` are the runs that are not over, each with its task. One is placed once anything has come from a node. ``_needs`` are what
    the runs ask of a node, by name.
    """

    def __init__(self, runs: Sequence[RunState], needs: Mapping[str, Needs], cluster: Cluster, ticker: Ticker) -> None:
        self._runs = sorted(runs, key=lambda run: -run.plan.estimate_s)  # the longest first: the end waits for few of them
        self._needs = needs
        self._cluster = cluster
        self._ticker = ticker
        self._sessions: list[_Session] = []
        self._last_placed_s = time.monotonic()
        """When a group had a node for the last time; the start, as long as none has had one."""
        self._is_wait_reported = False
        """Whether a line has said that no node is free."""

    def run(self) -> None:
        """Capture all runs, until each one is finished or given up.

        An exception, such as an interruption of pytest, cancels the remaining tasks and is raised again.
        """
        count, node_count = len(self._runs), len(self._cluster.nodes())
        groups, cluster = f"{count} groups " if count > 1 else "", f"on a cluster of {node_count} node{'' if node_count == 1 else 's'}"
        self._ticker.say(f"specdec: {groups}{cluster}")
        with self._cancel_on_error():
            for run in self._runs:
                needs = self._needs[run.root.name]
                self._sessions.append(_Session(run=run, needs=needs, task=self._submit(run, needs)))
            while self._sessions:  # _finish takes out those that have ended or are given up
                self._check_waiting()
                ready = self._cluster.wait([session.task for session in self._sessions], child_session.EVERY_S)
                for session in [session for session in self._sessions if session.task in ready]:
                    self._take_parts(session)

    def _check_waiting(self) -> None:
        """Report once that no group has a node; give all up after an hour (``MAX_WAIT_S``) without one."""
        waited_s = time.monotonic() - self._last_placed_s
        if any(session.is_placed for session in self._sessions):
            self._last_placed_s = time.monotonic()
        elif waited_s > locks.MAX_WAIT_S:
            for session in list(self._sessions):
                session.task.cancel()
                self._finish(session, "no node of the cluster was free for an hour: others hold what the group needs")
        elif waited_s > _SAY_AFTER_S and not self._is_wait_reported:
            self._is_wait_reported = True
            needs = "; ".join(dict.fromkeys(str(session.needs) for session in self._sessions))
            self._ticker.say(f"specdec: waiting for nodes that others hold, each with {needs}")

    def _submit(self, run: RunState, needs: Needs) -> Task:
        """Submit a task that captures a run, and return it.

        The task takes with it what was captured of the run already, by this session or by an earlier one whose run is resumed or continued.
        """
        directory, parts = RunDirectory(run.root), tuple[FilePart, ...]()
        has_begun = directory.plan.is_file() and run_documents.session(directory) == run.session
        if has_begun or run.settings.taken_up is not None:
            parts = tuple(FolderReader(run.root).changes())
        group = cluster_node.GroupWork(
            config=run.loaded,  # with each ``${VAR}`` as written: the node has values of its own
            settings=run.settings,
            session=run.session,
            plan=run.plan,
            planned_by=run.planned_by,  # makes the plan anew, for the node's machine
            devices=needs.devices,
            is_resumed=run.settings.taken_up is not None,
        )
        return self._cluster.submit(run.root.name, cluster_node.work, group, parts, needs=needs)

    def _take_parts(self, session: _Session) -> None:
        """Write the next parts of a run, as its task has them ready.

        If the node is lost, the run gets another one. If the task has ended or failed, or the parts cannot be written, the run is finished.
        """
        try:
            parts = session.task.next()
        except clusters.NodeLostError as error:
            self._replace_node(session, str(error))
            return
        except clusters.TaskFailedError as error:
            self._finish(session, f"the capture of the group failed on its node\n{error}")
            return
        if parts is None:  # the task has ended: the reason counts only if its capture is not finished
            self._finish(session, "the process that captured the group on its node ended early")
            return
        if not session.is_placed:
            session.is_placed = True
            self._ticker.say(f"specdec: {session.run.root.name} has begun")
        try:
            self._write(session, parts)
        except RunError as error:  # a full disk: the groups whose files still fit go on
            session.task.cancel()
            self._finish(session, str(error))
            return
        for step in run_documents.read_progress(RunDirectory(session.run.root))[-1:]:
            self._ticker(step, session.run.root.name)

    @staticmethod
    def _write(session: _Session, parts: Sequence[FilePart]) -> None:
        """Write the parts of a run, and the output of its process, which is a part by the name ``OUTPUT``."""
        write_parts(session.run.root, [part for part in parts if part.path != cluster_node.OUTPUT])
        name_here = _output(session.run).name
        session.unwritten_output += [replace(part, path=name_here) for part in parts if part.path == cluster_node.OUTPUT]
        _write_output(session)

    def _replace_node(self, session: _Session, error: str) -> None:
        """Capture on another node what was not captured yet.

        A run that has lost more than ``_MOST_LOSSES`` nodes is finished instead.
        """
        session.losses += 1
        name = session.run.root.name
        if session.losses > _MOST_LOSSES:
            self._finish(session, f"the group lost {session.losses} nodes, the last one by: {error}")
            return
        self._ticker.say(f"specdec: {name} lost its node, and goes on on another one: {error}")
        session.is_placed = False
        session.task = self._submit(session.run, session.needs)

    def _finish(self, session: _Session, reason: str) -> None:
        """Print the last line about a group whose task has ended or is given up.

        If the group's capture is not finished, ``reason`` is written into its run, with the last lines of output.
        """
        self._sessions.remove(session)
        run, directory = session.run, RunDirectory(session.run.root)
        if not capture.is_finished(run):
            unwritten_text = b"".join(part.data or b"" for part in session.unwritten_output).decode(errors="replace")
            last = child_session.last_lines(unwritten_text) or child_session.read_last_lines(_output(run))
            remedy = f"\n  remedy:   --specdec-resume={run.matrix_root or run.root} captures what is missing"
            _write_lost(run, reason + (f":\n{last}" if last else "") + remedy)
            with suppress(RunError):  # a full disk, which the tests of the group report
                _write_output(session)
        with suppress(RunError):  # a full disk, which the tests of the group report
            self._ticker.say(f"{last_word(run_documents.read_status(directory))} ({run.root.name})")

    @contextmanager
    def _cancel_on_error(self) -> Iterator[None]:
        """Cancel the remaining tasks if the block raises an exception.

        The exception is written into their runs as the reason for having no end, and raised again.
        """
        try:
            yield
        except BaseException as error:
            self._cancel()
            for session in self._sessions:
                if not capture.is_finished(session.run):
                    _write_lost(session.run, f"the capture was ended by {type(error).__name__}: {error}")
            raise

    def _cancel(self) -> None:
        """Cancel the remaining tasks and wait until they have stopped their servers.

        Parts of their runs that still come are written. It waits ``END_S`` seconds and the longest ``limits.stop_s`` at most.
        """
        # Those that wait first: they would begin on the nodes of the others.
        for session in sorted(self._sessions, key=lambda session: session.is_placed):
            session.task.cancel()
        tasks = {session.task: session for session in self._sessions}
        end_s = time.monotonic() + cluster_node.END_S + max((session.run.config.limits.stop_s for session in self._sessions), default=0.0)
        while tasks and time.monotonic() < end_s:
            for task in self._cluster.wait(list(tasks), child_session.EVERY_S):
                try:
                    parts = task.next()
                except (clusters.NodeLostError, clusters.TaskFailedError):
                    parts = None
                if parts is None:
                    del tasks[task]
                    continue
                with suppress(RunError):  # a full disk, which the tests of the group report
                    self._write(tasks[task], parts)


def _write_lost(run: RunState, reason: str) -> None:
    """Write into a run why its capture has no end.

    :func:`capture_on_cluster` has claimed the directory of a matrix, or of a run without one; that of a group in a matrix is not claimed.
    """
    capture.write_lost(run, reason, is_claimed=run.matrix_root is None)


def _write_output(session: _Session) -> None:
    """Write the output that has come from a run's process, if it can be written yet.

    The output of a single run lies inside the run's directory. That has to stay empty until it has the id of this session, which comes with
    the first parts, or is written with the reason for a lost capture: anything else there would be taken for another session's.
    """
    run = session.run
    if run.matrix_root is not None or RunDirectory(run.root).session.is_file():
        write_parts(_output(run).parent, session.unwritten_output)
        session.unwritten_output.clear()


def _output(run: RunState) -> Path:
    """Return the file with the output of the process that captured a run on a node."""
    if run.matrix_root is not None:
        return matrix_run.group_output(run.matrix_root, run.root.name)
    return run.root / cluster_node.OUTPUT
