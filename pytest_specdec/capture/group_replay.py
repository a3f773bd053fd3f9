"""Group replay: requests that a server died, hung or broke on, sent again to a fresh one alone, together, and after the one before.

A job is one request of one pass. ``sender`` sends a workload's jobs to one arm's server: ``keep`` stores a job's answer, ``set_aside`` the
reason for having none, and ``restart`` starts a fresh server, if one is left. An ``ending`` says how the server failed a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture.failure import Job, terminate_unless_only_errors
from pytest_specdec.capture.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.failure import Failure
    from pytest_specdec.capture.sender import Sender


def replay(sender: Sender, failed: Sequence[tuple[Job, TimedAnswer]], jobs: Sequence[Job]) -> None:
    """Send the requests of a server failure again.

    Each is sent alone. If none fails again, they are sent together, and then after earlier requests (:class:`GroupReplay`).

    ``failed`` are the requests that the server failed, with their outcomes; ``jobs`` are all requests that were sent with these. They go
    to a fresh server; if there may be none, nothing is sent. Of a calibration, which measures noise and gets no verdict, only the first one
    is sent again. Until its replay is answered, each failed request is recorded as unanswered.
    """
    failed_jobs, outcomes = [job for job, _ in failed], [outcome for _, outcome in failed]
    if sender.workload.calibrates:
        _retry_calibration(sender, failed_jobs[0], outcomes)
        return
    failure = sender.create_failure(outcomes)
    # Read before anything is sent again: what was in flight with the failed requests, and what came right before them.
    group, predecessors = _concurrent_jobs(sender, jobs, failed), _preceding_jobs(sender, outcomes)
    for job, outcome in failed:
        sender.set_aside(job, f"in flight when the server failed: {outcome.answer.error}")
    try:
        if sender.server.may_replay and sender.restart():
            GroupReplay(sender=sender, failure=failure).run(failed_jobs, group, predecessors)
        else:
            terminate_unless_only_errors(sender.server, outcomes)
    finally:
        sender.server_failures += failure.server_failures


def _retry_calibration(sender: Sender, first: Job, failed: Sequence[TimedAnswer]) -> None:
    """Send one failed request of a calibration again, or give up.

    Only the request ``first`` is sent, and only after the calibration's first failure: else the rest of it stays unanswered. No verdict is
    given on a calibration. Replaying every failed request would use up the restarts and lower the concurrency of judged workloads, which
    find the fault as well.
    """
    is_first_failure, failure = not sender.server_failures, sender.create_failure(failed)
    try:
        # A server that only answered 5xx still runs, and is used again.
        if is_first_failure and sender.server.may_replay and (failure.is_error_only or sender.restart()):
            replayed = sender.send(first)
            if replayed.ending is None:
                sender.keep(first, replayed)
                failure.record_answer(replayed)
                return  # the calibration goes on
            failed = [replayed]
        terminate_unless_only_errors(sender.server, failed)
        for job in sender.jobs(sender.workload.passes):
            if job.key not in sender.outcomes:
                sender.set_aside(job, f"unanswered, since the server failed in the calibration: {failed[0].answer.error}")
    finally:
        sender.server_failures += failure.server_failures  # the next failure is then not the first


def _concurrent_jobs(sender: Sender, jobs: Sequence[Job], failed: Sequence[tuple[Job, TimedAnswer]]) -> list[Job]:
    """Return the failed requests and others in flight with them.

    Others count if they were in flight between the first sending and the last end of the failed ones. They are in the order of ``jobs``.
    If more requests overlap than may be in flight at once, those sent nearest in time to the first failed one are taken. A request that its
    client left early counts as in flight until the failure: a server notices late that a client left, and may die of it only then.
    """
    timings = [outcome.answer.timing for _, outcome in failed if outcome.answer.timing is not None]
    first_s, last_s = min((t.sent_s for t in timings), default=0.0), max((t.done_s for t in timings), default=0.0)
    distances_of_others = []  # pairs of seconds and job; a failed request has no entry in sender.outcomes
    for job in jobs:
        answer = sender.outcomes[job.key].answer if job.key in sender.outcomes else None
        timing = answer.timing if answer is not None else None
        if answer is not None and timing is not None and timing.sent_s < last_s and (answer.aborted or timing.done_s > first_s):
            distances_of_others.append((abs(timing.sent_s - first_s), job))
    free_slots = sender.server.concurrency(sender.workload.concurrency) - len(failed)
    nearest = sorted(distances_of_others, key=lambda pair: pair[0])[: max(0, free_slots)]
    group_keys = {job.key for job, _ in failed} | {job.key for _, job in nearest}
    return [job for job in jobs if job.key in group_keys]


def _preceding_jobs(sender: Sender, failed: Sequence[TimedAnswer]) -> list[Job]:
    """Return earlier requests that may have caused the failure.

    They may have left the server in a state to fail: the last one to end before any of ``failed`` was sent, and the last one that its
    client left early by then (``aborted``), if that is another.
    """
    first_s = min((outcome.answer.timing.sent_s for outcome in failed if outcome.answer.timing is not None), default=0.0)
    timed = [(outcome.answer.timing.done_s, outcome.answer) for outcome in sender.outcomes.values() if outcome.answer.timing is not None]
    ended = [answer for done_s, answer in sorted(timed, key=lambda pair: pair[0]) if done_s <= first_s]
    latest = [*ended[-1:], *[answer for answer in ended if answer.aborted][-1:]]
    by_id = sender.workload.by_id
    return [Job(request=by_id[request_id], pass_index=p) for request_id, p in dict.fromkeys(answer.key for answer in latest)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReplay:
    """A replay of what one failure of a server left unanswered."""

    sender: Sender
    failure: Failure

    def run(self, failed: Sequence[Job], group: Sequence[Job], predecessors: Sequence[Job]) -> None:
        """Send the failed requests again alone, then together, then after others.

        A request that fails again alone is quarantined. If none does, ``group`` is sent together, all that was in flight at the failure. If
        that does not fail either, the failed requests are sent right after each of ``predecessors``.
        """
        self._replay_alone(failed)
        if not self.failure.is_explained:
            self._replay_group(group)
        for predecessor in predecessors:
            if not self.failure.is_explained:
                self._replay_after(predecessor, failed)

    def _replay_alone(self, jobs: Sequence[Job]) -> None:
        """Send each request alone, and quarantine the ones failing again.

        A request that fails again explains the server's failure by itself. It is sent no more and gets no answer. One that is cut off by
        the end of the capture's time has an ending but shows nothing (``has_failed`` is False), and stays recorded as unanswered.
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
                terminate_unless_only_errors(self.sender.server, [replayed])

    def _replay_group(self, group: Sequence[Job]) -> None:
        """Send the group at once, and limit concurrency if it fails.

        It is sent to this server, which has answered its requests one by one, and if that answers, to a fresh one. If either fails, the
        arm gets no more requests at a time from then on than its server survives.
        """
        if len(group) == 1:
            return  # it was replayed alone
        server, sender = self.sender.server, self.sender
        fails = self._fails_together(group)
        # After mere 5xx, from a server that goes on, the restart is saved for a death in the same workload.
        if not fails and not self.failure.is_error_only and sender.restart():
            fails = self._fails_together(group)
        if fails:
            server.max_in_flight = self._max_survived(group)
            sender.reporter.say(f"{server.max_in_flight} requests at a time from here on: the server fails with more in flight")

    def _replay_after(self, predecessor: Job, jobs: Sequence[Job]) -> None:
        """Send ``predecessor`` again and, as soon as it ended, ``jobs``.

        The client of ``predecessor`` leaves where it left before. If the server fails ``predecessor`` itself, ``jobs`` are not sent,
        since nothing would show about them. If the client leaves early, they are sent in any case: a server that dies of that shows it
        only to the next request.
        """
        self.sender.ensure_running()
        earlier = self.sender.send(predecessor)
        if predecessor.request.abort_after is None and self.sender.has_failed(predecessor, earlier):
            terminate_unless_only_errors(self.sender.server, [earlier])
            return
        failed = [outcome for job, outcome in ThreadPool(jobs, self.sender.send, len(jobs)) if self.sender.has_failed(job, outcome)]
        if failed:
            self.failure.record_recurrence_after(failed[0], predecessor.request.id)
            terminate_unless_only_errors(self.sender.server, failed)

    def _max_survived(self, group: Sequence[Job]) -> int:
        """Return how many requests at a time the server survives.

        The group is sent in parts of 2, 4, 8 … requests, up to a size at which one fails. If no restart is left, the largest size
        survived so far is returned, at least 1.

        Growing parts cost only one more death; halving the group might cost one for each half.
        """
        size = 1
        # The whole group is known to fail, and parts no larger than ``size`` to survive: neither is sent again.
        while 2 * size < len(group) and (self.sender.server.running or self.sender.restart()):
            parts = [group[at : at + 2 * size] for at in range(0, len(group), 2 * size)]
            if any(self._fails_together(part) for part in parts if len(part) > size):
                break
            size *= 2
        return size

    def _fails_together(self, group: Sequence[Job]) -> bool:
        """Return True if the server fails a group sent at once.

        The failure is then recorded with the group's requests, and a server that did more than answer 5xx is ended.
        """
        self.sender.ensure_running()
        failed = [outcome for job, outcome in ThreadPool(group, self.sender.send, len(group)) if self.sender.has_failed(job, outcome)]
        if failed:
            self.failure.record_recurrence_together(failed[0], [job.request.id for job in group])
            terminate_unless_only_errors(self.sender.server, failed)
        return bool(failed)
