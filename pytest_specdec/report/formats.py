"""The seam of report formats: a name, a target, the moment at which it is due, and a pure function of what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReportFormat", "When"]

Shown = TypeVar("Shown")
Rendered = TypeVar("Rendered")


class When(StrEnum):
    """The moment at which a format is due."""

    FINISH = "at the end of the session, before other plugins save theirs"
    SUMMARY = "in the terminal's summary"
    FILES = "after the summary, as a file of the run directory, where --specdec-report names it; run.json with every run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat(Generic[Shown, Rendered]):
    """A row of the registry, found by the entry point group ``pytest_specdec.report_formats``.

    Formats of other packages are due with FILES: they render a :class:`~pytest_specdec.report.run.Run` to text.
    """

    name: str
    """As the entry point and ``--specdec-report`` name it."""
    target: str
    """The file in the run directory; of other formats, the option or the stream that takes it."""
    when: When
    render: Callable[[Shown], Rendered]
    """Pure: no I/O, no clock. Model output is hostile text and escaped here; secrets are masked afterwards."""
