from __future__ import annotations

import errno

import pytest

from pytest_specdec.capture import client
from pytest_specdec.capture.client import BusyTime


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])

    def to(seconds):
        now[0] = 100.0 + seconds

    return to


def test_flights_that_overlap_count_once_and_gaps_not_at_all(clock):
    server = BusyTime()
    clock(1)
    with server.in_flight():
        clock(2)
        with server.in_flight():
            clock(4)
        clock(5)
    clock(8)
    with server.in_flight():
        clock(10)
    clock(50)
    assert (server.seconds, server.wall_s) == (6.0, 10.0)


def test_a_failed_request_is_a_flight_too(clock):
    server = BusyTime()

    def cut():
        with server.in_flight():
            clock(3)
            raise OSError(errno.ECONNRESET, "cut")

    with pytest.raises(OSError, match="cut"):
        cut()
    assert server.seconds == 3.0


def test_a_server_that_answered_nothing_has_no_time(clock):
    server = BusyTime()
    clock(9)
    assert (server.seconds, server.wall_s) == (0.0, 0.0)
