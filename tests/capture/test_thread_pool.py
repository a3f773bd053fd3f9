"""The thread pool: every job once, in order, and no more at once than allowed."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from pytest_specdec.capture.thread_pool import ThreadPool


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_traffic_does_every_job_once_and_starts_them_in_order(concurrency):
    started = []
    lock = threading.Lock()

    def work(job):
        with lock:
            started.append(job)
        return job * job

    assert sorted(ThreadPool(range(20), work, concurrency)) == [(i, i * i) for i in range(20)]
    assert sorted(started) == list(range(20))
    assert started == sorted(started) or concurrency > 1


def test_traffic_never_runs_more_than_its_concurrency():
    running, most, lock = count(), [], threading.Semaphore(3)

    def work(_):
        assert lock.acquire(blocking=False)
        most.append(next(running))
        lock.release()

    assert len(list(ThreadPool(range(30), work, 3))) == 30


def test_traffic_starts_nothing_after_a_result_that_ends_it():
    assert list(ThreadPool(range(10), lambda job: job, 1, until=lambda result: result == 3)) == [(i, i) for i in range(4)]


def test_an_exception_in_traffic_is_raised_where_it_is_iterated():
    def work(job):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(ThreadPool([1, 2], work, 2))
    assert list(ThreadPool([], work, 4)) == []
