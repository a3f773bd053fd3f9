"""The workload runner: one arm's answers to one workload, through deaths and restarts if need be.

A pass sends all requests of the workload once; a turn is a group of them that may be in flight together. Counters are counts of drafts, by
the server or by an answer. Verify windows are the tokens of each step of an answer. A soak is the same traffic for minutes.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, group_replay
from pytest_specdec.capture.failure import Job, terminate_unless_only_errors
from pytest_specdec.capture.sender import Sender, Unavailable
from pytest_specdec.capture.server.counters import subtract_ranks
from pytest_specdec.capture.server.traffic import Discrepancy, TrafficAccount
from pytest_specdec.capture.soak import Soak, add_ranks
from pytest_specdec.model.pair import CONTROL
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.transcript import Answer, Transcript
from pytest_specdec.stats.answer_timing import ttft_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.capture.deadlines import Deadlines
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.model.event import Event
    from pytest_specdec.model.spec_counters import RankCounters
    from pytest_specdec.model.workload import Request, Route, Workload

_COUNTERS_PAUSE_S = 0.02
"""Seconds between two readings of counters that a server updates after its answers."""

_MOST_READINGS = 25
"""Such readings, half a second in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """A transcript, and why it is not whole, if it is not."""

    transcript: Transcript
    missing: str = ""


