"""The sender: the requests of a workload sent to one arm, their answers stored, and its server replaced if it fails."""

from __future__ import annotations

import time
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_specdec.capture import refusals
from pytest_specdec.capture.events import EventSender
from pytest_specdec.capture.failure import Failure, Job, describe_silent_end
from pytest_specdec.capture.thread_pool import ThreadPool
from pytest_specdec.capture.timed import sending
from pytest_specdec.capture.timed.sending import TimedRequest
from pytest_specdec.model.transcript import Answer, FailureKind, is_rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.deadlines import Deadline, Deadlines
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.capture.timed.requests import LoadSamples
    from pytest_specdec.model.event import Event, EventOutcome
    from pytest_specdec.model.transcript import ServerFailure
    from pytest_specdec.model.workload import Workload

_RESTARTS = 2
"""Times that one workload may have the server started again: after that its verdict is settled, and others need the arm's restarts."""
_MIN_S = 0.1
"""Seconds that a request sent in the capture's last moment gets."""
_TIME_IS_UP = "the time given to the capture is used up"


class Unavailable(Exception):  # noqa: N818 - not an error of ours: the rest of the workload cannot be answered
    """The server is gone for good, or the time is used up."""


class Sender:
    """Sends requests of one workload, and keeps answers, failures and the reasons for missing answers."""

    def __init__(
        self,
        arm: ArmServer,
        workload: Workload,
        *,
        name: str,
        deadlines: Deadlines,
        reporter: Reporter,
        on_answer: Callable[[Answer], None] | None,
    ) -> None:
        """Take the workload, its arm, and the means to send it.

        ``name`` is the arm's, and ``deadlines`` gives each request its deadline. ``on_answer`` is called with every answer of status 200 as
        soon as it is there.
        """
        self.arm = arm
        self.workload = workload
        self.reporter = reporter
        self.sent: dict[tuple[str, int], TimedAnswer] = {}
        """Answers and refusals, by request and pass."""
        self.unanswered: dict[tuple[str, int], Answer] = {}
        """Stand-ins for missing answers, each with the reason."""
        self.server_failures: list[ServerFailure] = []
        self.denials: dict[str, None] = {}
        """Reasons for every 4xx that was no refusal of its request."""
        self.load: LoadSamples | None = None
        """The client's load; None unless the stamper sent the requests."""
        self._deadlines = deadlines
        self._on_answer = on_answer
        self.event_outcomes: list[EventOutcome] = []
        """What came of the events so far, in their order."""
        self._event: Event | None = None
        """The event that the requests to come have to come after; None before the first, and after one that did not happen."""
        self._events = EventSender(arm=arm, name=name, limit_s=deadlines.limit_s)
        self._cut_off: set[tuple[str, int]] = set()
        """Requests that were cut off by the deadline of the capture, not by their own."""
        self._failures = 0
        """Failures so far, those of which a replay is still under way included."""
        self._restarts_before = arm.restarts
        self._began_dead = 0 if arm.running else 1

    @property
    def restarts(self) -> int:
        """Restarts of the server since the workload began."""
        return self.arm.restarts - self._restarts_before

    def jobs(self, passes: int) -> list[Job]:
        """Return the jobs of all passes, in the order of the workload."""
        return [Job(request=request, pass_index=p) for p in range(passes) for request in self.workload.requests]

    def pending_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs with neither an answer nor a reason for none."""
        return [job for job in jobs if job.key not in self.sent and job.key not in self.unanswered]

    @property
    def ok_answers(self) -> list[TimedAnswer]:
        """The answers of status 200."""
        return [sent for sent in self.sent.values() if sent.answer.ok]

    def answer_to(self, job: Job, *, unsent: str) -> Answer:
        """Return the answer to a request, or a stand-in without one.

        The stand-in has status None and the reason, which is ``unsent`` for a request that was never sent.
        """
        if job.key in self.sent:
            return self.sent[job.key].answer
        return self.unanswered.get(job.key) or _create_missing_answer(job, unsent)

    def send_all(self, jobs: Sequence[Job]) -> Iterable[tuple[Job, TimedAnswer]]:
        """Send ``jobs`` concurrently and return an iterator of their outcomes.

        Each outcome comes with its job, as soon as it is there, or after the last one if the stamper sends. A failure ends the sending
        early, and so does the end of the capture's time.
        """
        return self._send_timed(jobs) if self._is_stamped else self.create_pool(jobs)

    def create_pool(self, jobs: Sequence[Job]) -> ThreadPool[Job, TimedAnswer]:
        """Return the pool of threads sending ``jobs`` until one fails.

        A denial and the end of the capture's time stop it too.
        """
        return ThreadPool(
            jobs,
            self.send,
            self.arm.concurrency(self.workload.concurrency),
            until=lambda sent: sent.ending is not None or bool(sent.denial),
            is_over=lambda: self.reporter.left_s <= 0,
        )

    def keep_unless_failed(self, job: Job, sent: TimedAnswer) -> bool:
        """Record a request's outcome; return False if the server failed it.

        Otherwise the answer is kept, or the request is set aside as cut off by the end of the capture's time. If the server dies under a
        request that its client was meant to leave early, it counts as aborted where other requests may be in flight with it.
        """
        is_concurrent = self.arm.concurrency(self.workload.concurrency) > 1
        if sent.ending is FailureKind.DIED and job.request.abort_after is not None and is_concurrent:
            # Sent again alone, it would leave before the server's end shows: the requests in flight with it show the end.
            sent = replace(sent, ending=None, answer=replace(sent.answer, aborted=True))
        if sent.ending is None:
            self.keep(job, sent)
        elif self.has_failed(job, sent):
            return False
        else:
            self.set_aside(job, "cut off when the time given to the capture was used up")
        return True

    def has_failed(self, job: Job, sent: TimedAnswer) -> bool:
        """Return True if the server itself failed the request.

        Requests cut off by the end of the capture's time have not failed, and none has once that time is used up.
        """
        is_cut_off = sent.ending is FailureKind.HUNG and job.key in self._cut_off
        return sent.ending is not None and not is_cut_off and self.reporter.left_s > 0

    def keep(self, job: Job, sent: TimedAnswer) -> None:
        """Record an answer or a refusal, in place of earlier errors.

        A denied request is recorded as unanswered. A refusal that did not hold when the request was sent again is recorded as a server
        failure besides.
        """
        self.unanswered.pop(job.key, None)
        if sent.denial:
            self.denials[sent.denial] = None
            self.unanswered[job.key] = sent.answer
            return
        if sent.refusal is not None:
            failure = self.create_failure([replace(sent.refusal, ending=FailureKind.REFUSED)])
            failure.record_answer(sent)
            self.server_failures += failure.server_failures
            sent = replace(sent, refusal=None)
        self.sent[job.key] = replace(sent, arrivals=())  # one object per chunk, and nothing reads them later
        self.reporter.update(len(self.sent), sum(answer.tokens for answer in self.sent.values()))
        if self._on_answer is not None and sent.answer.ok:
            self._on_answer(sent.answer)

    def set_aside(self, job: Job, error: str) -> None:
        """Record the reason for a request without an answer."""
        self.unanswered[job.key] = _create_missing_answer(job, error)

    def create_failure(self, failed: Sequence[TimedAnswer]) -> Failure:
        """Return a failure of the server, numbered within this workload."""
        self._failures += 1
        return Failure(self.arm, self._failures - 1, failed)

    def record_silent_end(self) -> None:
        """Record the end of a server that failed no request.

        Once the capture's time is used up it may have been ended for that, and nothing is recorded.
        """
        answers = [sent.answer for sent in self.sent.values()]
        if self.reporter.left_s > 0 and (end := describe_silent_end(self.arm, self._failures, answers)):
            self._failures += 1
            self.server_failures.append(end)

    @property
    def _is_stamped(self) -> bool:
        """True if the stamper sends the requests and takes their times.

        The stamper is a process that does nothing else. It is used for timed workloads, if the server's address allows it.
        """
        return self.workload.timed and sending.is_possible(self.arm.client.url)

    def _send_timed(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, TimedAnswer]]:
        """Send ``jobs`` by the stamper until one fails, then yield the outcomes.

        The stamper sends each request only once; one refused with a 429 is sent again by the ordinary client. Nothing is yielded for
        requests that are still to be sent: those that were not tried, those that failed after the first failure, and those rejected when
        the capture's time is up or the server failed. What the rejected ones would get when sent again is not known, and a dead server
        would fail them too.
        """
        deadlines = [self._deadlines.deadline_of(job.request, job.pass_index, self.arm.slowest_s) for job in jobs]
        timed_requests = [
            TimedRequest(request=job.request, pass_index=job.pass_index, deadline_s=deadline.seconds)
            for job, deadline in zip(jobs, deadlines, strict=True)
        ]
        with self.arm.client.busy.count_request():
            concurrency, until_s = self.arm.concurrency(self.workload.concurrency), time.monotonic() + self.reporter.left_s
            timed_answers, samples = sending.answers(self.arm.client, timed_requests, concurrency=concurrency, until_s=until_s)
        self.load = samples if self.load is None else self.load + samples
        failed = {sent.answer.key for sent in _first_failures([sent for sent in timed_answers if sent is not None])}
        for job, deadline, sent in zip(jobs, deadlines, timed_answers, strict=True):
            if sent is None or (sent.ending is not None and job.key not in failed):
                continue
            if is_rejection(sent.answer.status) and (failed or self.reporter.left_s <= 0):
                continue
            if sent.answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                yield job, self._resend_after_429(job)
            else:
                yield job, self._examine(job, self._note_outcome(job, sent, deadline))

    def _resend_after_429(self, job: Job) -> TimedAnswer:
        """Return the outcome of a request sent again after a 429.

        The client pauses before each further try. The 429 that the stamper got is counted too.
        """
        sent = self.send(job)
        return replace(sent, limited=sent.limited + 1)

    def send(self, job: Job, *, examined: bool = True) -> TimedAnswer:
        """Return the outcome of one request, after waiting for it.

        By default a refusal is ``examined``: the request is sent again, to see whether the refusal holds.
        """
        deadline, streamed = self._deadline(job), job.request.stream
        if streamed is None:  # the request leaves it to the workload
            streamed = self.workload.stream or self.workload.timed or self._needs_chunks
        sent = self.arm.client.send(job.request, streamed=streamed, deadline_s=deadline.seconds, pass_index=job.pass_index)
        sent = self._note_outcome(job, sent, deadline)
        return self._examine(job, sent) if examined else sent

    def _examine(self, job: Job, sent: TimedAnswer) -> TimedAnswer:
        return refusals.examine(self.arm, job.request, sent, lambda: self.send(job, examined=False))

    def _deadline(self, job: Job) -> Deadline:
        """Return the request's deadline, at most the capture's time left.

        A request with less time than its own deadline is noted: if it hangs, the server has not failed it.
        """
        left_s = max(self.reporter.left_s, _MIN_S)
        deadline = self._deadlines.deadline_of(job.request, job.pass_index, self.arm.slowest_s)
        if left_s < deadline.seconds:
            self._cut_off.add(job.key)
        return replace(deadline, seconds=min(deadline.seconds, left_s))

    def _note_outcome(self, job: Job, sent: TimedAnswer, deadline: Deadline) -> TimedAnswer:
        """Return the outcome, with its deadline's reason if it hung.

        The time of an answer shows how long others may take, and is noted for their deadlines. After a failure the server's dead
        processes are noted.
        """
        if sent.ending is not None:
            self.arm.note_dead_processes()
        elif sent.answer.ok and sent.answer.timing is not None:
            self.arm.slowest_s = max(self.arm.slowest_s, sent.answer.timing.latency_s)
            self._deadlines.learn(job.request, sent.answer)
        return _add_deadline_reason(sent, deadline.reason) if sent.ending is FailureKind.HUNG else sent

    @property
    def _needs_chunks(self) -> bool:
        """True if only chunks show the drafts of these answers."""
        return self.arm.recipe.dialect.counters_late

    @property
    def _may_restart(self) -> bool:
        """True if this workload may have a fresh server once more.

        A server left dead by an earlier workload does not count against this one.
        """
        return self.arm.may_restart and self.restarts < _RESTARTS + self._began_dead

    def send_event(self, event: Event) -> None:
        """Do one event to the server and record what came of it.

        One that fails is tried once more on a fresh server, to see whether it fails again; what comes later is then for another server,
        since nothing is known of the state of this one. Raises Unavailable if there is no server for it; a first failure is recorded all
        the same.
        """
        self._event = None
        self.ensure_running()
        outcome = self._do_event(event)
        self.event_outcomes.append(outcome)
        if outcome.ending is not None and self.reporter.left_s > 0 and self.arm.may_replay and self.restart():
            again = self._do_event(event)
            steps, seconds = (*outcome.steps, "on a fresh server", *again.steps), outcome.seconds + again.seconds
            outcome = replace(again, steps=steps, seconds=seconds, recurred=again.ending is not None)
            self.event_outcomes[-1] = outcome
        if outcome.ending is not None:
            self.arm.terminate()
        self._event = event if outcome.is_done else None

    def _do_event(self, event: Event) -> EventOutcome:
        """Return what came of ``event``; raise Unavailable if the capture's time ran out, which is no failure of the server."""
        outcome = self._events.send(event)
        if outcome.ending is FailureKind.HUNG and self.reporter.left_s <= 0:
            raise Unavailable(_TIME_IS_UP)
        return outcome

    def _repeat_event(self, event: Event) -> None:
        """Do ``event`` to a fresh server; raise Unavailable if it is refused or fails, since its requests would test something else."""
        outcome = self._do_event(event)
        if not outcome.is_done:
            self.arm.terminate()
            msg = f"the event {event.name} was not done again to a fresh server: {outcome}"
            raise Unavailable(msg)

    def restart(self) -> bool:
        """Replace the server by a fresh one and return True.

        Returns False, and leaves the server as it is, if no restart is left. Raises Unavailable if the fresh server does not come up.
        """
        if not self._may_restart:
            return False
        self.arm.terminate()
        self.ensure_running()
        return True

    def ensure_running(self) -> None:
        """Start the server if it does not run.

        The last event is done to a fresh server too, as the requests to come are to find it. Raises Unavailable if the server denies all
        access, if no restart or no time is left, if the fresh server does not come up, or if the event is not done to it.
        """
        if self.arm.lost:
            raise Unavailable(self.arm.lost)
        if not self.arm.running:
            self.record_silent_end()
        restarts = self.arm.restarts
        if self.reporter.left_s > 0 and (self.arm.running or self._may_restart) and self.arm.ensure_running():
            if self.arm.restarts > restarts and self._event is not None:
                self._repeat_event(self._event)
            return
        msg = _TIME_IS_UP
        if self.reporter.left_s > 0:
            msg = f"the server died and has no restart left: {self.arm.restarts} used, {self.restarts} of them by this workload\n"
            msg += "last lines of its log:\n"
            msg += "\n".join(self.arm.log_tail())
        raise Unavailable(msg)


def _add_deadline_reason(sent: TimedAnswer, reason: str) -> TimedAnswer:
    """Return a hung request's answer with the reason for its deadline."""
    return replace(sent, answer=replace(sent.answer, error=f"{sent.answer.error} ({reason})")) if reason else sent


def _first_failures(stamped: Sequence[TimedAnswer]) -> list[TimedAnswer]:
    """Return the first failure and those in flight with it; empty without any.

    A request that could not be sent was not in flight. If none that failed was sent, the first of them shows the end of the server. A
    later failure with a status counts as well: its server went on, and it failed by itself.
    """
    failed = [(sent.answer.timing, sent) for sent in stamped if sent.ending is not None and sent.answer.timing is not None]
    failed.sort(key=lambda pair: (pair[1].unsent, pair[0].done_s))
    return [
        sent
        for timing, sent in failed
        if sent is failed[0][1] or sent.answer.status is not None or (not sent.unsent and timing.sent_s < failed[0][0].done_s)
    ]


def _create_missing_answer(job: Job, error: str) -> Answer:
    return Answer(request_id=job.request.id, pass_index=job.pass_index, status=None, error=error)
