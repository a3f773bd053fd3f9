"""Group replay: requests that a server died, hung or broke on are sent again to a fresh server, alone and together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.capture.thread_pool import ThreadPool
from pytest_specdec.model.transcript import FailureKind, ServerFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.model.workload import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of one pass."""

    request: Request
    pass_index: int

    @property
    def key(self) -> tuple[str, int]:
        """Key of its answer: request id and pass."""
        return (self.request.id, self.pass_index)


_RUNNING = {FailureKind.HUNG, FailureKind.REFUSED}
"""Endings after which the server goes on."""


class Failure:
    """One failure of an arm's server: the requests in flight, and which of them, or which group, fails again."""

    def __init__(self, arm: ArmServer, number: int, failed: Sequence[TimedAnswer]) -> None:
        """Record the requests in flight at the failure.

        The server, or the rest of it, must still be there. ``number`` counts failures within a transcript.
        """
        self._arm = arm
        self._number = number
        server_end = self._describe_end(failed)
        self._requests = {sent.answer.key: self._describe_failure(sent, server_end, recurred=None) for sent in failed}
        self._group: ServerFailure | None = None

    @property
    def server_failures(self) -> tuple[ServerFailure, ...]:
        """One server failure per request, in their order.

        A group that failed again comes last.
        """
        return (*self._requests.values(), *([self._group] if self._group else []))

    @property
    def is_explained(self) -> bool:
        """True if a request or a group failed again."""
        return any(server_failure.recurred for server_failure in self.server_failures)

    @property
    def is_error_only(self) -> bool:
        """True if the server answered 5xx to all and kept running."""
        return all(server_failure.ending is FailureKind.ERROR for server_failure in self._requests.values())

    def answered(self, sent: TimedAnswer) -> None:
        """Record an answer to a request sent alone."""
        self._requests[sent.answer.key] = replace(self._requests[sent.answer.key], recurred=False)

    def recurred(self, sent: TimedAnswer) -> ServerFailure:
        """Record another failure of a request, sent alone."""
        failure = self._requests[sent.answer.key] = self._describe_failure(sent, self._describe_end([sent]), recurred=True)
        return failure

    def recurred_together(self, sent: TimedAnswer, group: Sequence[str]) -> ServerFailure:
        """Record another failure of ``group``, all of it in flight.

        The group is smaller than any before it. ``sent`` is the first of its requests that failed.
        """
        self._group = self._describe_failure(sent, self._describe_end([sent]), recurred=True, group=tuple(group))
        return self._group

    def _describe_end(self, failed: Sequence[TimedAnswer]) -> str:
        """Return the end of the server in words.

        Empty if it goes on, or hangs.
        """
        return self._arm.wait_for_end() if any(sent.ending not in _RUNNING for sent in failed) else ""

    def _describe_failure(self, sent: TimedAnswer, server_end: str, *, recurred: bool | None, group: tuple[str, ...] = ()) -> ServerFailure:
        """Return the server failure of one request.

        ``server_end`` describes the end of the server, empty if it goes on.
        """
        arm = self._arm
        main_process = f"server, {server_end}" if server_end else f"server still running, {sent.answer.error}"
        return ServerFailure(
            request_id=sent.answer.request_id,
            ending=FailureKind.DIED if server_end else sent.ending or FailureKind.ERROR,
            recurred=recurred,
            group=group,
            failure=self._number,
            process="; ".join([*arm.dead_processes, main_process]),
            cause=arm.cause() if server_end else "",
            log_tail=arm.log_tail(),
        )


class Sender(Protocol):
    """The interface to send a workload, as needed by a replay."""

    def send(self, job: Job) -> TimedAnswer:
        """Send one request."""

    def has_failed(self, job: Job, sent: TimedAnswer) -> bool:
        """Return True if the server failed the request."""

    def keep(self, job: Job, sent: TimedAnswer) -> None:
        """Record an answer in place of the reason for its absence."""

    def set_aside(self, job: Job, error: str) -> None:
        """Record the reason for a missing answer."""

    def restart(self) -> bool:
        """Replace this server by a fresh one.

        Returns False if none is left for that.
        """

    def ensure_running(self) -> None:
        """Start the server if it does not run.

        Raises an error if none is left.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReplay:
    """A replay of what one failure of a server left unanswered."""

    arm: ArmServer
    sender: Sender
    failure: Failure
    say: Callable[[str], None]

    def run(self, failed: Sequence[Job], group: Sequence[Job]) -> None:
        """Replay the failed requests alone, then their group.

        Each request that failed is sent alone to a fresh server; one that fails again is quarantined. If none
        does, all that was in flight is sent together.
        """
        self._replay_alone(failed)
        if not self.failure.is_explained:
            self._replay_group(group)

    def _replay_alone(self, jobs: Sequence[Job]) -> None:
        """Send each request alone; quarantine those failing again."""
        for job in jobs:
            self.sender.ensure_running()
            replayed = self.sender.send(job)
            if replayed.ending is None:
                self.sender.keep(job, replayed)
                self.failure.answered(replayed)
            elif self.sender.has_failed(job, replayed):
                server_failure = self.failure.recurred(replayed)
                reason = f"quarantined: alone on a fresh server it failed again: {server_failure.process}: {replayed.answer.error}"
                self.sender.set_aside(job, reason)
                terminate_unless_sound(self.arm, [replayed])

    def _replay_group(self, group: Sequence[Job]) -> None:
        """Send the group at once; if it fails, limit concurrency.

        It is sent to this server and then to a fresh one. If either fails, a smaller group that still fails
        is looked for. From then on no more requests are sent at a time than the server survives.

        A server that answered 5xx and goes on running gets only the first of the two: the restart is left to
        a death of the same workload.
        """
        if len(group) == 1:
            return
        if self._fails_together(group) or (not self.failure.is_error_only and self.sender.restart() and self._fails_together(group)):
            self.arm.max_in_flight = self._max_survived(group)
            self.say(f"{self.arm.max_in_flight} requests at a time from here on: the server fails with more in flight")

    def _max_survived(self, group: Sequence[Job]) -> int:
        """Return how many concurrent requests the server survives.

        Groups of 2, 4, 8 … are sent, up to one that fails. 1 if no restart is left to see.

        Growing groups cost one more death, where halves of a whole that fails might cost one each.
        """
        size = 1
        while 2 * size < len(group) and (self.arm.running or self.sender.restart()):
            parts = [group[at : at + 2 * size] for at in range(0, len(group), 2 * size)]
            if any(self._fails_together(part) for part in parts if len(part) > size):
                break
            size *= 2
        return size

    def _fails_together(self, group: Sequence[Job]) -> bool:
        """Send a group at once; return True if the server fails."""
        self.sender.ensure_running()
        failed = [sent for job, sent in ThreadPool(group, self.sender.send, len(group)) if self.sender.has_failed(job, sent)]
        if failed:
            self.failure.recurred_together(failed[0], [job.request.id for job in group])
            terminate_unless_sound(self.arm, failed)
        return bool(failed)


def terminate_unless_sound(arm: ArmServer, failed: Sequence[TimedAnswer]) -> None:
    """End the server, unless it only answered 5xx."""
    if any(sent.ending is not FailureKind.ERROR for sent in failed):
        arm.terminate()
