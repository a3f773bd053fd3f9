"""The end of a session: gather verdicts from test reports, write the run's documents, print the table, set the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from pytest_specdec.report.run import Judgement, Run

__all__ = ["CELL", "ERROR", "LEFT_OUT", "VERDICT", "Summary"]

CELL = "specdec.cell"
ERROR = "specdec.error"
LEFT_OUT = "specdec.left_out"
VERDICT = "specdec.verdict"
CARRIERS = frozenset({CELL, ERROR, LEFT_OUT, VERDICT})
"""Names of the properties that carry JSON from the test, maybe in a worker, to the summary; they reach no JUnit file."""


class Summary:
    """Registered where tests of ours will run: in the only process, or in the controller of several."""

    def __init__(self, config: pytest.Config, root: Path, *, session: str, warnings: Sequence[str] = ()) -> None:
        self._config = config
        self._root = root
        self._session = session
        self._warnings = tuple(warnings)
        self._judgements: list[Judgement] = []
        self._left_out: set[tuple[str, str]] = set()
        """Why, and what."""
        self._run: Run | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test of ours says, before other plugins see the report."""
        ours = [(name, value) for name, value in report.user_properties if name in CARRIERS]
        if ours:
            from pytest_specdec import gathering  # noqa: PLC0415 - only tests of ours pay for it

            report.user_properties = [pair for pair in report.user_properties if pair[0] not in CARRIERS]
            self._judgements += gathering.judgements(report, ours)
            self._left_out |= gathering.left_out(ours)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Gather the run before pytest-benchmark, a wrapper too, saves what there is."""
        if (self._root / "plan.json").is_file():
            self._finish(session, exitstatus)
        yield

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Gather the run; one in which nothing could be judged is no success."""
        from pytest_specdec import documents, gathering  # noqa: PLC0415 - only tests of ours pay for it

        if not documents.is_of(self._config, self._root, self._session):
            return
        warnings = (*self._warnings, *gathering.notes(self._left_out))
        self._run = documents.gathered(self._config, self._root, self._judgements, warnings)
        if self._config.pluginmanager.getplugin("terminalreporter") is None:
            documents.write(self._config, self._root, self._run)
        documents.benchmark(self._config, self._root, self._run)
        if exitstatus == pytest.ExitCode.OK and not self._run.judged:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table and what goes with it, then write the documents: a full disk is not to cost the verdicts."""
        if self._run is not None:
            from pytest_specdec import documents  # noqa: PLC0415 - only tests of ours pay for it

            documents.show(self._config, terminalreporter, self._root, self._run)
