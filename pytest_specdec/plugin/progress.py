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
        # Not called: it is a plain bool before pytest 8.4.
        self._in_place = reporter is not None and bool(reporter.isatty) and "CI" not in os.environ
        self._began: dict[tuple[str, int], Progress] = {}
        """Where the current step of each run's boot began: several may be at work."""
        self._written: dict[tuple[str, int], Progress] = {}
        """What the last plain line of each run's boot showed."""
        self._in_line = False
        """Whether the cursor is in a line that is rewritten in place."""

    def __call__(self, now: Progress, run: str = "") -> None:
        """Show the progress ``now`` of a run through pytest's terminal reporter.

        ``run`` is its name among several runs at once. Where the step began is noted too, to show its rate.

        On a terminal one line is rewritten in place. Elsewhere, as in CI, a new line is written at a boot's first step and then every
        ``EVERY_S`` seconds. A text that is no step of a boot gets a line that stays.
        """
        key = (run, now.boot)
        if not progress.same_step(now, self._began.get(key)):
            self._began[key] = now
        if self._reporter is None:
            return
        line = progress.line(now, self._began[key], run)
        if now.doing not in STEPS:
            self.say(line)
        elif self._in_place:
            self._reporter.rewrite(line[: get_terminal_size().columns - 1], erase=True)
            self._in_line = True
        elif self._is_due(key, now):
            self._reporter.write_line(line)
            self._written[key] = now

    def _is_due(self, key: tuple[str, int], now: Progress) -> bool:
        """Return True if a plain line for this boot is due.

        The first is due at once, a later one ``EVERY_S`` seconds after the last.
        """
        last = self._written.get(key)
        return last is None or now.at_s - last.at_s >= EVERY_S

    def say(self, line: str) -> None:
        """Write a line that stays, erasing a progress line first."""
        if self._reporter is None:
            return
        if self._in_line:
            self._reporter.rewrite("", erase=True)
            self._reporter.write("\r")
            self._in_line = False
        self._reporter.write_line(line)


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
