"""A thread pool: jobs sent in order, a number of them at a time, until all are done or one fails."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

J = TypeVar("J")
R = TypeVar("R")


class ThreadPool(Generic[J, R]):
    """Runs ``work`` on jobs in threads and hands out their results.

    The results come to the iterating thread as they are ready.

    The threads are daemons: an interrupt leaves them to the death of the server that they wait for, which ends their connections.
    """

    def __init__(
        self,
        jobs: Sequence[J],
        work: Callable[[J], R],
        concurrency: int,
        until: Callable[[R], bool] | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take ``jobs``, their ``work``, and the conditions for starting no more.

        At most ``concurrency`` jobs run at a time. None is started after a result for which ``until`` holds, or once ``is_over`` holds.
        """
        self._jobs = iter(jobs)
        self._work = work
        self._until = until
        self._is_over = is_over
        self._lock = threading.Lock()
        self._stopped = False
        self._done: SimpleQueue[tuple[J, R | BaseException] | None] = SimpleQueue()
        self._threads = max(1, min(concurrency, len(jobs)))

    def __iter__(self) -> Iterator[tuple[J, R]]:
        """Yield each job with its result, in order of completion.

        An exception of ``work`` is raised here. No further job begins once the iteration is left.
        """
        for _ in range(self._threads):
            threading.Thread(target=self._run_jobs, name="specdec-request", daemon=True).start()
        running = self._threads
        try:
            while running:
                outcome = self._done.get()
                if outcome is None:
                    running -= 1
                    continue
                job, result = outcome
                if isinstance(result, BaseException):
                    raise result
                yield job, result
        finally:
            self.stop()

    def stop(self) -> None:
        """Start no further job from now on, in any thread.

        The iteration still waits for those that run.
        """
        with self._lock:
            self._stopped = True

    def _next_job(self) -> J | None:
        with self._lock:
            return None if self._stopped or self._is_over() else next(self._jobs, None)

    def _run_jobs(self) -> None:
        """Run jobs in this thread until none may be started.

        Results go into a queue; a closing None tells the iteration that the thread has ended. An exception goes there too: the iteration
        raises it, and by that stops the pool.
        """
        while (job := self._next_job()) is not None:
            try:
                result = self._work(job)
                if self._until is not None and self._until(result):
                    self.stop()
                self._done.put((job, result))
            except BaseException as error:  # noqa: BLE001 - raised in the iterating thread
                self._done.put((job, error))
        self._done.put(None)