class WorkloadRunner:
    """Sends a workload to one arm, pass by pass, or each pass in parts.

    No other workload uses the arm meanwhile.
    """

    def __init__(
        self,
        server: ArmServer,
        workload: Workload,
        *,
        name: str,
        boot: int,
        deadlines: Deadlines,
        reporter: Reporter,
        digest: str = "",
        room: int = 1,
        on_answer: Callable[[Answer], None] | None = None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the workload, its arm and the callbacks.

        ``name`` is the arm's and ``boot`` the boot's index. ``on_answer`` is called with every answer of status 200 as soon as it is
        there, ``on_begin`` before the server is asked anything. ``digest`` is that of the planned workload: prompts may since have been
        filled up to a server's context limit. Token limits are ``room`` times the planned ones.
        """
        self._server = server
        self._workload = workload.with_room(room)
        self._room = room
        self._on_begin = on_begin
        self._passes = workload.passes
        self._digest = digest or workload.digest
        self._name = name
        self._boot = boot
        self._reporter = reporter
        self._sender = Sender(server, self._workload, name=name, deadlines=deadlines, reporter=reporter, on_answer=on_answer)
        self._before: SpecCounters | None = None
        """The server's counters before the workload; ``_counters`` is their growth in its answers."""
        self._counters: SpecCounters | None = None
        self._ranks_before: Mapping[str, RankCounters] = {}
        self._ranks: tuple[RankCounters, ...] = ()
        self._account = TrafficAccount(server)
        self._counter_discrepancy = Discrepancy()
        self._preemptions_at_begin: int | None = None
        self._preemptions: int | None = None
        """Requests that the server put off for want of cache; None if they are not counted."""
        self._restarts_at_begin = 0
        """Restarts before the first reading of counters, as of a server that an earlier workload left dead."""
        self._soak = Soak(self._sender, reporter)
        self._machine_load: float | None = None
        """Most processes per core of this machine after a timed pass; None before."""
        self._new_ttft_s: dict[str, float] = {}
        """Seconds to the first token by request, of prompts new to the server when it was warmed up."""
        self._started_at = ""
        self._wall_s = 0.0
        self._unavailable = ""
        """Why no server or no time is left for the workload; empty if both are."""

    @property
    def workload(self) -> Workload:
        """The workload as it is sent."""
        return self._workload

    @property
    def passes(self) -> int:
        """Number of passes."""
        return self._passes

    @property
    def is_available(self) -> bool:
        """True if a server and time are left for the workload."""
        return not self._unavailable

    def extend(self, passes: int) -> None:
        """Raise the number of passes to ``passes`` in all."""
        self._passes = passes
        self._reporter.extend(len(self._workload.requests) * passes)

    def begin(self) -> None:
        """Warm up if the workload is timed, and read the counters.

        :meth:`end` reads the counters again: their growth belongs to this workload. If no server is left, the rest is skipped without an
        error, and :attr:`is_available` is False from then on.
        """
        self._started_at = datetime.now(UTC).isoformat()
        self._on_begin()
        with self._until_unavailable():
            self._warm_up()
            self._restarts_at_begin = self._sender.restarts
            self._server.note_processes()  # so that a later death can name those that are gone
            self._before, self._ranks_before = self._server.counters(), self._server.ranks
            self._account.begin()  # reads an attached server's token counters, which show its other clients
            # Preemptions, requests put off for want of cache, are what a workload for a small cache is to bring about.
            self._preemptions_at_begin = self._server.preemptions() if self._workload.small_cache else None

    @property
    def parts(self) -> tuple[tuple[Request, ...], ...]:
        """The parts of a pass, to be sent alternately with other arms' parts.

        A part is a single request if the workload sends one at a time, else a group of requests that may be in flight together.
        """
        turns = self._workload.turns
        return tuple((request,) for turn in turns for request in turn) if self._workload.concurrency == 1 else turns

    def _send_soak_after(self, pass_index: int) -> None:
        """Send the workload's soak, if any, after the first pass.

        The control, the baseline's second server, is sent none, since it only shows what is noise. The counters before the workload are
        raised by what the server counted in the soak: the growth since then is that of the answers alone.
        """
        if pass_index or not self._workload.soak_s:
            return
        with self._until_unavailable():
            if self._name != CONTROL:
                self._soak.run()
        if self._before is not None:
            self._before += self._soak.growth
        self._ranks_before = add_ranks(self._ranks_before, self._soak.rank_growth)

    def answer(self, pass_index: int, part: int | None = None) -> None:
        """Send all requests of one pass, or of one part.

        ``part`` is an index in ``parts``, None for a whole pass. A failure of the server ends the sending. The failed requests are replayed
        on a fresh server, and the rest is sent, until each request has an answer or a reason for none. The pass ends early if no server or
        no time is left. The workload's soak follows the first pass.
        """
        began_s = time.monotonic()
        with self._until_unavailable():
            for turn in self._workload.turns if part is None else (self.parts[part],):
                jobs = [Job(request=request, pass_index=pass_index) for request in turn]
                for event in self._events_before(turn):
                    self._sender.send_event(event)
                while pending := self._sender.pending_jobs(jobs):
                    self._sender.ensure_running()
                    failed = {}
                    for job, outcome in self._sender.send_all(pending):
                        if not self._sender.keep_unless_failed(job, outcome):
                            failed[job.key] = outcome
                    if failed:
                        group_replay.replay(self._sender, [(job, failed[job.key]) for job in jobs if job.key in failed], jobs)
        self._wall_s += time.monotonic() - began_s
        if self._workload.timed:
            self._machine_load = max(self._machine_load or 0.0, environment.load_per_core())
        self._send_soak_after(pass_index)

    def _events_before(self, turn: Sequence[Request]) -> list[Event]:
        """Return the events that happen right before the requests of ``turn``."""
        return [event for event in self._workload.events if event.before in {request.id for request in turn}]

    def end(self) -> None:
        """Read the counters again and record their growth.

        A death of the server that failed no request is recorded too, and what the counters of an attached server show beyond the answers,
        such as other clients. Nothing is read if no server was left for the workload.
        """
        if not self._unavailable:
            self._counters = self._count_drafts(self._before)
            self._ranks = self._count_by_rank()
            self._sender.record_silent_end()
            self._counter_discrepancy = self._discrepancy()
            after = self._server.preemptions() if self._workload.small_cache else None
            self._preemptions = None if after is None else after - self._preemptions_before

    @property
    def _is_restarted(self) -> bool:
        """True if the server was restarted since the first reading of counters."""
        return self._sender.restarts > self._restarts_at_begin

    @property
    def _preemptions_before(self) -> int:
        """Preemptions that the server had counted before the workload.

        It is 0 after a restart, since a fresh server counts anew, and if nothing was counted before.
        """
        # Where every reading resets the server's count (it drains), a sum of all readings takes its place, which a restart does not reset.
        is_sum = self._server.recipe.dialect.counters_drain
        if self._is_restarted and not is_sum:
            return 0
        return self._preemptions_at_begin or 0

    def result(self) -> WorkloadResult:
        """Return the transcript of all passes, with the reason for gaps.

        The reason is empty if it is whole. Requests that could not be sent have an answer of status None.
        """
        denial = next(iter(self._sender.denials), "")  # a 4xx about a key or quota: no failure of the server excuses it
        gap = self._unavailable or self._sender.cut_off  # no server or time was left, or the end of the time cut requests off
        return WorkloadResult(transcript=self._transcript(), missing=denial or self._unexcused_reason(gap))

    @contextmanager
    def _until_unavailable(self) -> Iterator[None]:
        """End the block quietly without a server, and note the reason."""
        try:
            yield
        except Unavailable as error:
            self._unavailable = self._unavailable or str(error)

    def _unexcused_reason(self, reason: str) -> str:
        """Return ``reason`` unless a recurring server failure excuses the gap.

        A request or an event that makes the server fail every time is a finding: answers that are missing because of it are no gap in the
        capture, and the reason returned is empty. Nothing is excused once the capture's time is used up.
        """
        failures, events = self._sender.server_failures, self._sender.event_outcomes
        has_recurred = any(failure.recurred for failure in failures) or any(event.recurred for event in events)
        return "" if has_recurred and self._reporter.left_s > 0 else reason

    def _warm_up(self) -> None:
        """Have a server running, warmed up if the workload is timed.

        Warming up sends all requests once. A server failure in it is recorded; a server that did more than answer 5xx is replaced.
        """
        self._sender.ensure_running()
        if not self._workload.timed:
            return
        failed = []
        for job, outcome in self._sender.create_pool(self._sender.jobs(1)):
            self._reporter.update(0, 0)  # shows that the capture goes on; none of these answers is counted
            self._note_ttft_of_new_prompt(outcome.answer)
            if self._sender.has_failed(job, outcome):
                failed.append(outcome)
        if failed:
            self._sender.server_failures += self._sender.create_failure(failed).server_failures
            terminate_unless_only_errors(self._server, failed)
        self._sender.ensure_running()  # again, since it may have died meanwhile

    def _note_ttft_of_new_prompt(self, answer: Answer) -> None:
        """Note the time to the first token of an uncached prompt.

        A prompt counts if less than half of it came from the server's cache. Nothing is noted without a time or usage.
        """
        seconds, usage = ttft_s(answer), answer.usage
        if seconds is not None and usage is not None and 2 * (usage.cached_tokens or 0) < usage.prompt_tokens:
            self._new_ttft_s[answer.request_id] = round(seconds, 6)

    def _count_drafts(self, before: SpecCounters | None) -> SpecCounters | None:
        """Return the draft counters of this workload's answers alone.

        It is the growth of the server's counters since ``before``, a reading. The counts that answers report are used after a restart,
        which sets the server's back, and if the engine's are inexact and every answer reports some. None if nothing is known.
        """
        if self._is_restarted:
            return self._count_drafts_by_answers()
        reported = None if self._server.recipe.dialect.counters_exact else self._sum_reported_counters()
        return self._count_drafts_by_growth(before) if reported is None else reported

    def _count_drafts_by_answers(self) -> SpecCounters | None:
        """Return the counts of all answers; None if one reports none.

        Answers may count steps without a draft among their ``drafts``, as a server's exact counters do not. In place of such a server's
        counters their ``drafts`` are therefore lowered to the least number that fits.
        """
        reported = self._sum_reported_counters()
        if reported is None or self._has_windows():  # windows: each step is reported, so that the counts are right
            return reported
        if not self._server.recipe.dialect.counters_exact:  # then answers' counts are preferred, also without a restart, as they are
            return reported
        return self._count_least_drafts(reported)

    def _count_drafts_by_growth(self, before: SpecCounters | None) -> SpecCounters | None:
        """Return the growth of the server's counters since ``before``.

        Without counters it is estimated from the answers that report their own. Returns None without either, or if counters read from a log
        may not cover exactly these answers.
        """
        after = self._read_settled_counters()  # once they have stopped growing
        if after is None:
            return self._estimate_counters()
        growth = after - (before or SpecCounters())
        if self._server.counters_lag:  # they are those of the log, whose next line may come only after these answers
            if not growth.drafts:
                return None  # no new line yet: that does not show that nothing was drafted
            if self._has_windows():
                return None  # a new line may count earlier requests: None has the drafts judged by the windows, which are exact
        return growth

    def _count_by_rank(self) -> tuple[RankCounters, ...]:
        """Return the growth of each rank's counters.

        Empty after a restart, if the first reading had no ranks (one source of counters), or if the ranks cannot be compared. To be called
        after :meth:`_count_drafts`, whose reading leaves the counters of each rank in ``_server.ranks``.
        """
        if self._is_restarted or not self._ranks_before:
            return ()
        if not self._server.recipe.dialect.counters_exact:  # then _count_drafts may have summed the answers' counts and read nothing
            self._read_settled_counters()
        return subtract_ranks(self._ranks_before, self._server.ranks)

    def _sum_reported_counters(self) -> SpecCounters | None:
        """Return the summed draft counts of all answers; None if one reports none."""
        counters = [outcome.counters for outcome in self._sender.ok_answers]
        reported = [counts for counts in counters if counts is not None]
        return sum(reported, SpecCounters()) if reported and len(reported) == len(counters) else None

    def _estimate_counters(self) -> SpecCounters | None:
        """Return the draft counts of the answers reporting any; None without."""
        reported = [outcome.counters for outcome in self._sender.ok_answers if outcome.counters is not None]
        return self._count_least_drafts(sum(reported, SpecCounters())) if reported else None

    def _count_least_drafts(self, counted: SpecCounters) -> SpecCounters:
        """Return ``counted``, the sum of the answers' counts, with fewer drafts.

        Answers may count steps without a draft among ``drafts``, which would lower the accepted tokens per draft. The number is replaced by
        the least that its draft tokens need. It is unchanged if the draft tokens per step are unknown.
        """
        most_per_draft = self._server.recipe.draft_tokens
        if not most_per_draft:
            return counted
        return replace(counted, drafts=-(-counted.draft_tokens // most_per_draft))  # rounded up

    def _read_settled_counters(self) -> SpecCounters | None:
        """Return the server's counters once two readings in turn agree.

        Some servers update counters after their answers. After half a second they are returned as they are. None without counters.
        """
        counters = self._server.counters()
        for _ in range(_MOST_READINGS if counters else 0):
            time.sleep(_COUNTERS_PAUSE_S)
            earlier, counters = counters, self._server.counters()
            if counters is None or counters == earlier:
                break
        return counters

    def _has_windows(self) -> bool:
        """Return True if answers report their verify steps."""
        return any(choice.windows for outcome in self._sender.ok_answers for choice in outcome.answer.choices)

    def _discrepancy(self) -> Discrepancy:
        """Return what an attached server's counters show beyond these answers.

        These are other clients, another server's answers or a foreign restart. Empty after a server failure or restart by this capture:
        counters and answers differ then anyway. If a request has no answer, or its client leaves early, only a replaced server is reported.
        """
        if self._is_restarted or self._sender.server_failures:
            return Discrepancy()
        # How many tokens the server generated for a cut off or unread answer is unknown.
        has_unread_answers = self._sender.unanswered or any(request.abort_after is not None for request in self._workload.requests)
        return self._account.end(None if has_unread_answers else [outcome.answer for outcome in self._sender.ok_answers])

    def _transcript(self) -> Transcript:
        """Return the transcript of all passes, as written to the run.

        Requests without an answer have one of status None, with the reason. The fields are described at :class:`Transcript`.
        """
        jobs, planned_concurrency = self._sender.jobs(self._passes), self._workload.concurrency
        concurrency = self._server.concurrency(planned_concurrency)  # fewer if the server failed with more, or the config allows fewer
        return Transcript(
            arm=self._name,
            boot=self._boot,
            workload=self._workload.name,
            digest=self._digest,
            answers=tuple(self._sender.answer_to(job, unsent=f"not sent: {self._unavailable}".strip()) for job in jobs),
            counters=self._counters,
            ranks=self._ranks,
            server_failures=tuple(self._sender.server_failures),
            restarts=self._sender.restarts,
            concurrency=concurrency if concurrency < planned_concurrency else None,
            # What an attached server's counters show beyond the answers: another server, other clients, answers by the baseline's server.
            replaced=self._counter_discrepancy.replaced,
            foreign=self._counter_discrepancy.foreign,
            elsewhere=self._counter_discrepancy.elsewhere,
            uncounted=self._counter_discrepancy.uncounted,
            silent_routes=self._silent_routes(jobs),
            limited=sum(outcome.limited for outcome in self._sender.outcomes.values()),
            client=None if self._sender.load is None else self._sender.load.load,
            machine_load=None if self._machine_load is None else round(self._machine_load, 3),
            new_ttft_s=self._new_ttft_s,
            preemptions=self._preemptions,
            events=tuple(self._sender.event_outcomes),
            soak=tuple(self._soak.rounds),
            room=self._room,
            started_at=self._started_at,
            wall_s=round(self._wall_s, 6),
        )

    def _silent_routes(self, jobs: Sequence[Job]) -> tuple[Route, ...]:
        """Return the routes that refused every request, each once."""
        silent = (job.request.route for job in jobs if job.key in self._sender.outcomes and self._sender.outcomes[job.key].on_silent_route)
        return tuple(dict.fromkeys(silent))
