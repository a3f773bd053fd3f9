"""A server at work: its client, its counters, and the restarts it has left.

A boot of the capture works with one server, which is started anew after a death. A recipe is all that its starts need. A rank is a process
of a server, or a part of one, that counts for itself. The counters of some engines drain: every reading sets them back to 0. Events, such
as a sleep or an update of weights, are done to a server between requests.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_specdec.capture.server import counters, memory, orphans, ports
from pytest_specdec.capture.server.event_gate import EventGate
from pytest_specdec.capture.server.process import ServerProcess, defer_signals
from pytest_specdec.capture.server.readiness import SECONDS, check_port, wait
from pytest_specdec.capture.server.stack import ServerStack
from pytest_specdec.capture.server.traffic import Aside
from pytest_specdec.errors import BootError, DeadlineError, FirstRequestError, SpecdecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from pytest_specdec.capture.client import Client
    from pytest_specdec.capture.server.counters import CounterReading
    from pytest_specdec.capture.server.launched import LaunchedServer
    from pytest_specdec.capture.server.recipe import ServerRecipe
    from pytest_specdec.engines.server_counts import Traffic
    from pytest_specdec.model.spec_counters import RankCounters, SpecCounters
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import Request, Route

RESTARTS = 6
"""Times that one boot's server may be started again after a death, all its workloads together."""
_FAILED_STARTS = 2
"""Of these, those in a row that may come to nothing: each takes as long as a boot may."""
_EXIT_S = 2.0
"""Seconds that a dying server gets to be dead: the API process outlives its engine by a moment."""

_GRACE_S = 1.0
"""Seconds after the capture's deadline and ``stop_s`` at which a server is killed by its watchdog, whatever its starter is stuck in."""


