"""The recipe of a server: all that its starts need, however often it is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_specdec.engines.protocol import Command, Dialect, ServerSetup
    from pytest_specdec.engines.stack import ProcessRecipe

__all__ = ["ServerRecipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecipe:
    """How an arm's server is started, any number of times."""

    dialect: Dialect
    setup: ServerSetup
    command: Command | None
    """None for an attached server, and for one of several processes."""
    processes: tuple[ProcessRecipe, ...] = ()
    """Those of a server of several processes."""
    draft_tokens: int
    """Most tokens that one verify step drafts; 0 without speculation."""
    log: Path
    boot_s: float
    stop_s: float
    concurrency: int | None = None
    """Requests in flight at most; None without a limit."""
    may_kill: bool = False
    """Whether requests on which an attached server failed may be sent to it again."""
    peer: ServerSetup | None = None
    """The baseline's server for an attached variant, if it has another address: only its counters are read."""
    judged: bool = False
    """Whether its deaths are judged, as a variant's are. If it dies of the one-token request at its start, it is started again
    without that request, and dies of a workload's request, where it is judged."""
