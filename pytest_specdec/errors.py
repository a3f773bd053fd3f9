"""Every error that this package raises on purpose.

SpecdecError                  what, where, found, expected, remedy
├── ConfigError               the config file is wrong; all its problems at once
├── PlanError                 the selected tests cannot be captured under this config
├── EngineError               an engine is not installed, or refuses what the config asks
│   ├── BootError             a server died or never got ready; carries command, exit code, log tail
│   │   ├── FirstRequestError a server died of the request that was to show that it is ready
│   │   └── SetupError        a server refuses its command line, the key, the model or the route
│   └── RequestError          a server answered outside the protocol
├── CaptureError              a capture could not finish; what it had is kept
│   ├── LeaseError            another capture holds the device or the machine
│   └── DeadlineError         the time given to the capture is used up
└── RunError                  a run directory cannot be read, or belongs to another version
    └── ScoreError            stored scores are no distributions
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BootError",
    "CaptureError",
    "ConfigError",
    "DeadlineError",
    "EngineError",
    "FirstRequestError",
    "LeaseError",
    "PlanError",
    "RequestError",
    "RunError",
    "ScoreError",
    "SetupError",
    "SpecdecError",
]


class SpecdecError(Exception):
    """An error whose text says what, where, what was found, what was expected, and the remedy."""

    lasting: ClassVar[bool] = False
    """Whether the same command ends in it again, until somebody changes the config or the machine."""

    def __init__(self, what: str, *, where: str = "", found: str = "", expected: str = "", remedy: str = "") -> None:
        """Take the parts of the text; empty ones are left out.

        ``where`` is a file and line, an option or an address; ``remedy`` is what the user can do next.
        """
        self.what = what
        self.where = where
        self.found = found
        self.expected = expected
        self.remedy = remedy
        super().__init__(self.__str__())

    def __str__(self) -> str:
        labelled = (("where", self.where), ("found", self.found), ("expected", self.expected), ("remedy", self.remedy))
        return "\n".join([self.what, *(f"  {label + ':':<10}{_indented(text)}" for label, text in labelled if text)])


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 12)


class ConfigError(SpecdecError):
    """The config file is wrong."""

    lasting = True


class PlanError(SpecdecError):
    """The selected tests cannot be captured under this config."""

    lasting = True


class EngineError(SpecdecError):
    """An engine is not installed, or refuses what the config asks."""

    lasting = True


class BootError(EngineError):
    """A server died at boot or never got ready."""

    lasting = False


class FirstRequestError(BootError):
    """A server came up and died of its first request, which asks for one token."""


class SetupError(BootError):
    """A server refuses its command line, the key, the model or the route."""

    lasting = True


class RequestError(EngineError):
    """A server answered outside the protocol."""

    lasting = False


class CaptureError(SpecdecError):
    """A capture could not finish; what it had is kept."""


class LeaseError(CaptureError):
    """Another capture holds the device or the machine."""


class DeadlineError(CaptureError):
    """The time given to the capture is used up."""


class RunError(SpecdecError):
    """A run directory cannot be read, or belongs to another version."""


class ScoreError(RunError):
    """Stored scores are no distributions: nothing can be judged by them."""
