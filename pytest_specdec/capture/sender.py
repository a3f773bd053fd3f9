"""The sender: the requests of a workload sent to one arm, their answers stored, and its server replaced if it fails.

A job is one request in one pass over the workload, and its outcome the answer with how it ended: ``ending`` if the server failed it,
``denial`` if a 4xx was about a key or a quota. Events, such as a sleep, are done to the server between requests.
"""

from __future__ import annotations

import time
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_specdec.capture import refusals
from pytest_specdec.capture.events import EventSender
from pytest_specdec.capture.failure import Failure, Job, find_silent_end
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
    from pytest_specdec.model.timing import Timing
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
    """Sends one workload's requests, and keeps their answers and failures."""

    def __init__(
        self,
        server: ArmServer,
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
        self.server = server
        self.workload = workload
        self.reporter = reporter
        self.outcomes: dict[tuple[str, int], TimedAnswer] = {}
        """Answers and refusals that count, by request and pass; no failures and denials."""
        self.unanswered: dict[tuple[str, int], Answer] = {}
        """Stand-ins for missing answers, each with the reason."""
        self.server_failures: list[ServerFailure] = []
        self.denials: dict[str, None] = {}
        """Reasons for every 4xx that was no refusal of its request."""
        self.cut_off = ""
        """Why requests were cut off by the end of the capture's time; empty if none was."""
        self.load: LoadSamples | None = None
        """The client's load; None unless a process of its own, the stamper, sent the requests and took their times."""
        self._deadlines = deadlines
        self._on_answer = on_answer
        self.event_outcomes: list[EventOutcome] = []
        """What came of the events so far, in their order."""
        self._event: Event | None = None
        """The latest event, done to a fresh server too before its requests; None before the first, and after one that was not done."""
        self._events = EventSender(server=server, name=name, limit_s=deadlines.limit_s)
        self._shortened: set[tuple[str, int]] = set()
        """Requests with less time than their own deadline, since the capture was about to end."""
        self._failures = 0
        """Failures so far, those of which a replay is still under way included."""
        self._restarts_before = server.restarts
        """Restarts of the server by earlier workloads."""
        self._uncounted_restarts = 0 if server.running else 1
        """1 if an earlier workload left the server dead: its restart does not count against this workload."""

    @property
    def restarts(self) -> int:
        """Restarts of the server since the workload began."""
        return self.server.restarts - self._restarts_before

    def jobs(self, passes: int) -> list[Job]:
        """Return the jobs of all passes, in the order of the workload."""
        return [Job(request=request, pass_index=p) for p in range(passes) for request in self.workload.requests]

    def pending_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs with neither an answer nor a reason for none."""
        return [job for job in jobs if job.key not in self.outcomes and job.key not in self.unanswered]

    @property
    def ok_answers(self) -> list[TimedAnswer]:
        """The answers of status 200."""
        return [outcome for outcome in self.outcomes.values() if outcome.answer.ok]

    def answer_to(self, job: Job, *, unsent: str) -> Answer:
        """Return the answer to a request, or a stand-in without one.

        The stand-in has status None and the reason, which is ``unsent`` for a request that was never sent.
        """
        if job.key in self.outcomes:
            return self.outcomes[job.key].answer
        return self.unanswered.get(job.key) or _create_missing_answer(job, unsent)

    def send_all(self, jobs: Sequence[Job]) -> Iterable[tuple[Job, TimedAnswer]]:
        """Send ``jobs`` concurrently and return an iterator of their outcomes.

        Each outcome comes with its job, as soon as it is there. A timed workload is sent by the stamper, a process that takes the times,
        and its outcomes come after the last one. A failure ends the sending early, and so does the end of the capture's time.
        """
        return self._send_timed(jobs) if self._is_stamped else self.create_pool(jobs)

    def create_pool(self, jobs: Sequence[Job]) -> ThreadPool[Job, TimedAnswer]:
        """Return the pool of threads sending ``jobs`` until one fails.

        A denial and the end of the capture's time stop it too.
        """
        return ThreadPool(
            jobs,
            self.send,
            self.server.concurrency(self.workload.concurrency),
            until=lambda outcome: outcome.ending is not None or bool(outcome.denial),
            is_over=lambda: self.reporter.left_s <= 0,
        )

    def keep_unless_failed(self, job: Job, outcome: TimedAnswer) -> bool:
        """Record a request's outcome; return False if the server failed it.

        A failure is left to the caller, who sends the request again alone. Anything else is recorded here.
        """
        is_concurrent = self.server.concurrency(self.workload.concurrency) > 1
        if outcome.ending is FailureKind.DIED and job.request.abort_after is not None and is_concurrent:
            # Its client was to leave early: sent again alone, it would leave before a death shows. It counts as aborted here, and the
            # requests in flight with it show the death.
            outcome = replace(outcome, ending=None, answer=replace(outcome.answer, aborted=True))
        if outcome.ending is None:
            self.keep(job, outcome)
            return True
        if self.has_failed(job, outcome):
            return False
        # An ending that is no failure of the server's: the capture's time was used up, which cut the request off.
        self.cut_off = "cut off when the time given to the capture was used up"
        self.set_aside(job, self.cut_off)
        return True

    def has_failed(self, job: Job, outcome: TimedAnswer) -> bool:
        """Return True if the server itself failed the request.

        A request that hung has not failed if the end of the capture shortened its deadline. None has failed once the time is over: servers
        are killed then.
        """
        is_cut_off = outcome.ending is FailureKind.HUNG and job.key in self._shortened
        return outcome.ending is not None and not is_cut_off and self.reporter.left_s > 0

    def keep(self, job: Job, outcome: TimedAnswer) -> None:
        """Record an answer or a refusal, in place of earlier errors.

        A denied request is recorded as unanswered. An answer that came after the same request was refused (``refusal``) is recorded as it
        is, and the refusal as a server failure. Progress is reported, and ``on_answer`` called with an answer of status 200.
        """
        self.unanswered.pop(job.key, None)
        if outcome.denial:
            self.denials[outcome.denial] = None
            self.unanswered[job.key] = outcome.answer
            return
        if outcome.refusal is not None:
            failure = self.create_failure([replace(outcome.refusal, ending=FailureKind.REFUSED)])
            failure.record_answer(outcome)
            self.server_failures += failure.server_failures
            outcome = replace(outcome, refusal=None)
        self.outcomes[job.key] = replace(outcome, arrivals=())  # one object per chunk, and nothing reads them later
        self.reporter.update(len(self.outcomes), sum(answer.tokens for answer in self.outcomes.values()))
        if self._on_answer is not None and outcome.answer.ok:
            self._on_answer(outcome.answer)

    def set_aside(self, job: Job, error: str) -> None:
        """Record the reason for a request without an answer."""
        self.unanswered[job.key] = _create_missing_answer(job, error)

    def create_failure(self, failed: Sequence[TimedAnswer]) -> Failure:
        """Return a failure of the server, numbered within this workload."""
        self._failures += 1
        return Failure(self.server, self._failures - 1, failed)

    def record_silent_end(self) -> None:
        """Record the end of a server that died without failing a request.

        Nothing is recorded if the server runs, or once the capture's time is used up, when it may have been ended for that.
        """
        answers = [outcome.answer for outcome in self.outcomes.values()]
        if self.reporter.left_s > 0 and (end := find_silent_end(self.server, self._failures, answers)):
            self._failures += 1
            self.server_failures.append(end)

    @property
    def _is_stamped(self) -> bool:
        """True if the stamper sends the requests and takes their times.

        The stamper is a process that does nothing else. It is used for timed workloads, if the server's address allows it.
        """
        return self.workload.timed and sending.is_possible(self.server.client.url)

    def _send_timed(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, TimedAnswer]]:
        """Send ``jobs`` by the stamper until one fails, then yield the outcomes.

        The stamper, a process that takes the times, sends each request only once; one refused with a 429 is sent again by the ordinary
        client. Requests that nothing is yielded for stay pending.
        """
        deadlines = [self._deadlines.deadline_of(job.request, job.pass_index, self.server.slowest_s) for job in jobs]
        timed_requests = [
            TimedRequest(request=job.request, pass_index=job.pass_index, deadline_s=deadline.seconds)
            for job, deadline in zip(jobs, deadlines, strict=True)
        ]
        with self.server.client.busy.count_request():
            concurrency, until_s = self.server.concurrency(self.workload.concurrency), time.monotonic() + self.reporter.left_s
            timed_answers, samples = sending.answers(self.server.client, timed_requests, concurrency=concurrency, until_s=until_s)
        self.load = samples if self.load is None else self.load + samples
        first_failed = {outcome.answer.key for outcome in _first_failures([outcome for outcome in timed_answers if outcome is not None])}
        for job, deadline, outcome in zip(jobs, deadlines, timed_answers, strict=True):
            if outcome is None:
                continue  # not tried: a request before it failed, or the time was up
            if outcome.ending is not None and job.key not in first_failed:
                continue  # it failed because the server was dead already
            if is_rejection(outcome.answer.status) and (first_failed or self.reporter.left_s <= 0):
                continue  # a 4xx only counts if it recurs, and there is no server or no time to see that
            if outcome.answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                yield job, self._resend_after_429(job)
            else:
                yield job, self._examine(job, self._note_outcome(job, outcome, deadline))

    def _resend_after_429(self, job: Job) -> TimedAnswer:
        """Send a request again after a 429, and return its outcome.

        The stamper, the process that sends timed requests, got that 429 and never repeats a request. The ordinary client, used here, pauses
        and repeats after further ones; ``limited`` is the number of all.
        """
        outcome = self.send(job)
        return replace(outcome, limited=outcome.limited + 1)  # the stamper's own

    def send(self, job: Job, *, examined: bool = True) -> TimedAnswer:
        """Return the outcome of one request, after waiting for it.

        It is streamed if the request says so. If the request leaves it open, it is streamed if the workload is, if the workload is timed,
        or if only chunks show the drafts. A refusal is ``examined`` by default: the request is sent again to confirm it.
        """
        deadline, streamed = self._deadline(job), job.request.stream
        if streamed is None:
            streamed = self.workload.stream or self.workload.timed or self._shows_drafts_in_chunks
        outcome = self.server.client.send(job.request, streamed=streamed, deadline_s=deadline.seconds, pass_index=job.pass_index)
        outcome = self._note_outcome(job, outcome, deadline)
        return self._examine(job, outcome) if examined else outcome

    def _examine(self, job: Job, outcome: TimedAnswer) -> TimedAnswer:
        """Return what counts as the outcome, after a second look at refusals."""
        return refusals.examine(self.server, job.request, outcome, lambda: self.send(job, examined=False))

    def _deadline(self, job: Job) -> Deadline:
        """Return the request's deadline, at most the capture's time left.

        A request with less time than its own deadline is noted: if it hangs, the server has not failed it.
        """
        left_s = max(self.reporter.left_s, _MIN_S)
        deadline = self._deadlines.deadline_of(job.request, job.pass_index, self.server.slowest_s)
        if left_s < deadline.seconds:
            self._shortened.add(job.key)
        return replace(deadline, seconds=min(deadline.seconds, left_s))

    def _note_outcome(self, job: Job, outcome: TimedAnswer, deadline: Deadline) -> TimedAnswer:
        """Return the outcome, with its deadline's reason if it hung.

        An answer's time is noted for the deadlines of the next ones. After a failure the server's dead processes are noted.
        """
        if outcome.ending is not None:
            self.server.note_dead_processes()
        elif outcome.answer.ok and outcome.answer.timing is not None:
            self.server.slowest_s = max(self.server.slowest_s, outcome.answer.timing.latency_s)
            self._deadlines.learn(job.request, outcome.answer)
        return _add_deadline_reason(outcome, deadline.reason) if outcome.ending is FailureKind.HUNG else outcome

    @property
    def _shows_drafts_in_chunks(self) -> bool:
        """True if drafts are counted by the chunks of streamed answers.

        The server's own counters may come after the answers that they count, so that their growth is no measure of these.
        """
        return self.server.recipe.dialect.counters_late

    @property
    def _may_restart(self) -> bool:
        """True if this workload may have a fresh server once more.

        A server left dead by an earlier workload does not count against this one.
        """
        return self.server.may_restart and self.restarts < _RESTARTS + self._uncounted_restarts

    def send_event(self, event: Event) -> None:
        """Do one event to the server and record what came of it.

        One that fails is tried once more on a fresh server, if there may be one, to see whether it recurs. A server that it failed on is
        ended, since nothing is known of its state. Raises Unavailable without a server for it; a first failure is recorded all the same.
        """
        self._event = None  # so that a server started here gets this event alone, not the one before it too
        self.ensure_running()
        event_outcome = self._do_event(event)
        self.event_outcomes.append(event_outcome)
        if event_outcome.ending is not None and self.reporter.left_s > 0 and self.server.may_replay and self.restart():
            again = self._do_event(event)
            steps, seconds = (*event_outcome.steps, "on a fresh server", *again.steps), event_outcome.seconds + again.seconds
            event_outcome = replace(again, steps=steps, seconds=seconds, recurred=again.ending is not None)
            self.event_outcomes[-1] = event_outcome
        if event_outcome.ending is not None:
            self.server.terminate()
        self._event = event if event_outcome.is_done else None  # every server started later gets it before its requests

    def _do_event(self, event: Event) -> EventOutcome:
        """Do ``event`` to the running server and return its outcome.

        Raises Unavailable if it hung when the capture's time ran out, which is no failure of the server.
        """
        event_outcome = self._events.send(event)
        if event_outcome.ending is FailureKind.HUNG and self.reporter.left_s <= 0:
            raise Unavailable(_TIME_IS_UP)
        return event_outcome

    def _repeat_event(self, event: Event) -> None:
        """Do ``event``, the latest one, to a fresh server.

        The requests after an event are to find a server that has had it. If it is refused or fails, the server is ended, and Unavailable is
        raised: the requests would test something else.
        """
        event_outcome = self._do_event(event)
        if not event_outcome.is_done:
            self.server.terminate()
            msg = f"the event {event.name} was not done again to a fresh server: {event_outcome}"
            raise Unavailable(msg)

    def restart(self) -> bool:
        """Replace the server by a fresh one and return True.

        Returns False, and leaves the server as it is, if no restart is left. Raises Unavailable if the fresh server does not come up.
        """
        if not self._may_restart:
            return False
        self.server.terminate()
        self.ensure_running()
        return True

    def ensure_running(self) -> None:
        """Start the server if it does not run.

        The end of a server that failed no request is recorded first. The latest event is done to a fresh server too. Raises Unavailable if
        the server denies all access, if no restart or no time is left, if the fresh server does not come up, or if the event is not done to
        it.
        """
        if self.server.lost:
            raise Unavailable(self.server.lost)
        if not self.server.running:
            self.record_silent_end()
        restarts = self.server.restarts
        if self.reporter.left_s > 0 and (self.server.running or self._may_restart) and self.server.ensure_running():
            if self.server.restarts > restarts and self._event is not None:
                self._repeat_event(self._event)
            return
        msg = _TIME_IS_UP
        if self.reporter.left_s > 0:
            msg = f"the server died and has no restart left: {self.server.restarts} used, {self.restarts} of them by this workload\n"
            msg += "last lines of its log:\n"
            msg += "\n".join(self.server.log_tail())
        raise Unavailable(msg)


def _add_deadline_reason(outcome: TimedAnswer, reason: str) -> TimedAnswer:
    """Return a hung request's answer with the reason for its deadline."""
    return replace(outcome, answer=replace(outcome.answer, error=f"{outcome.answer.error} ({reason})")) if reason else outcome


def _first_failures(stamped: Sequence[TimedAnswer]) -> list[TimedAnswer]:
    """Return the first failure and those in flight with it.

    First is the sent request that failed first. Only if none was sent it is the first that got no connection. A later failure with a
    status, a 5xx, is returned as well: the server went on, and failed this one by itself. Returns an empty list without a failure.
    """
    timed_failures = [
        (outcome.answer.timing, outcome) for outcome in stamped if outcome.ending is not None and outcome.answer.timing is not None
    ]
    if not timed_failures:
        return []
    timed_failures.sort(key=lambda pair: (pair[1].unsent, pair[0].done_s))  # sent requests come before unsent ones
    first_timing, first = timed_failures[0]

    def was_in_flight(timing: Timing, outcome: TimedAnswer) -> bool:
        return not outcome.unsent and timing.sent_s < first_timing.done_s

    return [
        outcome
        for timing, outcome in timed_failures
        if outcome is first or was_in_flight(timing, outcome) or outcome.answer.status is not None
    ]


def _create_missing_answer(job: Job, error: str) -> Answer:
    return Answer(request_id=job.request.id, pass_index=job.pass_index, status=None, error=error)
