"""The scoring queue: answers scored by one server while their arms give further ones.

A capability probe of the baseline decides by which route tokens are scored; it may come after the first answers, or never.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from pytest_specdec.capture.boot import BootSession
    from pytest_specdec.capture.scoring import TranscriptScorer
    from pytest_specdec.model.transcript import Answer

    _Job: TypeAlias = tuple[TranscriptScorer, Answer, int]

_THREADS = 4
"""Threads that score one server's queue."""
_MAX_WAITING = 256
"""Answers that may wait to be scored; with more, the thread that adds one has to wait, once the baseline is probed."""
_SCORING_PAUSE_S = 0.1


class ScoringQueue:
    """One scoring server's queue of answers, scored while others are given.

    Whatever it leaves unscored is scored later, in the order of the plan.
    """

    def __init__(self, session: BootSession) -> None:
        self._session = session
        self._waiting: queue.Queue[_Job] = queue.Queue(_MAX_WAITING)
        self._closed = threading.Event()
        self._scorers: dict[str, TranscriptScorer] = {}

    def scoring(self, workload: str) -> TranscriptScorer:
        """Return this server's scorer of answers to ``workload``.

        Every call returns the same one, since it holds the sequences that are already scored.
        """
        new_scorer = self._session.scoring(self._session.recipes.plan.workload(workload))
        return self._scorers.setdefault(workload, new_scorer)  # in one step, since the threads of several arms may ask at once

    def start(self) -> None:
        """Start the threads for scoring the queued answers.

        Answers wait until the baseline is probed, since the probe decides how they are scored.
        """
        for _ in range(_THREADS):
            threading.Thread(target=self._score_queued_answers, name="specdec-scoring", daemon=True).start()

    def taker(self, workload: str, top_tokens: int) -> Callable[[Answer], None]:
        """Return a callback for queueing an arm's answers to ``workload``.

        They are scored later, each token with ``top_tokens`` likeliest ones, by the scorer that all arms' answers to this workload share:
        it scores equal answers once.
        """
        scorer = self.scoring(workload)
        return lambda answer: self._put((scorer, answer, top_tokens))

    def drain(self) -> None:
        """Wait until every queued answer was scored, or failed to be.

        Returns early once the queue is closed or the capture's time is used up, and at once if the capabilities that scoring needs are not
        probed, since nothing is scored then.
        """
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks and self._session.probed and not self._is_over:
                self._waiting.all_tasks_done.wait(_SCORING_PAUSE_S)

    def close(self) -> None:
        """Stop accepting answers and scoring further ones."""
        self._closed.set()

    @property
    def _is_over(self) -> bool:
        return self._closed.is_set() or self._session.reporter.left_s <= 0

    def _put(self, job: _Job) -> None:
        """Queue an answer, waiting for room once the baseline is probed.

        Before that, an answer that finds the queue full is dropped and scored later, in the order of the plan: the baseline may never be
        probed, and waiting would not end.
        """
        while not self._is_over:
            probed = self._session.probed
            with suppress(queue.Full):
                self._waiting.put(job, block=probed, timeout=_SCORING_PAUSE_S)
                return
            if not probed:
                return

    def _score_queued_answers(self) -> None:
        """Score queued answers once the baseline is probed, until closed.

        Runs in each scoring thread. Errors are ignored: answers left unscored here are scored in the plan's order, and raise theirs then.
        """
        while not (self._session.probed or self._is_over):
            self._closed.wait(_SCORING_PAUSE_S)
        while not self._is_over:
            try:
                scorer, answer, top_tokens = self._waiting.get(timeout=_SCORING_PAUSE_S)
            except queue.Empty:
                continue
            try:
                # Scoring shares the machine's lock with the arms. Captures that want it alone queue for it, and others queue behind them.
                # This thread must not: an arm that holds the lock may be waiting for it to make room in this full queue.
                with suppress(Exception), self._session.shared(skip_queue=True), self._session.server.event_gate.use() as is_free:
                    if is_free:  # a server that was put to sleep scores nothing until it is started anew
                        scorer.prefetch(scorer.request(answer, top_tokens))  # scored now, ahead of the plan's order
            finally:
                self._waiting.task_done()
