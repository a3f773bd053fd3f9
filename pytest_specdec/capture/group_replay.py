"""Group replay: requests that a server died, hung or broke on are sent again to a fresh server, alone and together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture.failure import terminate_unless_only_errors
from pytest_specdec.capture.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.failure import Failure, Job
    from pytest_specdec.capture.sender import Sender


def replay(sender: Sender, failed: Sequence[tuple[Job, TimedAnswer]], jobs: Sequence[Job]) -> None:
    """Replay failed requests and concurrent ones on a fresh server.

    Nothing is sent if there may be no fresh server; a server that did more than answer 5xx is then ended. A
    calibration is only retried once. Until its replay is answered, each failed request is recorded as unanswered.
    """
    if sender.workload.calibrates:
        _retry_calibration(sender, failed[0][0], [sent for _, sent in failed])
        return
    failure, group = sender.create_failure([sent for _, sent in failed]), _concurrent_jobs(sender, jobs, failed)
    for job, sent in failed:
        sender.set_aside(job, f"in flight when the server failed: {sent.answer.error}")
    try:
        if sender.arm.may_replay and sender.restart():
            GroupReplay(sender=sender, failure=failure).run([job for job, _ in failed], group)
        else:
            terminate_unless_only_errors(sender.arm, [sent for _, sent in failed])
    finally:
        sender.server_failures += failure.server_failures


def _retry_calibration(sender: Sender, first: Job, failed: Sequence[TimedAnswer]) -> None:
    """Send one failed request of a calibration again.

    It goes to a fresh server unless the failure was an error answer alone. If it fails again, or a later one
    does, the calibration is given up.

    No verdict is given on a calibration. Replaying it would use up the restarts and the concurrency of judged
    workloads, which find the fault.
    """
    is_first_failure, failure = not sender.server_failures, sender.create_failure(failed)
    try:
        if is_first_failure and sender.arm.may_replay and (failure.is_error_only or sender.restart()):
            replayed = sender.send(first)
            if replayed.ending is None:
                sender.keep(first, replayed)
                failure.record_answer(replayed)
                return
            failed = [replayed]
        terminate_unless_only_errors(sender.arm, failed)
        for job in sender.jobs(sender.workload.passes):
            if job.key not in sender.sent:
                sender.set_aside(job, f"unanswered, since the server failed in the calibration: {failed[0].answer.error}")
    finally:
        sender.server_failures += failure.server_failures


def _concurrent_jobs(sender: Sender, jobs: Sequence[Job], failed: Sequence[tuple[Job, TimedAnswer]]) -> list[Job]:
    """Return the failed requests and those concurrent with them.

    They are in the order of the workload. If more of them overlap than may be in flight at once, those sent nearest
    in time are taken. A request whose client left counts until the failure: a server notices late that a client left,
    and may die of it only then.
    """
    timings = [sent.answer.timing for _, sent in failed if sent.answer.timing is not None]
    first_s, last_s = min((t.sent_s for t in timings), default=0.0), max((t.done_s for t in timings), default=0.0)
    in_flight = []
    for job in jobs:
        answer = sender.sent[job.key].answer if job.key in sender.sent else None
        timing = answer.timing if answer is not None else None
        if answer is not None and timing is not None and timing.sent_s < last_s and (answer.aborted or timing.done_s > first_s):
            in_flight.append((abs(timing.sent_s - first_s), job))
    free_slots = sender.arm.concurrency(sender.workload.concurrency) - len(failed)
    nearest = sorted(in_flight, key=lambda pair: pair[0])[: max(0, free_slots)]
    group_keys = {job.key for job, _ in failed} | {job.key for _, job in nearest}
    return [job for job in jobs if job.key in group_keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReplay:
    """A replay of what one failure of a server left unanswered."""

    sender: Sender
    failure: Failure

    def run(self, failed: Sequence[Job], group: Sequence[Job]) -> None:
        """Replay the failed requests alone, then their group.

        Each request that failed is sent alone to a fresh server; one that fails again is quarantined. If none
        does, all that was in flight is sent together.
        """
        self._replay_alone(failed)
        if not self.failure.is_explained:
            self._replay_group(group)

    def _replay_alone(self, jobs: Sequence[Job]) -> None:
        """Send each request alone; quarantine those failing again.

        One that fails again explains the failure by itself; it gets no answer.
        """
        for job in jobs:
            self.sender.ensure_running()
            replayed = self.sender.send(job)
            if replayed.ending is None:
                self.sender.keep(job, replayed)
                self.failure.record_answer(replayed)
            elif self.sender.has_failed(job, replayed):
                server_failure = self.failure.record_recurrence(replayed)
                reason = f"quarantined: alone on a fresh server it failed again: {server_failure.process}: {replayed.answer.error}"
                self.sender.set_aside(job, reason)
                terminate_unless_only_errors(self.sender.arm, [replayed])

    def _replay_group(self, group: Sequence[Job]) -> None:
        """Send the group at once; if it fails, limit concurrency.

        It is sent to this server and then to a fresh one. If either fails, a smaller group that still fails is looked
        for. From then on no more requests are sent at a time than the server survives.

        A server that answered 5xx and goes on running gets only the first of the two: the restart is saved for a
        death in the same workload. A group of one request was replayed alone already.
        """
        if len(group) == 1:
            return
        arm, sender = self.sender.arm, self.sender
        if self._fails_together(group) or (not self.failure.is_error_only and sender.restart() and self._fails_together(group)):
            arm.max_in_flight = self._max_survived(group)
            sender.reporter.say(f"{arm.max_in_flight} requests at a time from here on: the server fails with more in flight")

    def _max_survived(self, group: Sequence[Job]) -> int:
        """Return how many concurrent requests the server survives.

        Groups of 2, 4, 8 … are sent, up to one that fails. If no restart is left, the largest size survived so far is
        returned, or 1.

        Growing groups cost only one more death; halving a group that fails might cost one death for each half.
        """
        size = 1
        # The whole group is known to fail, and parts no larger than ``size`` to survive: neither is sent again.
        while 2 * size < len(group) and (self.sender.arm.running or self.sender.restart()):
            parts = [group[at : at + 2 * size] for at in range(0, len(group), 2 * size)]
            if any(self._fails_together(part) for part in parts if len(part) > size):
                break
            size *= 2
        return size

    def _fails_together(self, group: Sequence[Job]) -> bool:
        """Send a group at once; return True if the server fails.

        The failure is recorded with the group's requests.
        """
        self.sender.ensure_running()
        failed = [sent for job, sent in ThreadPool(group, self.sender.send, len(group)) if self.sender.has_failed(job, sent)]
        if failed:
            self.failure.recurred_together(failed[0], [job.request.id for job in group])
            terminate_unless_only_errors(self.sender.arm, failed)
        return bool(failed)
