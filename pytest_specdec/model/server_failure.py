"""A server failure: how a server failed a request, and what sending it again to a fresh one showed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["FailureKind", "ServerFailure"]


class FailureKind(StrEnum):
    """How a server failed a request."""

    DIED = "died"
    HUNG = "hung"
    ERROR = "5xx"
    REFUSED = "4xx"
    """A refusal of a request that the server answered when it was sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFailure:
    """A request in flight when a server died, hung or answered 5xx, and what sending it again to a fresh server showed."""

    request_id: str
    ending: FailureKind
    recurred: bool | None
    """Whether the request, on a fresh server of the same arm, did it again; None where that was not tried: no restart
    was left, or the server is somebody else's."""
    group: tuple[str, ...] = ()
    """The smallest group of requests seen to do it again when in flight together, by id; empty where the request was sent alone."""
    after: str = ""
    """The request, by id, that was sent right before it when it did it again; empty where it needed none."""
    in_soak: bool = False
    """Whether it was in a soak: nothing is sent again alone there, and it has recurred if a fresh server failed in the same traffic."""
    answered: bool = False
    """Whether the request had been answered: the server ended by itself after its last answer, with no request in flight."""
    failure: int = 0
    """Which failure of this transcript's server it belongs to, from 0: what was in flight together shares it."""
    process: str = ""
    """Which process ended and how: ``api server, exit code -9``."""
    cause: str = ""
    """The first exception in the server's log, and where it was raised; empty without one."""
    log_tail: tuple[str, ...] = ()
    """The last lines of the server's log, at most 20."""
