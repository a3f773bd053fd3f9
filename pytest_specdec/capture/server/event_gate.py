"""The event gate: events wait until no other thread uses a server, and nothing else uses it after them.

Events, such as a sleep or an update of weights, are done to a server between requests. Meanwhile other threads may use the server to score
tokens, which an event would disturb.
"""

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
        """Threads within :meth:`use` that were let in."""
        self._had_events = False

    @property
    def had_events(self) -> bool:
        """True if the running server has had an event.

        Whatever comes later is for a fresh server.
        """
        return self._had_events

    def begin_events(self) -> None:
        """Note that events begin, and wait for the server's other users.

        Threads that come meanwhile do not get to use the server any more.
        """
        with self._changed:
            self._had_events = True
            self._changed.wait_for(lambda: not self._users)

    @contextmanager
    def use(self) -> Iterator[bool]:
        """Yield True and make events wait until the block ends.

        Yields False, and makes nothing wait, if events have begun already: the block may not use the server then.
        """
        with self._changed:
            is_free = not self._had_events
            self._users += is_free  # 1 or 0
        try:
            yield is_free
        finally:
            with self._changed:
                self._users -= is_free
                self._changed.notify_all()

    def reset(self) -> None:
        """Note the server's end, since the next one has had no events."""
        with self._changed:
            self._had_events = False
