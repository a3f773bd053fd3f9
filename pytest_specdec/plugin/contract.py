"""The contract of an engine's adapter: its suite, run on the servers of a config, a line for each claim as it comes.

An adapter is the code for one engine. A claim is a statement of it on the engine's servers, checked by one test. An arm is the baseline or
a variant, which speculates; its server is visited to check the claims.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.config import shipped
from pytest_specdec.plugin import marker

if TYPE_CHECKING:
    from collections.abc import Callable

_SUITE = shipped.SUITES / "contract"
_OUTCOMES = ("kept", "broken", "not claimed", "could not be checked")
_UNWANTED_PLUGINS = ("terminal", "cacheprovider", "randomly", "benchmark")
"""Plugins of pytest that are switched off, since they print, write or shuffle."""


class ContractPrinter:
    """A plugin of pytest that prints the outcome of each claim, for one variant."""

    def __init__(self, variant: str, write: Callable[[str], None]) -> None:
        self._variant = variant
        self._write = write
        self.counts: dict[str, Counter[str]] = {}
        """Of outcomes, by arm."""
        self.errors: list[str] = []
        """Of servers that could not be visited."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the tests of other variants; those of the baseline have no pair."""
        items[:] = [item for item in items if marker.pair_name(item) in {"", self._variant}]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print one line for the claim of a finished test.

        A claim is a property of the report, added by the contract's suite: arm, name, outcome and evidence. The outcome of a claim that
        fails its test is printed in capitals. A failed report without a claim is recorded as an error.
        """
        claim = dict(report.user_properties).get("claim")
        if not isinstance(claim, dict):
            self.pytest_collectreport(report)
            return
        arm, outcome = claim["arm"], claim["outcome"]
        self.counts.setdefault(arm, Counter())[outcome] += 1
        word = outcome.upper() if report.failed else outcome
        self._write(f"  {arm:<12}  {word:<20}  {claim['name']:<22}  {claim['evidence']}")

    def pytest_collectreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        """Record the error text of a failure outside any claim.

        An example is a server that did not boot.
        """
        if report.failed:
            self.errors.append(report.longreprtext)

    def print_counts(self) -> None:
        """Print the number of each outcome, a line for each arm."""
        for arm, counts in self.counts.items():
            self._write(f"{arm}: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES))


def run(config: Path, document: Path | None, printer: ContractPrinter) -> bool:
    """Run the contract's tests on the servers of a config.

    ``printer`` prints the outcome of each claim as it comes: of those on the baseline's server and on that of the printer's variant.
    Returns True if no claim is broken and every server could be visited: a claim that the adapter does not make, or that cannot be
    checked, is skipped. The servers are booted, or visited if they are attached. If ``document`` is given, the outcomes are written
    there as JSON. An empty ``pytest.ini`` is used, so that a project's own pytest settings change nothing.
    """
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "pytest.ini"
        settings.touch()
        options = [f"--specdec-config={config.absolute()}", f"--specdec-run-dir={Path(folder) / 'run'}"]
        options += [f"--contract-json={document.absolute()}"] if document else []
        plugins = [word for name in _UNWANTED_PLUGINS for word in ("-p", f"no:{name}")]
        options += ["--assert=plain"]  # the message of a failed assertion is a claim's evidence: pytest would add values to it
        return pytest.main([str(_SUITE), "-c", str(settings), *plugins, *options], [printer]) == pytest.ExitCode.OK
