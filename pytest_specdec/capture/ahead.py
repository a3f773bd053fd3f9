"""Ahead: answers scored in their server's spare moments, while the arms that gave them go on answering."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_specdec.capture.scoring import asked_for
from pytest_specdec.errors import SpecdecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from pytest_specdec.capture.duties import Duties
    from pytest_specdec.capture.routes import Asked
    from pytest_specdec.capture.scoring import Scoring
    from pytest_specdec.model.answer import Answer

    _Job: TypeAlias = tuple[Scoring, Asked]

__all__ = ["Ahead"]

_THREADS = 4
_LONGEST = 256
"""Answers that may wait: beyond that, whoever brings one waits."""
_PAUSE_S = 0.1


class Ahead:
    """One scoring server's queue; what it leaves undone, for whatever reason, is done in its turn."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._waiting: queue.Queue[_Job] = queue.Queue(_LONGEST)
        self._closed = threading.Event()
        self._scorings: dict[str, Scoring] = {}

    def scoring(self, workload: str) -> Scoring:
        """Return what scores answers to ``workload`` here, always the same."""
        return self._scorings.setdefault(workload, self._duties.scoring(self._duties.recipes.plan.workload(workload)))

    def start(self) -> None:
        """Begin to score as soon as the baseline is probed; until then answers wait."""
        for _ in range(_THREADS):
            threading.Thread(target=self._work, name="specdec-scoring", daemon=True).start()

    def taker(self, workload: str, atoms: int) -> Callable[[Answer], None]:
        """Return what takes the answers of one arm to ``workload``."""
        scoring = self.scoring(workload)
        return lambda answer: self._put((scoring, asked_for(answer, atoms)))

    def drain(self) -> None:
        """Wait until everything that was taken is scored, or will not be, as where no capabilities were probed."""
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks and self._duties.probed and not self._is_over:
                self._waiting.all_tasks_done.wait(_PAUSE_S)

    def close(self) -> None:
        """Take and begin no more."""
        self._closed.set()

    @property
    def _is_over(self) -> bool:
        return self._closed.is_set() or self._duties.reporter.left_s <= 0

    def _put(self, job: _Job) -> None:
        while not self._is_over:
            with suppress(queue.Full):
                self._waiting.put(job, timeout=_PAUSE_S)
                return

    def _work(self) -> None:
        while not (self._duties.probed or self._is_over):
            self._closed.wait(_PAUSE_S)
        while not self._is_over:
            try:
                scoring, asked = self._waiting.get(timeout=_PAUSE_S)
            except queue.Empty:
                continue
            try:
                with self._duties.loud():
                    scoring.ahead(asked)
            except (SpecdecError, OSError, RuntimeError):
                continue  # the server is gone for the moment, or the time is up: its turn will tell
            finally:
                self._waiting.task_done()
