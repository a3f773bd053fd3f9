"""Busy: for how long a server had at least one request in flight."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Busy"]


class Busy:
    """Adds up the union of the intervals of requests that may overlap, from its making on."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.until_s = self.began_s
        """When the last answer ended."""
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._flying = 0
        self._since_s = 0.0

    @property
    def wall_s(self) -> float:
        """Seconds from the beginning to the last answer."""
        return self.until_s - self.began_s

    @contextmanager
    def flight(self) -> Iterator[None]:
        """Count one request for as long as the block runs."""
        with self._lock:
            if not self._flying:
                self._since_s = time.monotonic()
            self._flying += 1
        try:
            yield
        finally:
            with self._lock:
                self._flying -= 1
                self.until_s = time.monotonic()
                if not self._flying:
                    self.seconds += self.until_s - self._since_s
