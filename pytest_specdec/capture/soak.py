"""A soak: the same requests to one server again and again for minutes, of which sums by round are kept and no answers.

A round takes about a sixtieth of the time. Counters are its counts of drafts; a rank is one of its processes with counters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.failure import Job, terminate_unless_only_errors
from pytest_specdec.capture.sender import Unavailable
from pytest_specdec.capture.server.counters import subtract_ranks
from pytest_specdec.model.soak import SoakRound
from pytest_specdec.model.spec_counters import SpecCounters, sum_ranks
from pytest_specdec.model.transcript import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.sender import Sender
    from pytest_specdec.model.spec_counters import RankCounters

ROUNDS = 60
"""Most rounds of a soak.

The judge leaves the first ten of sixty out, since the server settles in them. If the share of accepted drafts is lower in each of the
last six of the other fifty than in any before, p = 2 * 49 / C(50, 6) = 6.2e-6; in the last nine, 3.9e-8: below the limits in use. Fewer
rounds leave the verdict open.
"""
_SETTLING_S = 0.05
"""Seconds before counters are read: some servers update them after their answers."""
_MOST_FAILURES = 3
"""Failures that end a soak, none recurred: so many are a finding where the baseline has none."""
_REPORTED = 6
"""Times that a soak reports how far it is."""


@dataclass(kw_only=True)
class _Sums:
    """The sums of the round under way."""

    requests: int = 0
    tokens: int = 0
    failed: int = 0
    refused: int = 0
    answered: SpecCounters | None = None
    """Sum of the counts that the answers themselves report; None if none does."""
    changed: dict[str, None] = field(default_factory=dict)
    """Ids of greedy requests with other tokens than in the first pass, each once."""


class Soak:
    """Sends the requests of a workload until its time is over."""

    def __init__(self, sender: Sender, reporter: Reporter) -> None:
        """Take the sender of the workload, and the reporter of progress."""
        self.rounds: list[SoakRound] = []
        self._sender = sender
        self._server = sender.server
        self._workload = sender.workload
        self._reporter = reporter
        self._failures = 0
        """Failures of the server in the soak so far."""
        self._restarts_at_failures: list[int] = []
        """Restarts so far at each failure that ended the server: if there are more at a later failure, a fresh server has failed."""
        self._is_over = False

    def run(self) -> None:
        """Send rounds of the same requests for the workload's ``soak_s``.

        A server that fails is replaced, and its failure is recorded. If the fresh one fails in the same traffic, the failure has recurred
        and the soak ends. Raises Unavailable if no server is left, or no time. Other threads cannot use the server meanwhile; what follows
        gets a fresh one.
        """
        began_s = time.monotonic()
        while not self._is_over and (passed_s := time.monotonic() - began_s) < self._workload.soak_s:
            # Keeps other threads from the server, as events do. Done in each round, since a fresh server is open to them again.
            self._server.event_gate.begin_events()
            self._sender.ensure_running()
            self._send_round(began_s, until_s=began_s + passed_s + self._workload.soak_s / ROUNDS)
            self._report()

    @property
    def growth(self) -> SpecCounters:
        """What the server counted in all rounds."""
        return sum((round_.counters for round_ in self.rounds if round_.counters is not None), SpecCounters())

    @property
    def rank_growth(self) -> tuple[RankCounters, ...]:
        """What each rank counted in all rounds."""
        return sum_ranks(round_.ranks for round_ in self.rounds)

    def _send_round(self, began_s: float, *, until_s: float) -> None:
        """Send the requests until ``until_s``, and add the round's sums to ``rounds``.

        They are sent at least once; times are by the monotonic clock. The drafts are the growth of the server's counters, or else the sum
        of the counts in the answers. Raises Unavailable, after the sums are added, if no server is left.
        """
        start_s, restarts, sums = time.monotonic(), self._sender.restarts, _Sums()
        before, ranks_before = self._read_counters(), self._server.ranks
        lost: Unavailable | None = None
        try:
            self._send_requests(sums)
            while not self._is_over and time.monotonic() < until_s:
                self._send_requests(sums)
        except Unavailable as error:
            lost = error
        end_s = time.monotonic()
        is_same_server = self._sender.restarts == restarts and self._server.running  # a fresh one counts from 0
        after = self._read_counters() if is_same_server else None
        growth = None if before is None or after is None else after - before
        self.rounds.append(
            SoakRound(
                at_s=round(end_s - began_s, 3),
                seconds=round(end_s - start_s, 3),
                requests=sums.requests,
                tokens=sums.tokens,
                failed=sums.failed,
                refused=sums.refused,
                counters=sums.answered if growth is None else growth,
                ranks=subtract_ranks(ranks_before, self._server.ranks) if is_same_server and ranks_before else (),  # as read for ``after``
                resident_mib=self._server.resident_mib(),
                changed=tuple(sums.changed),  # ids of greedy requests with other tokens than in the first pass
            )
        )
        if lost is not None:
            raise lost

    def _read_counters(self) -> SpecCounters | None:
        """Return the server's counters after a pause to settle."""
        time.sleep(_SETTLING_S)
        return self._server.counters()

    def _send_requests(self, sums: _Sums) -> None:
        """Send every request once, and add up the answers in ``sums``.

        Those of one turn may be in flight together. A denial, as for a lost key, ends the soak; so may a failure, which is recorded.
        """
        for turn in self._workload.turns:
            if self._is_over:
                return
            self._sender.ensure_running()
            failed = []
            for job, outcome in self._sender.create_pool([Job(request=request, pass_index=0) for request in turn]):
                if self._sender.has_failed(job, outcome):
                    failed.append(outcome)
                elif outcome.denial:
                    self._sender.denials[outcome.denial] = None
                    self._is_over = True
                elif outcome.answer.ok:
                    self._add_answer(sums, job, outcome)
                else:
                    sums.refused += outcome.answer.refused
            if failed:
                sums.failed += len(failed)
                self._record_failure(failed)

    def _add_answer(self, sums: _Sums, job: Job, outcome: TimedAnswer) -> None:
        """Add an answer to ``sums``, and its tokens to those aside.

        Tokens aside are those of requests beside the workload's own, so that an attached server's counters can be explained. A greedy
        answer counts as changed if its token ids differ from those of the workload's first pass, which came before the soak.
        """
        answer = outcome.answer
        first = self._sender.outcomes.get(job.key)  # the first pass's: a soak sends with the same pass index, and stores no answers
        self._server.add_aside(answer)
        sums.requests += 1
        sums.tokens += outcome.tokens
        if answer.counters is not None:
            sums.answered = (sums.answered or SpecCounters()) + answer.counters
        if job.request.greedy and first is not None and first.answer.choice.token_ids != answer.choice.token_ids:
            sums.changed[job.request.id] = None

    def _record_failure(self, failed: Sequence[TimedAnswer]) -> None:
        """Record a failure of the server, and whether it has recurred.

        It has recurred if a fresh server fails, one started after an earlier failure in this soak. A recurrence ends the soak, and so does
        the third failure. Else a server that was started here is replaced, whatever its failure.
        """
        is_attached, restarts = bool(self._server.recipe.setup.attached), self._sender.restarts
        has_recurred = any(restarts > restarts_then for restarts_then in self._restarts_at_failures)  # since then it was started anew
        failures = self._sender.create_failure(failed).server_failures  # one for each failed request
        has_died = any(failure.ending is FailureKind.DIED for failure in failures)
        if has_died or not is_attached:  # an attached server, of somebody else, stays the same after an error: nothing recurs then
            self._restarts_at_failures.append(restarts)
        self._failures += 1
        self._is_over = has_recurred or self._failures >= _MOST_FAILURES
        self._sender.server_failures += [replace(failure, recurred=has_recurred or failure.recurred, in_soak=True) for failure in failures]
        terminate_unless_only_errors(self._server, failed)
        if self._server.running and not is_attached and not self._is_over:
            self._sender.restart()

    def _report(self) -> None:
        """Report how far the soak is, a few times in all."""
        share = min(1.0, self.rounds[-1].at_s / self._workload.soak_s)
        share_before = self.rounds[-2].at_s / self._workload.soak_s if len(self.rounds) > 1 else 0.0
        if int(share * _REPORTED) > int(share_before * _REPORTED):
            requests = sum(round_.requests for round_ in self.rounds)
            self._reporter.say(f"{self._workload.name}: {share:.0%} of {self._workload.soak_s / 60:g} minutes, {requests:,} requests")


def add_ranks(before: Mapping[str, RankCounters], growth: Sequence[RankCounters]) -> dict[str, RankCounters]:
    """Return the readings of each rank's counters, raised by ``growth``.

    A later difference from these readings then leaves the growth out, as that of a soak.
    """
    return {name: sum((rank for rank in growth if rank.name == name), reading) for name, reading in before.items()}
