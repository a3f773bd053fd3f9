"""The command that starts a server, and where the server listens."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.files.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HOST", "Command"]

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, in which environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment, from which variables that turn speculation on by surprise are removed."""
    stop: tuple[str, ...] = ()
    """A command that ends what signals do not reach, such as a container."""
    kill: tuple[str, ...] = ()
    """The same, at once."""
    look: tuple[str, ...] = ()
    """A command that lists the open files of what does not run among our processes, such as a container."""
    secrets: Secrets = field(default_factory=Secrets)

    def __str__(self) -> str:
        return self.secrets.mask(shlex.join(self.argv))
