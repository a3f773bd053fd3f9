"""A failure of a server: the requests in flight, how it ended, and which of them, or which group, fails again.

After a failure the requests in flight are sent again to a fresh server, alone and then together: one that fails again has recurred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.client import TimedAnswer
from pytest_specdec.model.transcript import FailureKind, ServerFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.model.transcript import Answer
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
    """One failure of an arm's server, and what sending again showed.

    It holds the requests in flight, and which of these, or which group, failed again.
    """

    def __init__(self, server: ArmServer, number: int, failed: Sequence[TimedAnswer]) -> None:
        """Record the requests in flight at the failure, ``failed``.

        The server, or what is left of it, must not be replaced yet: its end and its log are read here. ``number`` is that of the failure
        within a transcript, from 0.
        """
        self._server = server
        self._number = number
        server_end = self._describe_end(failed)
        self._requests = {outcome.answer.key: self._create_server_failure(outcome, server_end, recurred=None) for outcome in failed}
        self._joint_recurrence: ServerFailure | None = None
        """A second failure that needed other requests: those of a group, or one right before; None without one."""

    @property
    def server_failures(self) -> tuple[ServerFailure, ...]:
        """The server failure of each request in flight, in their order.

        If the server failed again in a group of requests, or right after another one, that second failure comes last.
        """
        return (*self._requests.values(), *([self._joint_recurrence] if self._joint_recurrence else []))

    @property
    def is_explained(self) -> bool:
        """True if a request failed again, alone or with others."""
        return any(server_failure.recurred for server_failure in self.server_failures)

    @property
    def is_error_only(self) -> bool:
        """True if the server answered 5xx to all failed requests.

        It then still runs.
        """
        return all(server_failure.ending is FailureKind.ERROR for server_failure in self._requests.values())

    def record_answer(self, outcome: TimedAnswer) -> None:
        """Record an answer to a request sent alone."""
        self._requests[outcome.answer.key] = replace(self._requests[outcome.answer.key], recurred=False)

    def record_recurrence(self, outcome: TimedAnswer) -> ServerFailure:
        """Record and return another failure of a request, sent alone."""
        failure = self._requests[outcome.answer.key] = self._create_server_failure(outcome, self._describe_end([outcome]), recurred=True)
        return failure

    def record_recurrence_together(self, outcome: TimedAnswer, group: Sequence[str]) -> ServerFailure:
        """Record a second failure of ``group``, all in flight together.

        It replaces the larger group recorded before, so that the smallest one remains. ``outcome`` is the first failed answer of the group,
        whose server failure is returned.
        """
        self._joint_recurrence = self._create_server_failure(outcome, self._describe_end([outcome]), recurred=True, group=tuple(group))
        return self._joint_recurrence

    def record_recurrence_after(self, outcome: TimedAnswer, predecessor: str) -> None:
        """Record another failure of a request sent right after ``predecessor``."""
        failure = self._create_server_failure(outcome, self._describe_end([outcome]), recurred=True)
        self._joint_recurrence = replace(failure, after=predecessor)

    def _describe_end(self, failed: Sequence[TimedAnswer]) -> str:
        """Return how the server ended, in words, after a short wait.

        Returns an empty string if the server goes on, or if every request hung or was refused: it then runs still.
        """
        return self._server.wait_for_end() if any(outcome.ending not in _RUNNING for outcome in failed) else ""

    def _create_server_failure(
        self, outcome: TimedAnswer, server_end: str, *, recurred: bool | None, group: tuple[str, ...] = ()
    ) -> ServerFailure:
        """Return the server failure of one request, or of a group.

        ``server_end`` describes the end of the server, empty if it goes on. ``recurred`` tells whether it failed again, None before that
        was tried.
        """
        server = self._server
        main_process = f"server, {server_end}" if server_end else f"server still running, {outcome.answer.error}"
        return ServerFailure(
            request_id=outcome.answer.request_id,
            ending=FailureKind.DIED if server_end else outcome.ending or FailureKind.ERROR,
            recurred=recurred,
            group=group,
            failure=self._number,
            process="; ".join([*server.dead_processes, main_process]),
            cause=server.cause() if server_end else "",
            log_tail=server.log_tail(),
        )


def find_silent_end(server: ArmServer, number: int, answers: Sequence[Answer]) -> ServerFailure | None:
    """Return the end of a server that failed no request.

    Such is the end of a server after its last answer, or of one of its processes to which a router sends nothing any more. It is recorded
    with the last of ``answers``, as failure ``number``. Returns None if the server runs, was ended here, or has answered nothing.
    """
    timed = [(answer.timing.done_s, answer) for answer in answers if answer.timing is not None]
    if not timed or not server.has_ended_silently:
        return None
    _, last = max(timed, key=lambda done_s_and_answer: done_s_and_answer[0])
    # As if that request had failed: this reads the server's end and log. Then it is marked as answered all the same.
    (failure,) = Failure(server, number, [TimedAnswer(answer=last, ending=FailureKind.DIED)]).server_failures
    return replace(failure, answered=True, process=f"{failure.process}, noticed after the last answer")


def terminate_unless_only_errors(server: ArmServer, failed: Sequence[TimedAnswer]) -> None:
    """End the server, unless all failed requests got a 5xx.

    A server that answered 5xx still runs and needs no restart.
    """
    if any(outcome.ending is not FailureKind.ERROR for outcome in failed):
        server.terminate()
