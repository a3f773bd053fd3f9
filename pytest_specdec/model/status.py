"""A status: how far a capture came, and what is missing from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_specdec.model.plan import Rates

__all__ = ["STEPS", "BootTime", "MissingAnswers", "Progress", "Session", "State", "Status", "StepKind"]


class StepKind(StrEnum):
    """Kinds of steps of a boot."""

    BOOTING = "booting"
    PROBING = "probing"
    ANSWERING = "answering"
    SCORING = "scoring"
    STOPPING = "stopping"


STEPS = frozenset(StepKind)
"""Steps of a boot; any other text of a progress line is printed at once."""


class State(StrEnum):
    """Where a capture stands."""

    RUNNING = "running"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Ended with answers missing; the others stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The session of pytest, all its workers together, that captures into a run."""

    id: str
    """Random: neither a clock nor a process id is unique over machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingAnswers:
    """Answers that a run does not have, and why."""

    arm: str
    workload: str
    """Empty when the arm answered nothing at all."""
    reason: str
    """The whole error text: what, where, found, expected, remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootTime:
    """The times of one boot's server."""

    boot: int
    arm: str
    readiness_s: float
    """From its start to its first answer."""
    wall_s: float
    """From readiness to the last answer."""
    busy: float
    """Part of that with a request in flight, 0..1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The last word of a capture about itself."""

    state: State
    missing: tuple[MissingAnswers, ...] = ()
    missing_old: tuple[MissingAnswers, ...] = ()
    """Timed answers of the engine in use; the run is complete without them, since no verdict of a pair rests on them."""
    boots: int = 0
    """Servers started as planned."""
    restarts: int = 0
    """Servers started again after a death."""
    wall_s: float = 0.0
    error: str = ""
    """What ended the whole capture, where something did."""
    lasting: bool = False
    """Whether answers are missing by what no retry changes: an unknown flag, a refused key, a model that is not served."""
    served: tuple[BootTime, ...] = ()
    """By boot, those that answered anything."""
    rates: Rates | None = None
    """By which the plan's estimate would have been right; None where less than half of the plan was captured."""
    warnings: tuple[str, ...] = ()
    """What was noticed and ended nothing, such as others' requests to an attached server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of a capture, for the progress line."""

    at_s: float
    """Seconds since the capture began."""
    boot: int
    """From 0."""
    boots: int
    """Planned."""
    arm: str
    doing: str
    """``booting``, ``probing``, ``answering``, ``scoring``, ``stopping``, or a text to print at once."""
    workload: str = ""
    done: int = 0
    """Requests answered or scored of this step."""
    of: int = 0
    tokens: int = 0
    """Tokens answered in this step so far."""
    remaining_s: float | None = None
    """Expected seconds to the end of the capture."""
    began_at_s: float = 0.0
    """Unix time at which the capture began; 0 where it is not known. It tells the captures of a run that is resumed apart."""
