"""Group replay: requests that a server died, hung or broke on are sent again to a fresh server, alone and together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.transcript import FailureKind, ServerFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.server.server import ArmServer

__all__ = ["Failure"]


_RUNNING = {FailureKind.HUNG, FailureKind.REFUSED}
"""Endings after which the server goes on."""


class Failure:
    """One failure of an arm's server: the requests in flight, and which of them, or which group, fails again."""

    def __init__(self, arm: ArmServer, number: int, failed: Sequence[TimedAnswer]) -> None:
        """Take note of what was in flight, while the server, or what is left of it, still stands; ``number`` counts within a transcript."""
        self._arm = arm
        self._number = number
        ended = self._ended(failed)
        self._requests = {sent.answer.key: self._described(sent, ended, recurred=None) for sent in failed}
        self._group: ServerFailure | None = None

    @property
    def server_failures(self) -> tuple[ServerFailure, ...]:
        """One per request, in their order; a group that failed again comes last."""
        return (*self._requests.values(), *([self._group] if self._group else []))

    @property
    def is_explained(self) -> bool:
        """Whether a request or a group failed again."""
        return any(server_failure.recurred for server_failure in self.server_failures)

    @property
    def is_error_only(self) -> bool:
        """Whether the server answered 5xx to all of them and went on running."""
        return all(server_failure.ending is FailureKind.ERROR for server_failure in self._requests.values())

    def answered(self, sent: TimedAnswer) -> None:
        """Enter that a request was answered alone."""
        self._requests[sent.answer.key] = replace(self._requests[sent.answer.key], recurred=False)

    def recurred(self, sent: TimedAnswer) -> ServerFailure:
        """Enter that a request failed again alone."""
        failure = self._requests[sent.answer.key] = self._described(sent, self._ended([sent]), recurred=True)
        return failure

    def recurred_together(self, sent: TimedAnswer, group: Sequence[str]) -> ServerFailure:
        """Enter that ``group``, smaller than any before it, failed again with all of it in flight; ``sent`` is the first that did."""
        self._group = self._described(sent, self._ended([sent]), recurred=True, group=tuple(group))
        return self._group

    def _ended(self, failed: Sequence[TimedAnswer]) -> str:
        """Return how the server ended; empty where it goes on, or hangs."""
        return self._arm.wait_for_end() if any(sent.ending not in _RUNNING for sent in failed) else ""

    def _described(self, sent: TimedAnswer, ended: str, *, recurred: bool | None, group: tuple[str, ...] = ()) -> ServerFailure:
        arm = self._arm
        own = f"server, {ended}" if ended else f"server still running, {sent.answer.error}"
        return ServerFailure(
            request_id=sent.answer.request_id,
            ending=FailureKind.DIED if ended else sent.ending or FailureKind.ERROR,
            recurred=recurred,
            group=group,
            failure=self._number,
            process="; ".join([*arm.dead_processes, own]),
            cause=arm.cause() if ended else "",
            log_tail=arm.log_tail(),
        )
