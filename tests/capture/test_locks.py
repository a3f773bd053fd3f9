"""Locks: one capture per device, and the machine held alone or together."""

from __future__ import annotations

import threading

import pytest

from pytest_specdec.capture import locks
from pytest_specdec.errors import DeadlineError, LeaseError


def nothing():
    return None


def test_one_capture_holds_a_device():
    with locks.device("0", 0.0, nothing):
        with pytest.raises(LeaseError, match="another capture holds the device"), locks.device("0", 0.0, nothing):
            raise AssertionError
        with locks.device("1", 0.0, nothing):
            pass
    with locks.device("0", 0.0, nothing):
        pass


def test_a_device_is_locked_though_its_holder_cannot_be_written(monkeypatch):
    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", write)
    with locks.device("0", 0.0, nothing):
        assert locks.try_device("0") is None
        assert locks.device_lock("0").holder == ""


def test_any_number_of_captures_share_the_machine_but_none_beside_an_exclusive_one():
    refused = pytest.raises(LeaseError, match="another capture holds this machine")
    with locks.shared(0.0, nothing), locks.shared(0.0, nothing), refused, locks.exclusive(0.0, nothing):
        raise AssertionError
    for skip_queue in (False, True):
        with locks.exclusive(0.0, nothing), pytest.raises(LeaseError), locks.shared(0.0, nothing, skip_queue=skip_queue):
            raise AssertionError


def test_an_exclusive_lock_in_waiting_goes_before_new_shared_ones():
    waiting, done = threading.Event(), threading.Event()

    def measure():
        with locks.exclusive(20.0, waiting.set):
            done.set()

    with locks.shared(0.0, nothing):
        thread = threading.Thread(target=measure)
        thread.start()
        assert waiting.wait(20.0)
        with pytest.raises(LeaseError), locks.shared(0.0, nothing):
            raise AssertionError
        with locks.shared(0.0, nothing, skip_queue=True):
            assert not done.is_set()
    assert done.wait(20.0)
    thread.join()


def test_who_waits_for_a_lease_can_give_up():
    def give_up():
        raise DeadlineError("used up")  # noqa: EM101, TRY003

    with locks.device("0", 0.0, nothing), pytest.raises(DeadlineError), locks.device("0", 20.0, give_up):
        raise AssertionError


def test_a_wait_begins_anew_with_each_holder_and_names_it(monkeypatch):
    """Captures side by side measure speed in turn: a long queue is no holder that hangs."""
    monkeypatch.setattr(locks, "_SAY_AFTER_S", 0.0)
    path, holders, waits = locks.device_lock("0").path, [f"{number} 2026-11-27T00:00:00Z pytest" for number in range(20)], []

    def pass_on():
        if holders:
            path.write_text(holders.pop())

    with locks.device("0", 0.0, nothing), pytest.raises(LeaseError), locks.device("0", 0.2, pass_on, waits.append):
        raise AssertionError
    assert holders == []
    assert waits[-1] == "waiting for the device 0, last held alone by process 0 since 2026-11-27T00:00:00Z: pytest"
    assert len(waits) == len(set(waits)) == 21
