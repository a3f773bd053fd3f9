"""Next steps: what to type after a run, chosen by its class."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Family
from pytest_specdec.report.run import RunClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.report.run import Run

__all__ = ["NextStep", "list_next_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One thing to do, and the command that does it."""

    what: str
    command: str = ""
    """Empty if the command is that of the run itself."""

    @property
    def text(self) -> str:
        """The step and its command, in one line."""
        return f"{self.what}: {self.command}" if self.command else self.what


def list_next_steps(run: Run) -> Iterator[NextStep]:
    """Yield the next steps after a run, the most useful first.

    An incomplete capture has one, to resume it. There is none if everything was captured and nothing is suspicious or red, that is, failed.
    A suspicious verdict has high evidence, short of an alarm.
    """
    if run.status is None or run.status.state is not State.COMPLETE:
        what = f"resume the incomplete capture (server logs: {run.directory}/servers)"
        yield NextStep(what=what, command=run.commands.resume)
        return
    # The test of sampled tokens may go on without more false alarms. A group of a matrix has no command to continue it.
    if run.commands.continued and any(verdict.family is Family.SAMPLING for verdict in run.suspicious):
        yield NextStep(what="capture more tokens, under the same false-alarm share", command=run.commands.continued)
    if run.run_class is RunClass.FINDING:
        yield from _steps_after_finding(run)
    if run.run_class is RunClass.INFRASTRUCTURE and not run.replayed:
        yield NextStep(what="ask again what a server failed on", command=run.commands.resume)
    if run.red and not run.replayed:
        yield NextStep(what="judge the same answers again, without a server", command=run.commands.replay)


def _steps_after_finding(run: Run) -> Iterator[NextStep]:
    """Yield the steps to read and reproduce the first finding.

    If all failures are of speed, a second run is a step too. Nothing without a finding, as in a run that is only worse than an earlier one.
    """
    if not run.findings:
        return
    leader = run.findings[0].leader
    of_leader = f"{shlex.quote(run.directory)} {shlex.quote(leader.nodeid)}"
    yield NextStep(what="read all of its evidence", command=f"python -m pytest_specdec show {of_leader}")
    if leader.verdict and leader.verdict.example:
        yield NextStep(what="show it without this package", command=f"python -m pytest_specdec repro {of_leader}")
    if all(failure.family is Family.SPEED for finding in run.findings for failure in finding.failures) and not run.replayed:
        yield NextStep(what="seconds vary from boot to boot: the same command again is a second opinion")
