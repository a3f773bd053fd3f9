"""The event gate: events wait until no other thread uses a server, and nothing else uses it after them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class EventGate:
    """Keeps a workload's events apart from what other threads ask a server."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._had_events = False

    @property
    def had_events(self) -> bool:
        """True if an event was done to the running server: whatever comes later is for a fresh one."""
        return self._had_events

    def begin_events(self) -> None:
        """Note that events begin, and wait until no other thread uses the server."""
        with self._changed:
            self._had_events = True
            self._changed.wait_for(lambda: not self._users)

    @contextmanager
    def use(self) -> Iterator[bool]:
        """Keep events away until the block ends; yields False if one was done already."""
        with self._changed:
            is_free = not self._had_events
            self._users += is_free
        try:
            yield is_free
        finally:
            with self._changed:
                self._users -= is_free
                self._changed.notify_all()

    def reset(self) -> None:
        """Note that the server has ended: the next one has had no events."""
        with self._changed:
            self._had_events = False
