"""The workload runner: one arm's answers to one workload, through deaths and restarts if need be."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, refusals
from pytest_specdec.capture.group_replay import Failure, GroupReplay, Job, terminate_unless_sound
from pytest_specdec.capture.server.traffic import Discrepancy, TrafficAccount
from pytest_specdec.capture.thread_pool import ThreadPool
from pytest_specdec.capture.timed import sending
from pytest_specdec.capture.timed.sending import TimedRequest
from pytest_specdec.model.transcript import Answer, FailureKind, SpecCounters, Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.deadlines import Deadline, Deadlines
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.capture.timed.requests import LoadSamples
    from pytest_specdec.model.transcript import ServerFailure
    from pytest_specdec.model.workload import Request, Route, Workload

_RESTARTS = 2
"""Times that one workload may have the server started again: after that its verdict is settled, and others need the arm's restarts."""
_MIN_S = 0.1
"""Seconds that a request gets which is sent in the capture's last moment."""
_COUNTERS_PAUSE_S = 0.02
"""Between two readings of counters that a server updates after its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """A transcript, and why it is not whole, if it is not."""

    transcript: Transcript
    missing: str = ""


class _Unavailable(Exception):  # noqa: N818 - not an error of ours: the rest of the workload cannot be answered
    """The server is gone for good, or the time is used up."""


class WorkloadRunner:
    """Sends a workload to an arm, which no other workload uses meanwhile; all passes at once, or one by one."""

    def __init__(
        self,
        arm: ArmServer,
        workload: Workload,
        *,
        name: str,
        boot: int,
        deadlines: Deadlines,
        reporter: Reporter,
        digest: str = "",
        room: int = 1,
        on_answer: Callable[[Answer], None] | None = None,
    ) -> None:
        """Take the workload, its arm and the callback ``on_answer``.

        ``on_answer`` is called with every answer of status 200 as soon as it is there. ``digest`` is that of the
        planned workload, where the sent one was completed by a server's report. Token limits are ``room`` times the
        planned ones.
        """
        self._arm = arm
        self._workload = workload.with_room(room)
        self._room = room
        self._passes = workload.passes
        self._digest = digest or workload.digest
        self._name = name
        self._boot = boot
        self._deadlines = deadlines
        self._reporter = reporter
        self._on_answer = on_answer
        self._sent: dict[tuple[str, int], TimedAnswer] = {}
        self._unanswered: dict[tuple[str, int], Answer] = {}
        self._server_failures: list[ServerFailure] = []
        self._denials: dict[str, None] = {}
        """Why requests got a 4xx that refuses none of them."""
        self._cut_off: set[tuple[str, int]] = set()
        """Requests that were cut off by the deadline of the capture, not by their own."""
        self._restarts_before = arm.restarts
        self._began_dead = 0 if arm.running else 1
        self._before: SpecCounters | None = None
        self._counters: SpecCounters | None = None
        self._account = TrafficAccount(arm)
        self._counted_beside = Discrepancy()
        self._preempted: int | None = None
        self._preemptions: int | None = None
        self._load: LoadSamples | None = None
        self._machine_load: float | None = None
        self._started_at = ""
        self._wall_s = 0.0
        self._unavailable = ""

    @property
    def workload(self) -> Workload:
        """The workload as it is sent."""
        return self._workload

    @property
    def passes(self) -> int:
        """Number of passes."""
        return self._passes

    @property
    def _jobs(self) -> list[Job]:
        return [Job(request=request, pass_index=p) for p in range(self._passes) for request in self._workload.requests]

    @property
    def is_available(self) -> bool:
        """True if a server and time are left for the workload."""
        return not self._unavailable

    def extend(self, passes: int) -> None:
        """Raise the number of passes to ``passes`` in all."""
        self._passes = passes
        self._reporter.extend(len(self._workload.requests) * passes)

    def begin(self) -> None:
        """Warm up, if the workload is timed, and read the counters."""
        self._started_at = datetime.now(UTC).isoformat()
        with self._until_unavailable():
            self._warm_up()
            self._arm.note_processes()
            self._before = self._arm.counters()
            self._account.begin()
            self._preempted = self._arm.preemptions() if self._workload.small_cache else None

    @property
    def parts(self) -> tuple[tuple[Request, ...], ...]:
        """Parts of a pass for taking turns with other arms.

        Its requests where they go one by one, else its turns.
        """
        turns = self._workload.turns
        return tuple((request,) for turn in turns for request in turn) if self._workload.concurrency == 1 else turns

    def answer(self, pass_index: int, part: int | None = None) -> None:
        """Send one pass turn by turn, or one of its ``parts``."""
        began_s = time.monotonic()
        with self._until_unavailable():
            for turn in self._workload.turns if part is None else (self.parts[part],):
                jobs = [Job(request=request, pass_index=pass_index) for request in turn]
                while pending := [job for job in jobs if job.key not in self._sent and job.key not in self._unanswered]:
                    self.ensure_running()
                    failed = {}
                    for job, sent in self._send_timed(pending) if self._is_stamped else self._create_pool(pending):
                        if self._record_unless_failed(job, sent):
                            failed[job.key] = sent
                    if failed:
                        self._replay([(job, failed[job.key]) for job in jobs if job.key in failed], jobs)
        self._wall_s += time.monotonic() - began_s
        if self._workload.timed:
            self._machine_load = max(self._machine_load or 0.0, environment.load_per_core())

    def end(self) -> None:
        """Read the counters again."""
        if not self._unavailable:
            self._counters = self._count_drafts(self._before)
            self._counted_beside = self._discrepancy()
            after = self._arm.preemptions() if self._workload.small_cache else None
            self._preemptions = None if after is None else after - self._preempted_before

    @property
    def _preempted_before(self) -> int:
        """Preemptions before the workload; a fresh server's count begins at 0."""
        return 0 if self._arm.restarts != self._restarts_before else self._preempted or 0

    def result(self) -> WorkloadResult:
        """Return the transcript, with the reason if it is not whole.

        Requests that could not be sent have an answer of status None.
        """
        missing = next(iter(self._denials), "") or self._unexcused_reason(self._unavailable)
        return WorkloadResult(transcript=self._transcript(), missing=missing)

    @contextmanager
    def _until_unavailable(self) -> Iterator[None]:
        """End the block when no server is left, and remember why."""
        try:
            yield
        except _Unavailable as error:
            self._unavailable = self._unavailable or str(error)

    def _unexcused_reason(self, reason: str) -> str:
        """Return ``reason`` unless a recurring server failure excuses it.

        A workload lost to a request that kills the server every time is a finding, not a gap: empty then. Nothing is
        excused once the capture's time is used up.
        """
        return "" if any(server_failure.recurred for server_failure in self._server_failures) and self._reporter.left_s > 0 else reason

    def _warm_up(self) -> None:
        """Have a server running, warmed up if the workload is timed.

        Warming up sends all requests once and keeps no answer.
        """
        if self._workload.timed:
            self.ensure_running()
            jobs = [Job(request=request, pass_index=0) for request in self._workload.requests]
            failed = []
            for job, sent in self._create_pool(jobs):
                self._reporter.update(0, 0)
                if self.has_failed(job, sent):
                    failed.append(sent)
            if failed:
                self._server_failures += self._create_failure(failed).server_failures
                terminate_unless_sound(self._arm, failed)
        self.ensure_running()

    def _record_unless_failed(self, job: Job, sent: TimedAnswer) -> bool:
        """Return True if the server failed the request.

        Otherwise the answer is kept, or the request set aside as cut off by the end of the capture's time.
        """
        if sent.ending is FailureKind.DIED and job.request.abort_after is not None:
            # Alone again it would leave before the server's end shows: those beside it tell, and what was in flight is replayed together.
            sent = replace(sent, ending=None, answer=replace(sent.answer, aborted=True))
        if sent.ending is None:
            self.keep(job, sent)
            return False
        if self.has_failed(job, sent):
            return True
        self._unanswered[job.key] = _create_missing_answer(job, "cut off when the time given to the capture was used up")
        return False

    def _create_pool(self, jobs: Sequence[Job]) -> ThreadPool[Job, TimedAnswer]:
        """Return the pool sending ``jobs`` until one fails.

        A denial and the end of the time stop it too.
        """
        return ThreadPool(
            jobs,
            self.send,
            self._arm.concurrency(self._workload.concurrency),
            until=lambda sent: sent.ending is not None or bool(sent.denial),
            is_over=lambda: self._reporter.left_s <= 0,
        )

    def _concurrent_jobs(self, jobs: Sequence[Job], failed: Sequence[tuple[Job, TimedAnswer]]) -> list[Job]:
        """Return the failed requests and those concurrent with them.

        In the order of the workload. Of more than may be in flight, those sent nearest in time.
        """
        timings = [sent.answer.timing for _, sent in failed if sent.answer.timing is not None]
        first_s, last_s = min((t.sent_s for t in timings), default=0.0), max((t.done_s for t in timings), default=0.0)
        in_flight = []
        for job in jobs:
            timing = self._sent[job.key].answer.timing if job.key in self._sent else None
            if timing is not None and timing.sent_s < last_s and timing.done_s > first_s:
                in_flight.append((abs(timing.sent_s - first_s), job))
        free_slots = self._arm.concurrency(self._workload.concurrency) - len(failed)
        nearest = sorted(in_flight, key=lambda pair: pair[0])[: max(0, free_slots)]
        group_keys = {job.key for job, _ in failed} | {job.key for _, job in nearest}
        return [job for job in jobs if job.key in group_keys]

    def _replay(self, failed: Sequence[tuple[Job, TimedAnswer]], jobs: Sequence[Job]) -> None:
        """Replay failed requests and concurrent ones on a fresh server.

        Only where there may be a fresh server. A calibration is retried instead.
        """
        if self._workload.calibrates:
            self._retry_calibration(failed[0][0], [sent for _, sent in failed])
            return
        failure, group = self._create_failure([sent for _, sent in failed]), self._concurrent_jobs(jobs, failed)
        for job, sent in failed:
            self.set_aside(job, f"in flight when the server failed: {sent.answer.error}")
        try:
            if self._arm.may_replay and self.restart():
                GroupReplay(arm=self._arm, sender=self, failure=failure, say=self._reporter.say).run([job for job, _ in failed], group)
            else:
                terminate_unless_sound(self._arm, [sent for _, sent in failed])
        finally:
            self._server_failures += failure.server_failures

    def _retry_calibration(self, first: Job, failed: Sequence[TimedAnswer]) -> None:
        """Send one failed request of a calibration again.

        It goes to a fresh server unless the failure was an error answer alone. If it fails again, or a later one
        does, the calibration is given up.

        No verdict is given on a calibration. Replaying it would use up the restarts and the concurrency of judged
        workloads, which find the fault.
        """
        is_first, failure = not self._server_failures, self._create_failure(failed)
        try:
            if is_first and self._arm.may_replay and (failure.is_error_only or self.restart()):
                failed = [self.send(first)]
                if failed[0].ending is None:
                    self.keep(first, failed[0])
                    failure.answered(failed[0])
                    return
            terminate_unless_sound(self._arm, failed)
            for job in self._jobs:
                if job.key not in self._sent:
                    self.set_aside(job, f"unanswered, since the server failed in the calibration: {failed[0].answer.error}")
        finally:
            self._server_failures += failure.server_failures

    def set_aside(self, job: Job, error: str) -> None:
        """Record the reason for a request without an answer."""
        self._unanswered[job.key] = _create_missing_answer(job, error)

    def _create_failure(self, failed: Sequence[TimedAnswer]) -> Failure:
        """Return a failure with the next number of this workload."""
        number = 1 + max((server_failure.failure for server_failure in self._server_failures), default=-1)
        return Failure(self._arm, number, failed)

    def has_failed(self, job: Job, sent: TimedAnswer) -> bool:
        """Return True if the server failed the request.

        A request cut off by the capture's own deadline has not failed.
        """
        is_cut_off = sent.ending is FailureKind.HUNG and job.key in self._cut_off
        return sent.ending is not None and not is_cut_off and self._reporter.left_s > 0

    @property
    def _is_stamped(self) -> bool:
        """True if seconds are judged and the stamper can take them.

        The stamper is a process that does nothing else.
        """
        return self._workload.timed and sending.is_possible(self._arm.client.url)

    def _send_timed(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, TimedAnswer]]:
        """Send all ``jobs``, then yield their answers."""
        deadlines = [self._deadline(job) for job in jobs]
        timed_requests = [
            TimedRequest(request=job.request, pass_index=job.pass_index, deadline_s=deadline.seconds)
            for job, deadline in zip(jobs, deadlines, strict=True)
        ]
        with self._arm.client.busy.in_flight():
            timed_answers, samples = sending.answers(
                self._arm.client, timed_requests, concurrency=self._arm.concurrency(self._workload.concurrency)
            )
        self._load = samples if self._load is None else self._load + samples
        for job, deadline, sent in zip(jobs, deadlines, timed_answers, strict=True):
            is_rate_limited = sent.answer.status == HTTPStatus.TOO_MANY_REQUESTS
            yield job, self._resend_after_429(job) if is_rate_limited else self._examine(job, self._note_outcome(job, sent, deadline))

    def _resend_after_429(self, job: Job) -> TimedAnswer:
        """Send a request again after a 429, with pauses."""
        sent = self.send(job)
        return replace(sent, limited=sent.limited + 1)

    def send(self, job: Job, *, examined: bool = True) -> TimedAnswer:
        """Send one request and note its outcome.

        A refusal is ``examined``, by sending the request again.
        """
        workload, deadline = self._workload, self._deadline(job)
        sent = self._arm.client.send(
            job.request,
            streamed=workload.stream or workload.timed or self._needs_chunks if job.request.stream is None else job.request.stream,
            deadline_s=deadline.seconds,
            pass_index=job.pass_index,
        )
        sent = self._note_outcome(job, sent, deadline)
        return self._examine(job, sent) if examined else sent

    def _examine(self, job: Job, sent: TimedAnswer) -> TimedAnswer:
        return refusals.examine(self._arm, job.request, sent, lambda: self.send(job, examined=False))

    def _deadline(self, job: Job) -> Deadline:
        """Return the request's deadline, at most the capture's time left."""
        left_s = max(self._reporter.left_s, _MIN_S)
        deadline = self._deadlines.of(job.request, job.pass_index, self._arm.slowest_s)
        if left_s < deadline.seconds:
            self._cut_off.add(job.key)
        return replace(deadline, seconds=min(deadline.seconds, left_s))

    def _note_outcome(self, job: Job, sent: TimedAnswer, deadline: Deadline) -> TimedAnswer:
        """Learn from an answer's time, or note a failed server's processes.

        The time of an answer shows how long others may take. A hung request gets the reason for its deadline.
        """
        if sent.ending is not None:
            self._arm.note_dead_processes()
        elif sent.answer.ok and sent.answer.timing is not None:
            self._arm.slowest_s = max(self._arm.slowest_s, sent.answer.timing.latency_s)
            self._deadlines.learn(job.request, sent.answer)
        return _add_deadline_reason(sent, deadline.reason) if sent.ending is FailureKind.HUNG else sent

    def keep(self, job: Job, sent: TimedAnswer) -> None:
        """Record an answer in place of its earlier error.

        A denied request is recorded as unanswered. A refusal that did not hold is recorded as a server failure.
        """
        self._unanswered.pop(job.key, None)
        if sent.denial:
            self._denials[sent.denial] = None
            self._unanswered[job.key] = sent.answer
            return
        if sent.refusal is not None:
            failure = self._create_failure([replace(sent.refusal, ending=FailureKind.REFUSED)])
            failure.answered(sent)
            self._server_failures += failure.server_failures
            sent = replace(sent, refusal=None)
        self._sent[job.key] = replace(sent, arrivals=())  # an object per chunk, which nobody asks for behind this
        self._reporter.update(len(self._sent), sum(answer.tokens for answer in self._sent.values()))
        if self._on_answer is not None and sent.answer.ok:
            self._on_answer(sent.answer)

    @property
    def _may_restart(self) -> bool:
        """True if this workload may have a fresh server.

        A server left dead by an earlier workload does not count against it.
        """
        return self._arm.may_restart and self._arm.restarts - self._restarts_before < _RESTARTS + self._began_dead

    def restart(self) -> bool:
        """Replace the server by a fresh one and return True.

        Returns False, and leaves things as they are, where no restart is left.
        """
        if not self._may_restart:
            return False
        self._arm.terminate()
        self.ensure_running()
        return True

    def ensure_running(self) -> None:
        """Start the server if it does not run.

        Raises _Unavailable where none is left.
        """
        if self._arm.lost:
            raise _Unavailable(self._arm.lost)
        if self._reporter.left_s > 0 and (self._arm.running or self._may_restart) and self._arm.ensure_running():
            return
        msg = "the time given to the capture is used up"
        if self._reporter.left_s > 0:
            restarts, here = self._arm.restarts, self._arm.restarts - self._restarts_before
            msg = f"the server died and has no restart left: {restarts} used, {here} of them by this workload\nlast lines of its log:\n"
            msg += "\n".join(self._arm.log_tail())
        raise _Unavailable(msg)

    def _count_drafts(self, before: SpecCounters | None) -> SpecCounters | None:
        """Return the server's draft counters for these answers.

        After a restart, or where the server's counters are inexact, those that the answers report. None where they
        are incomplete or come too late.
        """
        is_restarted = self._arm.restarts != self._restarts_before
        if is_restarted or not self._arm.recipe.dialect.counters_exact:
            counters = [sent.counters for sent in self._sent.values() if sent.answer.ok]
            reported_counters = [reported for reported in counters if reported is not None]
            is_complete = bool(reported_counters) and len(reported_counters) == len(counters)
            if is_complete or is_restarted:
                return sum(reported_counters, SpecCounters()) if is_complete else None
        after = self._arm.counters()
        for _ in range(25):  # half a second in all
            time.sleep(_COUNTERS_PAUSE_S if after else 0)
            later = self._arm.counters() if after else None
            if later == after:
                break
            after = later
        growth = None if after is None else after - (before or SpecCounters())
        # A log that says nothing new yet is no server that drafts nothing, and what is new in it may be of the requests before these.
        is_late = self._arm.counters_lag and growth is not None and (not growth.drafts or self._has_windows())
        return None if is_late else growth

    @property
    def _needs_chunks(self) -> bool:
        """True if only chunks show the drafts of these answers."""
        return self._arm.recipe.dialect.counters_late

    def _has_windows(self) -> bool:
        """Return True if answers report their verify steps."""
        return any(choice.windows for sent in self._sent.values() if sent.answer.ok for choice in sent.answer.choices)

    def _discrepancy(self) -> Discrepancy:
        """Return the discrepancy in an attached server's counters.

        Other clients, other servers and a restart since the workload began leave it there. Empty after a restart by
        this capture or a server failure.
        """
        if self._arm.restarts != self._restarts_before or self._server_failures:
            return Discrepancy()
        # What it made of an answer that nobody read is not known.
        has_unread_answers = self._unanswered or any(request.abort_after is not None for request in self._workload.requests)
        return self._account.end(None if has_unread_answers else [sent.answer for sent in self._sent.values() if sent.answer.ok])

    def _transcript(self) -> Transcript:
        """Return the transcript of all passes."""
        jobs = self._jobs
        return Transcript(
            arm=self._name,
            boot=self._boot,
            workload=self._workload.name,
            digest=self._digest,
            answers=tuple(self._recorded_answer(job) for job in jobs),
            counters=self._counters,
            server_failures=tuple(self._server_failures),
            restarts=self._arm.restarts - self._restarts_before,
            concurrency=limit if (limit := self._arm.concurrency(self._workload.concurrency)) < self._workload.concurrency else None,
            replaced=self._counted_beside.replaced,
            foreign=self._counted_beside.foreign,
            elsewhere=self._counted_beside.elsewhere,
            uncounted=self._counted_beside.uncounted,
            silent_routes=self._silent_routes(jobs),
            limited=sum(sent.limited for sent in self._sent.values()),
            client=None if self._load is None else self._load.load,
            machine_load=None if self._machine_load is None else round(self._machine_load, 3),
            preemptions=self._preemptions,
            room=self._room,
            started_at=self._started_at,
            wall_s=round(self._wall_s, 6),
        )

    def _silent_routes(self, jobs: Sequence[Job]) -> tuple[Route, ...]:
        """Return the routes found silent, each once."""
        silent = (job.request.route for job in jobs if job.key in self._sent and self._sent[job.key].on_silent_route)
        return tuple(dict.fromkeys(silent))

    def _recorded_answer(self, job: Job) -> Answer:
        """Return the answer to a request, or a missing one."""
        if job.key in self._sent:
            return self._sent[job.key].answer
        return self._unanswered.get(job.key) or _create_missing_answer(job, f"not sent: {self._unavailable}".strip())


def _add_deadline_reason(sent: TimedAnswer, reason: str) -> TimedAnswer:
    """Return a hung request's answer with the reason for its deadline."""
    return replace(sent, answer=replace(sent.answer, error=f"{sent.answer.error} ({reason})")) if reason else sent


def _create_missing_answer(job: Job, error: str) -> Answer:
    return Answer(request_id=job.request.id, pass_index=job.pass_index, status=None, error=error)
