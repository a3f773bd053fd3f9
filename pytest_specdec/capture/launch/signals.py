"""Signals put off: an interrupt between the start of a server and the note of it would leave a process that nobody knows."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["deferred"]

_NUMBERS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
"""In the order in which their handlers come back: what raises in between must not keep the most common one away."""


@contextmanager
def deferred() -> Iterator[None]:
    """Handle signals that Python code handles after the block, not inside of it; the first of them ends the block with its exception.

    They are not blocked by a mask, which a process started in the block would inherit. Only the main thread handles signals, so that
    another one has nothing to put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for first in came[:1]:
            handled[signal.Signals(first)](first, None)
