"""Groups of a matrix captured side by side: each by a session of its own, on devices that are locked for it.

These sessions capture into the directories of the groups and judge nothing. A group is the part of a matrix that shares one baseline; it
has one run, called as the group. A job is a group still to capture, with its number of devices and estimated seconds. A slot is the time
that a job has on certain devices, and a lease is the lock on them.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import devices, locks
from pytest_specdec.capture.devices import Slot
from pytest_specdec.errors import LeaseError, RunError
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.plugin import capture, child_session, handover
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.plugin.progress import Ticker, last_word
from pytest_specdec.report.progress import clock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_specdec.capture.devices import AvailableDevices, Job, Lease
    from pytest_specdec.plugin.run_state import RunState

__all__ = ["capture_side_by_side"]

_LEAST_AT_ONCE = 2
"""Fewest groups at once for which each gets a session of its own."""


def capture_side_by_side(runs: Sequence[RunState], config: pytest.Config) -> None:
    """Capture the groups of a matrix side by side.

    This is done if at least two of them fit the devices at once. Otherwise nothing is captured here, and the caller captures them in turn;
    if the config keeps them from running side by side though ``limits.devices`` is set, a line says why. Without that setting, groups with
    servers on the CPU run in turn too. ``runs`` are the states of the groups. If the session of a group ends early, the group's run says
    why. After SIGTERM pytest's exit exception is raised; in a worker of xdist the runs say why instead. Raises PlanError if a group needs
    more devices than there are, ConfigError for a stated device that is not here, and RunError if a directory belongs to another session.
    """
    stated, root = runs[0].config.limits.devices, runs[0].matrix_root
    assert root is not None
    in_turn_reason = next(filter(None, (devices.why_in_turn(run.config) for run in runs)), "")
    usable = devices.available(stated)
    needs = {run.root.name: devices.count_needed(run.config, accelerators=usable.accelerators) for run in runs}
    # Servers on the CPU of a machine with devices share its cores: how many may run at once has to be stated.
    has_cpu_servers = not all(needs.values())
    if not usable.devices:
        return
    if stated is None and (in_turn_reason or has_cpu_servers):
        return
    # A group with servers on the CPU alone takes one device too: one of the stated number that may run at once.
    jobs = [devices.Job(name=run.root.name, devices=max(1, needs[run.root.name]), seconds=run.plan.estimate_s) for run in runs]
    devices.require_fit(jobs, usable)
    ticker = Ticker(config)
    if in_turn_reason:
        ticker.say(f"specdec: groups one after another, though limits.devices is set: {in_turn_reason}")
        return
    with capture.claim_directory(root):
        open_names = {run.root.name for run in runs if not capture.is_finished(run)}
        waiting = [job for job in jobs if job.name in open_names]
        if devices.most_at_once(devices.schedule(waiting, usable.devices)) < _LEAST_AT_ONCE:
            return
        ticker.say(_describe(waiting, usable))
        try:
            with capture.exit_on_sigterm():
                _GroupSessions(runs, waiting, usable, ticker, config).run()
        except pytest.exit.Exception as ended:
            # A worker of xdist goes on to its tests, which report why the captures ended.
            if not hasattr(config, "workerinput"):
                raise
            for run in runs:
                capture.write_lost(run, str(ended))  # nothing where the run is finished


def _describe(jobs: Sequence[Job], usable: AvailableDevices) -> str:
    """Return the line about the groups to capture, their devices and the time needed."""
    slots = devices.schedule(jobs, usable.devices)
    what, end_s = "devices" if usable.accelerators else "places on the CPU", max(slot.end_s for slot in slots)
    return f"specdec: {len(jobs)} groups, at most {devices.most_at_once(slots)} at once, on {what} {usable.names}: about {clock(end_s)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupSession:
    """The session of one group, at work."""

    run: RunState
    slot: Slot
    """Its devices, and begin and expected end in seconds since the captures of all groups began."""
    lease: Lease
    process: subprocess.Popen[bytes]


class _GroupSessions:
    """Starts a session for each group as devices come free, and follows them all.

    ``_waiting`` are the jobs that no session has begun, ``_sessions`` those at work. ``_holders`` are the other captures seen to hold the
    devices when no session could begin.
    """

    def __init__(
        self, runs: Sequence[RunState], jobs: Sequence[Job], usable: AvailableDevices, ticker: Ticker, config: pytest.Config
    ) -> None:
        self._runs = {run.root.name: run for run in runs}
        self._waiting = list(jobs)
        self._usable = usable
        self._ticker = ticker
        self._has_xdist = config.pluginmanager.hasplugin("xdist")
        """Whether ``-n0`` is an option of pytest here: it keeps a group's session from starting workers."""
        self._began_s = time.monotonic()
        self._deadline_s = config.stash[SETTINGS].deadline_s
        self._is_resumed = config.stash[SETTINGS].resume is not None
        """Whether the matrix's run is resumed. All groups get that option: also one not begun then takes its depth from that run."""
        self._sessions: list[_GroupSession] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        """Those of ``_sessions``: the list by which :func:`child_session.end_on_error` ends them."""
        self._blocked_since_s: float | None = None
        """Since when other captures hold the devices that every waiting group needs; None while a group is at work."""
        self._holders: tuple[str, ...] = ()

    def run(self) -> None:
        """Capture all groups, until each one has ended or is given up.

        If this session is interrupted, so are those of the groups. It then waits until they have stopped their servers.
        """
        stop_s = max(run.config.limits.stop_s for run in self._runs.values())
        with child_session.end_on_error(self._processes, stop_s):
            while self._waiting or self._sessions:  # the calls below take out groups that have ended or are given up
                self._start_sessions()
                self._check_blocked()
                time.sleep(child_session.EVERY_S)
                self._follow_sessions()

    def _start_sessions(self) -> None:
        """Start sessions of waiting groups, as long as free devices suffice for one."""
        while self._waiting:
            taken = {device for session in self._sessions for device in session.lease.devices}
            lease = devices.take(self._waiting, [device for device in self._usable.devices if device not in taken])
            if lease is None:
                return
            (job,) = (job for job in self._waiting if job.name == lease.job)
            self._waiting.remove(job)
            begin_s = time.monotonic() - self._began_s
            slot = Slot(job=job.name, devices=lease.devices, begin_s=begin_s, end_s=begin_s + job.seconds)
            self._start_session(self._runs[job.name], slot, lease)

    def _capture_s(self, slot: Slot) -> float | None:
        """Return the seconds that a group beginning now may capture for; None without a deadline.

        ``slot`` is the group's. The seconds are those left until the deadline, less what the groups need that wait for the same devices,
        and at least the group's part of the deadline, which its capture was planned with.
        """
        planned_s = self._runs[slot.job].capture_s
        if self._deadline_s is None or planned_s is None:  # both are None without a deadline
            return None
        now_s = slot.begin_s  # since the captures of all groups began; below, times count from now
        return devices.time_limit(
            _shift(slot, now_s),
            running=[_shift(session.slot, now_s) for session in self._sessions],
            waiting=self._waiting,
            devices=self._usable.devices,
            left_s=self._deadline_s - now_s,
            least_s=planned_s,
        )

    def _start_session(self, run: RunState, slot: Slot, lease: Lease) -> None:
        """Start the session of a group on the devices of ``lease``.

        ``slot`` has its beginning and expected end. The lease is closed if the session does not start.
        If the session's output cannot be written, the group is not captured, and its run gets the reason.
        """
        names = ", ".join(device.name for device in lease.devices)
        self._ticker.say(f"specdec: {lease.job} on {'device' if len(lease.devices) == 1 else 'devices'} {names}")
        variables = {**lease.variables, handover.GROUP_VARIABLE: json.dumps(_hand_over(run, self._capture_s(slot)))}
        try:
            process = child_session.start(
                self._arguments(run), _output(run), folder=run.invoked_in, more=variables, descriptors=lease.descriptors
            )
        except RunError as error:
            lease.close()
            capture.write_lost(run, str(error))
            return
        except BaseException:
            lease.close()
            raise
        self._processes.append(process)
        self._sessions.append(_GroupSession(run=run, slot=slot, lease=lease, process=process))

    def _arguments(self, run: RunState) -> tuple[str, ...]:
        """Return the command line of a group's session.

        The session is one process: it judges nothing that workers could share.
        """
        resumed = (f"--specdec-resume={run.matrix_root}",) if self._is_resumed else ()
        return child_session.arguments(run.arguments, *(("-n0",) if self._has_xdist else ()), *resumed)

    def _follow_sessions(self) -> None:
        """Show the progress of all groups, and finish those whose session has ended."""
        for session in list(self._sessions):
            is_over = session.process.poll() is not None  # before the look at the progress, so that its last step is shown
            for step in run_documents.read_progress(RunDirectory(session.run.root))[-1:]:
                self._ticker(step, session.lease.job)
            if is_over:
                self._sessions.remove(session)
                self._processes.remove(session.process)
                session.lease.close()
                self._finish(session)

    def _finish(self, session: _GroupSession) -> None:
        """Print the last line about a group whose session has ended.

        If the group's capture is not finished, exit code and last output are written into its run as the reason.
        """
        output = _output(session.run)
        last = child_session.read_last_lines(output)
        what = f"the session of the group ended early, with exit code {session.process.returncode}; its output is in {output}"
        remedy = f"\n  remedy:   --specdec-resume={session.run.matrix_root} captures what is missing"
        capture.write_lost(session.run, what + (f":\n{last}" if last else "") + remedy)
        with suppress(RunError):  # a full disk, which the tests of the group report
            self._ticker.say(f"{last_word(run_documents.read_status(RunDirectory(session.run.root)))} ({session.lease.job})")

    def _check_blocked(self) -> None:
        """Report the other captures that hold the devices, while no group is at work.

        The waiting groups are given up once the same captures have held the devices for an hour (``locks.MAX_WAIT_S``). The reason is then
        written into their runs.
        """
        if self._sessions or not self._waiting:
            self._blocked_since_s = None
            return
        holders = devices.describe_holders(self._usable.devices)
        if self._blocked_since_s is None or holders != self._holders:
            self._blocked_since_s, self._holders = time.monotonic(), holders
            self._ticker.say(f"specdec: waiting for devices: {'; '.join(holders)}")
        elif time.monotonic() - self._blocked_since_s > locks.MAX_WAIT_S:
            for job in self._waiting:
                run = self._runs[job.name]
                error = LeaseError(
                    "other captures hold the devices",
                    where=", ".join(device.name for device in self._usable.devices),
                    found="; ".join(holders),
                    expected=f"{job.devices} free for {job.name}",
                    remedy=f"end those captures; --specdec-resume={run.matrix_root} then captures what is missing",
                )
                capture.write_lost(run, str(error))
            self._waiting.clear()


def _hand_over(run: RunState, capture_s: float | None) -> dict[str, str]:
    """Return what a group's session is handed, by the keys of :mod:`handover`.

    ``capture_s`` are the seconds that it may capture for; None without a deadline.
    """
    seconds = {} if capture_s is None else {handover.CAPTURE_S: str(capture_s)}
    return {handover.ROOT: str(run.matrix_root), handover.SESSION: run.session, handover.GROUP: run.root.name, **seconds}


def _shift(slot: Slot, now_s: float) -> Slot:
    """Return a slot in seconds from ``now_s``; a job at work for longer than expected ends now."""
    return replace(slot, begin_s=slot.begin_s - now_s, end_s=max(0.0, slot.end_s - now_s))


def _output(run: RunState) -> Path:
    """Return the file with the output of a group's session."""
    assert run.matrix_root is not None
    return matrix_run.group_output(run.matrix_root, run.root.name)
