"""A run as workflow commands of GitHub Actions, which mark the job with each finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.report import failure
from pytest_specdec.report.escape import printable
from pytest_specdec.report.upgrade import UpgradeWord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.report.causes import SharedCause
    from pytest_specdec.report.run import JudgementResult, Run

__all__ = ["render"]

MOST = 10
"""Annotations of one kind that GitHub shows of a step."""
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}
"""https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""


def render(run: Run) -> str:
    """Return the run's findings and undecided judgements as workflow commands.

    A finding is one fault with all its failures. Each is an error, and each undecided judgement a warning. An upgrade, the comparison with
    an earlier run, is an error if worse and a warning if unknown. There are at most :data:`MOST` of a kind. Empty without any.
    """
    errors = [*_upgrade_commands(run, "error", UpgradeWord.WORSE), *map(_error, run.findings)]
    warnings = [*_upgrade_commands(run, "warning", UpgradeWord.UNKNOWN), *map(_warning, run.undecided)]
    return "".join(f"{line}\n" for line in (*errors[:MOST], *warnings[:MOST]))


def _upgrade_commands(run: Run, kind: str, word: UpgradeWord) -> Iterator[str]:
    """Yield the command of the upgrade if it came to ``word``."""
    if run.upgrade is not None and run.upgrade.word is word:
        yield _command(kind, "UPGRADE", run.upgrade.headline)


def _error(finding: SharedCause) -> str:
    """Return the error of one finding, with the headline of its leading failure."""
    leader = finding.leader
    headline = failure.headline(leader.verdict) if leader.verdict else leader.nodeid
    return _command("error", f"{', '.join(finding.by_pair)}: {finding.name}", f"{headline} ({finding.tests})")


def _warning(judgement: JudgementResult) -> str:
    what = failure.headline(judgement.verdict) if judgement.verdict else judgement.error.partition("\n")[0]
    return _command("warning", f"{judgement.pair} {judgement.family}: undecided", what)


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_escape(title, _PROPERTY)}::{_escape(message, _MESSAGE)}"


def _escape(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(character, character) for character in printable(text))
