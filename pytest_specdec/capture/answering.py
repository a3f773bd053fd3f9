"""Answering: one arm's answers to one workload, through deaths and restarts if need be."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.capture import casualties
from pytest_specdec.capture.traffic import Traffic
from pytest_specdec.model.answer import Answer
from pytest_specdec.model.transcript import Ending, SpecCounters, Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_specdec.capture.arm import Arm
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.requests import Sent
    from pytest_specdec.model.transcript import Casualty
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["Answered", "Answering"]

_SETTLE_S = 0.02
"""Between two readings of counters that a server updates behind its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of one pass."""

    request: Request
    pass_index: int

    @property
    def key(self) -> tuple[str, int]:
        """What its answer is kept under."""
        return (self.request.id, self.pass_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A transcript, and why it is not whole, if it is not."""

    transcript: Transcript
    missing: str = ""


class _Lost(Exception):  # noqa: N818 - not an error of ours: the rest of the workload cannot be answered
    """The server is gone for good, or the time is used up."""


class Answering:
    """Sends a workload to an arm, which no other workload uses meanwhile; all passes at once, or one by one."""

    def __init__(
        self,
        arm: Arm,
        workload: Workload,
        *,
        name: str,
        boot: int,
        deadline_s: float,
        reporter: Reporter,
        then: Callable[[Answer], None] | None = None,
    ) -> None:
        """Take what to send where; ``then`` is called with every answer of status 200 as soon as it is there."""
        self._arm = arm
        self._workload = workload
        self._name = name
        self._boot = boot
        self._deadline_s = deadline_s
        self._reporter = reporter
        self._then = then
        self._sent: dict[tuple[str, int], Sent] = {}
        self._unanswered: dict[tuple[str, int], Answer] = {}
        self._casualties: list[Casualty] = []
        self._restarts_before = arm.restarts
        self._before: SpecCounters | None = None
        self._counters: SpecCounters | None = None
        self._started_at = ""
        self._wall_s = 0.0
        self._lost = ""

    def run(self) -> None:
        """Begin, answer all passes and end."""
        self.begin()
        for pass_index in range(self._workload.passes):
            self.answer(pass_index)
        self.end()

    def begin(self) -> None:
        """Warm up, if the workload is timed, and read the counters."""
        self._started_at = datetime.now(UTC).isoformat()
        self._unless_lost(self._begin)

    def answer(self, pass_index: int) -> None:
        """Send one pass, turn by turn."""
        began_s = time.monotonic()
        for turn in self._workload.turns:
            jobs = [Job(request=request, pass_index=pass_index) for request in turn]
            self._unless_lost(partial(self._answer_pass, jobs))
        self._wall_s += time.monotonic() - began_s

    def end(self) -> None:
        """Read the counters again."""
        self._unless_lost(self._count)

    def answered(self) -> Answered:
        """Return the transcript, with an answer of status None for what could not be sent."""
        return Answered(transcript=self._transcript(), missing=self._excused(self._lost))

    def _unless_lost(self, work: Callable[[], None]) -> None:
        if not self._lost:
            try:
                work()
            except _Lost as lost:
                self._lost = str(lost)

    def _begin(self) -> None:
        self._warm_up()
        self._arm.look()
        self._before = self._arm.counters()

    def _count(self) -> None:
        self._counters = self._counted(self._before)

    def _excused(self, missing: str) -> str:
        """Leave a workload that was lost to a request which kills every time: that is a finding, not a gap."""
        return "" if any(casualty.recurred for casualty in self._casualties) and self._reporter.left_s > 0 else missing

    def _warm_up(self) -> None:
        if self._workload.timed:
            self._ensure()
            jobs = [Job(request=request, pass_index=0) for request in self._workload.requests]
            for _ in Traffic(jobs, self._send, self._workload.concurrency):
                self._reporter.update(0, 0)
        self._ensure()

    def _answer_pass(self, jobs: Sequence[Job]) -> None:
        while pending := [job for job in jobs if job.key not in self._sent and job.key not in self._unanswered]:
            self._ensure()
            if suspects := self._send_all(pending):
                self._replay(suspects)

    def _send_all(self, jobs: Sequence[Job]) -> list[tuple[Job, Sent]]:
        """Send ``jobs`` until one fails; return those that failed, in the order of the workload."""
        traffic = Traffic(jobs, self._send, self._workload.concurrency, until=lambda sent: sent.ending is not None)
        suspects = {}
        for job, sent in traffic:
            if sent.ending is None:
                self._keep(job, sent)
            else:
                suspects[job.key] = (job, sent)
            if self._reporter.left_s <= 0:
                traffic.stop()
        return [suspects[job.key] for job in jobs if job.key in suspects]

    def _replay(self, suspects: Sequence[tuple[Job, Sent]]) -> None:
        """Send each suspect alone to a fresh server; what fails again is quarantined."""
        first = {job.key: casualties.describe(self._arm, sent, recurred=False) for job, sent in suspects}
        for job, sent in suspects:
            self._unanswered[job.key] = _without_answer(job, f"in flight when the server failed: {sent.answer.error}")
        self._arm.drop()
        for job, _ in suspects:
            self._ensure()
            again = self._send(job)
            if again.ending is None:
                del self._unanswered[job.key]
                self._keep(job, again)
                self._casualties.append(first[job.key])
                continue
            casualty = casualties.describe(self._arm, again, recurred=True)
            self._casualties.append(casualty)
            text = f"quarantined: alone on a fresh server it failed again: {casualty.process}: {again.answer.error}"
            self._unanswered[job.key] = _without_answer(job, text)
            if casualty.ending is not Ending.ERROR:
                self._arm.drop()

    def _send(self, job: Job) -> Sent:
        workload = self._workload
        sent = self._arm.client.send(
            job.request,
            streamed=workload.stream or workload.timed,
            deadline_s=self._deadline_s,
            pass_index=job.pass_index,
        )
        if sent.ending is not None:
            self._arm.look_again()
        return sent

    def _keep(self, job: Job, sent: Sent) -> None:
        self._sent[job.key] = sent
        self._reporter.update(len(self._sent), sum(kept.tokens for kept in self._sent.values()))
        if self._then is not None and sent.answer.ok:
            self._then(sent.answer)

    def _ensure(self) -> None:
        if self._reporter.left_s > 0 and self._arm.ensure():
            return
        msg = "the time given to the capture is used up"
        if self._reporter.left_s > 0:
            msg = f"the server is gone after {self._arm.restarts} restarts\nlast lines of its log:\n" + "\n".join(self._arm.log_tail())
        raise _Lost(msg)

    def _counted(self, before: SpecCounters | None) -> SpecCounters | None:
        """Return what the server counted for these answers; after a restart, what the answers themselves tell."""
        if self._arm.restarts != self._restarts_before:
            told = [sent.counters for sent in self._sent.values() if sent.answer.ok]
            whole = [counters for counters in told if counters is not None]
            return sum(whole, SpecCounters()) if whole and len(whole) == len(told) else None
        after = self._arm.counters()
        for _ in range(25):
            time.sleep(_SETTLE_S if after else 0)
            later = self._arm.counters() if after else None
            if later == after:
                break
            after = later
        return None if after is None else after - (before or SpecCounters())

    def _transcript(self) -> Transcript:
        jobs = [Job(request=request, pass_index=p) for p in range(self._workload.passes) for request in self._workload.requests]
        return Transcript(
            arm=self._name,
            boot=self._boot,
            workload=self._workload.name,
            digest=self._workload.digest,
            answers=tuple(self._answer(job) for job in jobs),
            counters=self._counters,
            casualties=tuple(self._casualties),
            restarts=self._arm.restarts - self._restarts_before,
            started_at=self._started_at,
            wall_s=round(self._wall_s, 6),
        )

    def _answer(self, job: Job) -> Answer:
        if job.key in self._sent:
            return self._sent[job.key].answer
        return self._unanswered.get(job.key) or _without_answer(job, f"not sent: {self._lost}".strip())


def _without_answer(job: Job, error: str) -> Answer:
    return Answer(request_id=job.request.id, pass_index=job.pass_index, status=None, error=error)
