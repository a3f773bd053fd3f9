"""The line that shows how far a capture is: rewritten in place on a terminal, now and then elsewhere."""

from __future__ import annotations

import os
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from pytest_specdec.model.status import STEPS
from pytest_specdec.report import progress
from pytest_specdec.report.progress import clock

if TYPE_CHECKING:
    import pytest

    from pytest_specdec.model.status import Progress, Status

EVERY_S = 30.0
"""Seconds of a capture between two plain lines of one boot."""


NAMED = 4
"""Missing things named in the last line."""


class Ticker:
    """Writes progress to the terminal reporter; silent without one."""

    def __init__(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        self._reporter = reporter if reporter is not None and config.get_verbosity() >= 0 else None
        # bool(): isatty is True or False before pytest 8.4, and since then a method that is also a bool.
        self._in_place = reporter is not None and bool(reporter.isatty) and "CI" not in os.environ
        self._step_began: dict[tuple[str, int], Progress] = {}
        """The first progress of a boot's current step, by the name of its run and its number there: several boots may be at work."""
        self._last_printed: dict[tuple[str, int], Progress] = {}
        """The progress in a boot's last plain line, by the same."""
        self._is_line_open = False
        """Whether the terminal's last line is one to rewrite in place, without a line end."""

    def __call__(self, now: Progress, run: str = "") -> None:
        """Show the progress ``now`` of a run through pytest's terminal reporter.

        ``run`` is its name among several runs at once. To show a step's rate, the progress at its beginning is kept.

        On a terminal one line is rewritten in place. Elsewhere, as in CI, a new line is written at a boot's first step and then every
        ``EVERY_S`` seconds. A text that is no step of a boot gets a line that stays.
        """
        if self._reporter is None:
            return
        boot = (run, now.boot)
        if not progress.same_step(now, self._step_began.get(boot)):
            self._step_began[boot] = now
        line = progress.line(now, self._step_began[boot], run)
        if now.doing not in STEPS:
            self.say(line)
        elif self._in_place:
            self._reporter.rewrite(line[: get_terminal_size().columns - 1], erase=True)
            self._is_line_open = True  # the next line that stays has to erase it
        elif _is_due(now, self._last_printed.get(boot)):
            self._reporter.write_line(line)
            self._last_printed[boot] = now

    def say(self, line: str) -> None:
        """Write a line that stays, erasing a progress line first."""
        if self._reporter is None:
            return
        if self._is_line_open:
            self._reporter.rewrite("", erase=True)
            self._reporter.write("\r")
            self._is_line_open = False
        self._reporter.write_line(line)


def _is_due(now: Progress, last_printed: Progress | None) -> bool:
    """Return True if a plain line with the progress ``now`` of a boot is due.

    The first is due at once, a later one ``EVERY_S`` seconds after the last, which showed ``last_printed``.
    """
    return last_printed is None or now.at_s - last_printed.at_s >= EVERY_S


def last_word(status: Status) -> str:
    """Return the line about a capture at its end.

    It has the state, the duration, the boots, up to ``NAMED`` arms and workloads with missing answers, and for each server the part of
    its time, 0 to 1, with a request in flight.
    """
    restarts = f", {status.restarts} restarts" if status.restarts else ""
    names = dict.fromkeys(f"{m.arm}/{m.workload}" if m.workload else m.arm for m in status.missing)
    missing = f"; missing: {', '.join([*names][:NAMED])}{', …' * (len(names) > NAMED)}" if names else ""
    served = ", ".join(f"{server.arm} {server.busy:.2f}" for server in status.served)
    busy = f"; servers busy: {served}" if served else ""
    return f"specdec: capture {status.state.value} after {clock(status.wall_s)}, {status.boots} boots{restarts}{missing}{busy}"
