"""An event between two askings: what is done to a server, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.model.server_failure import FailureKind

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["BEFORE", "Event", "EventName", "EventOutcome", "EventStep"]

BEFORE = "before"
"""The phase before the first event; every other phase has its event's name."""


class EventName(StrEnum):
    """The name of an event that engines have endpoints for, the mildest first; a config may name others."""

    PAUSE = "pause-resume"
    RESET = "reset-prefix-cache"
    SLOT = "slot-save-restore"
    RELOAD = "reload-weights"
    SLEEP_1 = "sleep-1"
    SLEEP_2 = "sleep-2"


_WORDS: Mapping[str, str] = {
    EventName.PAUSE: "pause and resume",
    EventName.RESET: "a reset of the prefix cache",
    EventName.SLOT: "saving and restoring the slot",
    EventName.RELOAD: "a reload of the weights",
    EventName.SLEEP_1: "sleep level 1",
    EventName.SLEEP_2: "sleep level 2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStep:
    """One step of an event: a POST to the server, or a command that runs here."""

    path: str = ""
    """From the server's address on: ``/sleep?level=1``; empty for a command."""
    body: Mapping[str, JSON] = field(default_factory=dict)
    """Of the POST, with ``${VAR}`` as written; ``{arm}`` stands for the arm's name and the process of the run."""
    command: tuple[str, ...] = ()
    """The words of a command, with ``${VAR}`` as written; empty for a POST."""

    def __str__(self) -> str:
        return f"POST {self.path}" if self.path else f"command {self.command[0] if self.command else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is done to a server between two requests of a workload."""

    name: str
    """An :class:`EventName`, or a config's own."""
    steps: tuple[EventStep, ...]
    """In order; the event ends with the first that is refused or fails."""
    before: str = ""
    """The request, by id, before which it happens, once all earlier ones are answered."""

    @property
    def words(self) -> str:
        """The event in words, as in "after a reload of the weights"; a config's own event has its name."""
        return _WORDS.get(self.name, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOutcome:
    """What came of one event on one arm."""

    name: str
    steps: tuple[str, ...] = ()
    """Each step that was done, with its status or exit code: ``POST /sleep?level=1: 200``."""
    seconds: float = 0.0
    """Of all its steps."""
    status: int | None = None
    """The HTTP status of its last POST; None without a reply, and for commands."""
    error: str = ""
    """The server's or the command's message where it was refused or failed; empty otherwise."""
    ending: FailureKind | None = None
    """How it failed; None if it happened or was refused. A command that fails counts as a 5xx."""
    recurred: bool | None = None
    """Whether it failed again on a fresh server; None where that was not tried."""

    @property
    def is_done(self) -> bool:
        """True if every step was done."""
        return not self.error and self.ending is None

    @property
    def refused(self) -> bool:
        """True if the server refused a step; a failed one has an ``ending``."""
        return bool(self.error) and self.ending is None

    def __str__(self) -> str:
        end = f"; {self.error}" if self.error else ""
        return f"{', '.join(self.steps)} in {self.seconds:.2f} s{end}"