class ArmServer:
    """One boot's server, started again after a death."""

    def __init__(self, recipe: ServerRecipe, heartbeat: Callable[[], None], left_s: Callable[[], float] = lambda: math.inf) -> None:
        """Take the recipe, a heartbeat and the time left.

        ``heartbeat`` is called while the server is waited for. ``left_s`` returns the seconds that the capture has
        left.
        """
        self.recipe = recipe
        self.left_s = left_s
        self.restarts = 0
        self.max_in_flight: int | None = None
        """Requests that may be in flight if the server has failed with more; None if it has not."""
        self.slowest_s = 0.0
        """Seconds that its slowest answer so far took; 0 before the first."""
        self.version = ""
        self.model = ""
        """The name that it serves its model under."""
        self.readiness_s = 0.0
        """Seconds that the first start took."""
        self.wall_s = 0.0
        """Seconds from readiness to the last answer, over all starts that have ended."""
        self.busy_s = 0.0
        """Seconds of that with a request in flight."""
        self.lost = ""
        """Why it answers no client any more although it runs, such as an expired key; empty if it does."""
        self.answered: dict[Route, Request] = {}
        """The shortest answered request of each route."""
        self.aside = Aside()
        """Tokens of the requests sent in addition to workloads and probes."""
        self._aside_lock = threading.Lock()
        self._heartbeat = heartbeat
        self._server: LaunchedServer | None = None
        self._client: Client | None = None
        self._last_tail: tuple[str, ...] = ()
        self._failed_starts = 0
        self._is_end_accounted_for = False
        """Whether a failed request, or this program, accounts for the server's end."""
        self.counters_lag = False
        """Whether the counters are those of the log, which come late."""
        self.ranks: Mapping[str, RankCounters] = {}
        """The counters of each rank at the last reading; empty where they have one source."""
        self._drained_counters: SpecCounters | None = None
        """The sum of all readings of counters that every reading resets."""
        self._drained_preemptions: int | None = None
        """The same sum of preemptions."""
        self.event_gate = EventGate()
        self._asks_token = True
        """Whether a start asks for one token; not after the server has died of that."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_orderly = kind is None or issubclass(kind, SpecdecError)
        self.stop(self.recipe.stop_s if is_orderly else 0.0)

    def start(self) -> None:
        """Start the server and wait until it is ready.

        Raises BootError if it does not become ready, or DeadlineError if the capture's time is used up. No process of the server is left
        after an error.
        """
        began_s = time.monotonic()
        try:
            self._start()
        except BootError:
            self.stop(0.0)
            if self.left_s() <= 0:
                self._heartbeat()  # raises that the time of the capture is used up
            raise
        except BaseException:
            self.stop(0.0)
            raise
        self.readiness_s = time.monotonic() - began_s

    def kill(self) -> None:
        """Kill the server's processes from another thread.

        The thread that works with the arm notices the end and stops the server.
        """
        server = self._server
        if server is not None:
            self._account_for_end()  # before the kill: another thread that sees the end must not report it as the server's own
            server.kill()

    @property
    def client(self) -> Client:
        """The client of the running server.

        Raises BootError if there is none.
        """
        if self._client is None:
            what = "the server died and has no restart left"
            restarts, expected = f"{self.restarts} restarts", f"at most {RESTARTS}"
            where = self.recipe.setup.attached or str(self.recipe.log)
            raise BootError(what, where=where, found=restarts, expected=expected, remedy="read the end of its log")
        return self._client

    @property
    def running(self) -> bool:
        """True if the server was started and has not ended."""
        return self._server is not None and self._server.exit_code is None

    @property
    def has_ended_silently(self) -> bool:
        """True if the server ended by itself and no request shows it.

        It is False again once the server was replaced.
        """
        return self._server is not None and self._server.exit_code is not None and not self._is_end_accounted_for

    def _account_for_end(self) -> None:
        """Note that a failed request, or this program, accounts for the server's end.

        It is then not reported as a silent one. The end of a fresh server may be silent again.
        """
        self._is_end_accounted_for = True

    @property
    def dead_processes(self) -> tuple[str, ...]:
        """The processes found dead right after a failure, in words.

        The main one, which was started here, is left out, since :meth:`wait_for_end` describes its end.
        """
        return self._server.dead_processes if self._server else ()

    def add_aside(self, answer: Answer) -> None:
        """Count the tokens of a request sent in addition to workloads.

        An attached server counts these tokens too, and they would otherwise pass for other clients' requests. Safe to
        call from several threads.
        """
        with self._aside_lock:
            self.aside += answer

    def concurrency(self, wanted: int) -> int:
        """Return how many requests of ``wanted`` may be in flight."""
        return min([wanted, *(limit for limit in (self.max_in_flight, self.recipe.concurrency) if limit is not None)])

    def note_processes(self) -> None:
        """Record the server's processes, while it works."""
        if self._server is not None:
            self._server.note_processes()

    def resident_mib(self) -> float | None:
        """Return the resident memory of the server's processes in MiB.

        None if they are not here, cannot be read, or are in a container, of which only docker's client is seen here.
        """
        commands = [self.recipe.command, *(process.command for process in self.recipe.processes)]
        is_contained = any(command is not None and command.container for command in commands)
        return None if self._server is None or is_contained else memory.resident_mib(self._server.members)

    def note_dead_processes(self) -> None:
        """Record the dead among the processes noted before, from any thread.

        To be called as soon as a request fails.
        """
        server = self._server
        if server is not None:
            server.note_dead_processes()

    def wait_for_end(self) -> str:
        """Return how the server ended, in words, after a short wait.

        A server that is just dying gets 2 s to end. Returns an empty string if the server goes on, ``not started`` without a server.
        """
        if self._server is None:
            return "not started"
        if self._server.wait(max(0.0, min(_EXIT_S, self.left_s()))):
            self._account_for_end()
        return self._server.ended

    def log_tail(self) -> tuple[str, ...]:
        """Return the last lines of the running or last server's log."""
        return self._server.log_tail() if self._server else self._last_tail

    def cause(self) -> str:
        """Return the first exception or abort message in the server's log.

        The server may have ended. Returns an empty string without either, or without a server.
        """
        return self._server.cause() if self._server else ""

    def counters(self) -> SpecCounters | None:
        """Return the server's speculation counters since its start.

        They are the sum over its ranks, whose own counts are left in ``ranks``. If no endpoint has them, they are read from the server's
        log. Returns None if the server has no counters, or if the capture's time is used up.
        """
        drains, reading = self.recipe.dialect.counters_drain, self._read_counters()
        if reading is not None and reading.counters is not None:
            if drains:
                return self._add_drained(reading, reading.counters)
            self.ranks = reading.ranks
            return reading.counters
        if not drains:  # else they are sums of earlier readings, which no later one has again
            self.ranks = {}
        return self._read_counters_from_log() if self.left_s() > 0 else None

    def _add_drained(self, reading: CounterReading, counters_read: SpecCounters) -> SpecCounters:
        """Add a reading that has reset the server's counters to the earlier ones.

        Callers can then subtract an earlier value as from any other counter. Preemptions are reset by the same reading, so that they are
        added up too. Returns the sum of the speculation counters, of which the reading has ``counters_read``.
        """
        self.ranks = {name: self.ranks[name] + rank if name in self.ranks else rank for name, rank in reading.ranks.items()}
        if reading.traffic.preemptions is not None:
            self._drained_preemptions = (self._drained_preemptions or 0) + reading.traffic.preemptions
        total = counters_read if self._drained_counters is None else self._drained_counters + counters_read
        self._drained_counters = total
        return total

    def _read_counters(self) -> CounterReading | None:
        """Return a reading of all addresses that count, if there is one.

        Returns None if the engine has no counters, if one of the addresses does not answer, or if the capture's time is used up.
        """
        left_s = self.left_s()
        return counters.read(self.recipe.setup, self.recipe.dialect, seconds=min(SECONDS, left_s)) if left_s > 0 else None

    def _read_counters_from_log(self) -> SpecCounters | None:
        """Return the speculation counters in the server's log.

        They lack the steps since the log's last line on them, so that ``counters_lag`` is set. Returns None if the
        log has none.
        """
        logged = None if self._server is None else self.recipe.dialect.logged(self._server.output_text())
        self.counters_lag = self.counters_lag or logged is not None
        return logged

    def preemptions(self) -> int | None:
        """Return the server's number of preemptions.

        These are requests put off because the cache is full. If every reading resets the count, :meth:`counters` adds
        the readings up. Returns None if the server does not count preemptions.
        """
        if self.recipe.dialect.counters_drain:
            self.counters()
            return self._drained_preemptions
        reading = counters.read(self.recipe.setup, self.recipe.dialect, seconds=SECONDS)
        return None if reading is None else reading.traffic.preemptions

    def traffic(self) -> Traffic | None:
        """Return None: only an attached server has other clients."""
        return None

    def peer_traffic(self) -> Traffic | None:
        """Return None: only an attached server has a peer."""
        return None

    def check_identity(self) -> None:
        """Raise BootError if a foreign process answers on the server's port."""
        server = self._server
        if isinstance(server, ServerProcess) and server.exit_code is None:
            check_port(server, self.recipe.setup.port)
        elif isinstance(server, ServerStack):
            server.check_ports()

    def terminate(self) -> None:
        """End a dead or hung server, or one to be replaced.

        It gets 2 s at most to stop, since it may not react any more.
        """
        self.stop(min(self.recipe.stop_s, _EXIT_S))

    def renew(self) -> None:
        """Replace a server that has had events by a fresh one.

        This does not count among the restarts after a death. A server without events stays as it is. Raises BootError if the fresh server
        does not come up.
        """
        if not self.event_gate.had_events:
            return
        self.terminate()
        try:
            self._start()
        except BaseException:
            self.stop(0.0)
            raise

    @property
    def may_replay(self) -> bool:
        """True if failed requests may be sent to the server again."""
        return True

    @property
    def may_restart(self) -> bool:
        """True if a fresh server may be started in its place."""
        return self.restarts < RESTARTS and self._failed_starts < _FAILED_STARTS and self.left_s() > 0

    def ensure_running(self) -> bool:
        """Return True if a server runs, restarting a dead one.

        Returns False if no restart or no time is left, or if the fresh server does not come up.
        """
        if self.running:
            return True
        self.stop(0.0)
        if not self.may_restart:
            return False
        self.restarts += 1
        try:
            self._start()
        except (BootError, DeadlineError):
            self.stop(0.0)
            self._failed_starts += 1
            return False
        except BaseException:
            self.stop(0.0)
            raise
        self._failed_starts = 0
        return True

    def stop(self, stop_s: float) -> None:
        """End the server, if there is one, and close its client.

        The server gets ``stop_s`` seconds before it is killed; with 0 it is killed at once. The last lines of its log are stored for
        :meth:`log_tail`. The client's wall time, from readiness to the last answer, and its busy time, with a request in flight, are added
        to those of earlier servers.
        """
        server, client = self._server, self._client
        self._client = None
        if server is not None:
            self._last_tail = server.log_tail()
            server.stop(stop_s)
            self.recipe.log.with_suffix(".json").unlink(missing_ok=True)  # the note by which a later run ends a server left behind
            self.event_gate.reset()
            self._server = None  # not before: an interrupt in between would leave a server behind
        if client is not None:
            self.wall_s += client.busy.wall_s
            self.busy_s += client.busy.seconds
            with suppress(RuntimeError):  # a request thread may still be reading from a connection that has just been cut
                client.close()

    def _start(self) -> None:
        """Start the server and wait for readiness, with a second start if useful.

        Raises BootError if the server does not become ready.
        """
        was_port_held = ports.is_held(port := self.recipe.setup.port)  # by closing connections of the server before this one
        try:
            self._launch()
        except FirstRequestError:
            # It died of the one-token request that shows readiness. A variant, whose deaths are judged, is started without it from here on:
            # if it stays up, the workloads' requests show its fault, beside the baseline's answers to them.
            if not self.recipe.judged:
                raise
            self._asks_token = False
        except BootError:
            # Maybe it did not get the port: another start helps if that is free by now.
            if not (was_port_held and ports.await_release(port, self._heartbeat, self.left_s())):
                raise
        else:
            return
        self.stop(0.0)
        self._launch()

    def _launch(self) -> None:
        """Start the server, wait for readiness, and record its processes.

        Raises BootError if the server is not ready in the time of its recipe, or in that which the capture has left.
        """
        self._is_end_accounted_for = False  # the end of the server before may have been; this one has not ended
        recipe, server = self.recipe, self._launch_processes()
        ready = wait(
            server,
            recipe.setup,
            recipe.dialect,
            draft_tokens=recipe.draft_tokens,
            boot_s=min(recipe.boot_s, self.left_s()),
            heartbeat=self._heartbeat,
            asks_token=self._asks_token,  # not once it has died of that request
            is_healthy=bool(recipe.processes),  # each process of a stack has shown that it is ready
        )
        self._client, self.version, self.model = ready.client, ready.version, ready.model
        self.note_processes()  # so that a later death can name those that are gone

    def _launch_processes(self) -> ServerProcess | ServerStack:
        """Start the server's process, or all processes of a stack.

        For each a note is left, a file by which a later run ends it if this program is killed. Each process of a stack is started once the
        one before is ready. Their watchdogs end them after ``max_s`` seconds: once the capture's time and the time to stop are over.
        """
        recipe, max_s = self.recipe, self.left_s() + self.recipe.stop_s + _GRACE_S
        if recipe.processes:
            self._server = stack = ServerStack(recipe.processes, recipe.log)
            boot_s = min(recipe.boot_s, self.left_s())
            stack.boot(recipe.setup, recipe.dialect, boot_s=boot_s, max_s=max_s, heartbeat=self._heartbeat)
            return stack
        assert recipe.command is not None, "an attached server is not started"
        with defer_signals():
            self._server = process = ServerProcess(recipe.command, recipe.log, max_s=max_s)
            orphans.note(recipe.log.with_suffix(".json"), process)
        return process
