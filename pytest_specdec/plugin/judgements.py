"""Judgements on their way from a test, maybe in a worker, to the summary: JSON in properties of pytest's test reports."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.files import codec
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.report.run import JudgementResult, PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    import pytest

    from pytest_specdec.model.workload import JSON

CELL = "specdec.cell"
"""Pair, workload and family of the test, and the command that replays it."""
ERROR = "specdec.error"
LEFT_OUT = "specdec.left_out"
"""A test without a planned judgement, and the reason."""
PLANNED = "specdec.planned"
"""By node id, the cells of all selected tests with a planned judgement: on the first such test of a process."""
VERDICT = "specdec.verdict"
_CARRIERS = frozenset({CELL, ERROR, LEFT_OUT, PLANNED, VERDICT})
"""Properties that carry JSON; they reach no JUnit file."""
_FINAL = frozenset[str]({"passed", "failed", "skipped"})
"""Outcomes of pytest's own: plugins add others, such as ``rerun`` of a test that runs again."""
_XPASS = "[XPASS(strict)]"
"""Begins pytest's text on a test that passed in spite of a strict xfail mark."""
_CHECKS = ("AssertionError", "assert", "Failed: ")
"""How the messages of failed checks begin; those of other exceptions have the exception's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Properties:
    """The JSON that a test's properties carry."""

    cell: dict[str, Any]
    errors: tuple[dict[str, Any], ...]
    verdicts: tuple[dict[str, Any], ...]


def attach(item: pytest.Item, name: str, value: JSON) -> None:
    """Attach ``value`` to the report of the test."""
    item.user_properties.append((name, json.dumps(value)))


def detach(report: pytest.TestReport) -> list[tuple[str, object]]:
    """Remove and return the properties added by :func:`attach`."""
    carried = [(name, value) for name, value in report.user_properties if name in _CARRIERS]
    if carried:
        report.user_properties = [pair for pair in report.user_properties if pair[0] not in _CARRIERS]
    return carried


def judgements(report: pytest.TestReport, carried: Sequence[tuple[str, object]]) -> tuple[JudgementResult, ...]:
    """Return the judgements in one report of a test, one per verdict.

    ``carried`` are the report's properties, removed by :func:`detach`. A test that ended without a verdict gives one judgement with its
    error. Judgements come with the report of the call, or of a setup that failed or was skipped; a teardown that failed by a verdict gives
    all judgements of its test again. Empty for any other report, for a test that runs again, and for one without a planned judgement.
    """
    is_last = report.when == "call" or (report.when == "setup" and not report.passed)
    is_over = is_last and report.outcome in _FINAL and not is_of_subtest(report)
    properties = _read_properties(carried)
    if not (is_over or _is_failed_by_verdict(report, properties)) or not properties.cell:
        return ()
    error = _error_text(report, properties) or _crash_message(report)
    blank = _blank_result(report.nodeid, properties.cell, result=_pytest_outcome(report, properties), error=error)
    without_verdict = replace(blank, is_invalid=any(error.get("is_invalid") for error in properties.errors))
    return _judgements_by_verdict(without_verdict, properties, _xfail_reason(report)) or (without_verdict,)


def is_of_subtest(report: pytest.TestReport) -> bool:
    """Return True for a report on a part of a test, which comes before that on the test itself."""
    return hasattr(report, "context")


def planned_cells(carried: Sequence[tuple[str, object]]) -> dict[str, dict[str, Any]]:
    """Return the cells of all selected tests, by node id, as :data:`PLANNED` has them; empty in most reports."""
    return {nodeid: cell for name, value in carried if name == PLANNED for nodeid, cell in json.loads(str(value)).items()}


def missing_judgement(nodeid: str, cell: Mapping[str, Any], report: pytest.TestReport | None) -> JudgementResult:
    """Return the error for a planned judgement that was never made.

    ``report`` is that of its test's failure, such as the end of a worker process; None if the session ended before the test did.
    """
    reason = "its test came to no end; --specdec-replay judges the same answers again"
    if report is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else report.longreprtext
    return _blank_result(nodeid, cell, result=PytestOutcome.ERROR, error=f"not made: {reason}")


def _blank_result(nodeid: str, cell: Mapping[str, Any], *, result: PytestOutcome, error: str) -> JudgementResult:
    """Return the judgement of a test that ended without a verdict."""
    pair, workload, family, replay = cell["pair"], cell["workload"], Family(cell["family"]), cell["replay"]
    return JudgementResult(nodeid=nodeid, pair=pair, workload=workload, family=family, result=result, error=error, replay=replay)


def repeated_error(carried: Sequence[tuple[str, object]]) -> str:
    """Return the kind of an error that another test has shown in full; empty for any other."""
    return next((str(error["repeats"]) for error in _read_properties(carried).errors if "repeats" in error), "")


def left_out_judgements(carried: Sequence[tuple[str, object]]) -> set[tuple[str, str, str]]:
    """Return pair, reason and name of each judgement that was left out.

    The plan of the run does not have it, as at a depth that leaves its workload out, so that its test was skipped. ``carried`` are the
    properties of that test's report. A name has family and workload, as in ``greedy of chat``.
    """
    values = [json.loads(str(value)) for name, value in carried if name == LEFT_OUT]
    return {(str(value["pair"]), str(value["why"]), str(value["what"])) for value in values}


def left_out_notes(reasons: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return a note per reason for leaving out judgements.

    It lists their names. ``reasons`` are pairs of reason and name: what :func:`left_out_judgements` returns, without the variant's pair.
    """
    by_reason: dict[str, list[str]] = {}
    for why, what in sorted(reasons):
        by_reason.setdefault(why, []).append(what)
    return tuple(f"{why}: {', '.join(names)}" for why, names in by_reason.items())


def _read_properties(carried: Sequence[tuple[str, object]]) -> _Properties:
    """Return the decoded JSON of the test's last run.

    That of earlier runs, as pytest-rerunfailures makes them, comes before the last cell.
    """
    cell: dict[str, Any] = {}
    errors: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    for name, value in carried:
        if name == CELL:
            cell, errors, verdicts = json.loads(str(value)), [], []
        elif name == ERROR:
            errors.append(json.loads(str(value)))
        elif name == VERDICT:
            verdicts.append(json.loads(str(value)))
    return _Properties(cell=cell, errors=tuple(errors), verdicts=tuple(verdicts))


def _pytest_outcome(report: pytest.TestReport, properties: _Properties) -> PytestOutcome:
    """Return pytest's outcome of the test, but ERROR for a failure without a failed check.

    Such are a failed setup, an unchecked verdict and an exception of the test itself. An expected failure (xfail) counts as skipped,
    as in pytest's own reports.
    """
    if report.failed and (report.when == "setup" or properties.errors or not _is_failed_check(report)):
        return PytestOutcome.ERROR
    return PytestOutcome(report.outcome)


def _error_text(report: pytest.TestReport, properties: _Properties) -> str:
    """Return the reason for a missing verdict; empty if none is known.

    It is the error that the test attached to its report, pytest's reason for skipping the test, or the text of a failed setup or of an
    unexpected pass.
    """
    if properties.errors:
        return str(properties.errors[-1]["text"])
    if report.skipped and not properties.verdicts:
        return _skip_reason(report)
    return report.longreprtext if (report.when == "setup" and report.failed) or _is_unexpected_pass(report) else ""


def _is_failed_by_verdict(report: pytest.TestReport, properties: _Properties) -> bool:
    """Return True for a teardown in which a fixture checked a verdict that failed."""
    if report.when != "teardown" or not report.failed or not properties.verdicts:
        return False
    return PytestOutcome(properties.verdicts[-1]["result"]) is PytestOutcome.FAILED


def _crash_message(report: pytest.TestReport) -> str:
    """Return the message of a test's own failure; empty without one."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.when != "call" or not report.failed or crash is None:
        return ""
    return f"{'its own check failed' if _is_failed_check(report) else 'its test failed by itself'}: {crash.message}"


def _is_failed_check(report: pytest.TestReport) -> bool:
    """Return True if a failed test may have failed by a check.

    A check is an assertion, or ``pytest.fail`` other than that of pytest-timeout. Without pytest's message any failure may be one, except
    the pass of a test that a strict xfail mark expects to fail.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return not _is_unexpected_pass(report)
    return crash.message.startswith(_CHECKS) and not crash.message.startswith("Failed: Timeout")


def _skip_reason(report: pytest.TestReport) -> str:
    """Return pytest's reason for a skipped test, without its prefix."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")


def _xfail_reason(report: pytest.TestReport) -> str:
    """Return the reason of a test's expected failure, in the form of a waiver.

    The form is ``xfail: REASON``. The reason is given too if a test passed in spite of a strict xfail mark; empty for any other outcome.
    """
    if _is_unexpected_pass(report):
        reason = report.longreprtext.removeprefix(_XPASS).strip()
    elif report.skipped and hasattr(report, "wasxfail"):
        reason = report.wasxfail
    else:
        return ""
    return f"xfail: {reason}" if reason else "xfail"


def _is_unexpected_pass(report: pytest.TestReport) -> bool:
    """Return True for a test that passed in spite of a strict xfail mark."""
    return report.failed and report.longreprtext.startswith(_XPASS)


def _judgements_by_verdict(without_verdict: JudgementResult, properties: _Properties, xfail: str) -> tuple[JudgementResult, ...]:
    """Return a judgement per verdict of a test.

    Each has the outcome that the check gave its verdict, apart from the last. ``without_verdict`` has the outcome of the test itself, and
    ``xfail`` the reason for which a failure is expected, empty if none is. The first case that holds decides on the last judgement:

    - It was waived by the config, which pytest reports as skipped: it stays WAIVED.
    - A failure is expected, and it is a fault of the engine: it becomes WAIVED.
    - A failure is expected, and the test passed, which a strict mark reports as failed: it becomes FAILED, as the mark is not needed.
    - The test passed or was skipped: it gets that outcome.
    - The test failed, but none of its verdicts did: ``without_verdict`` takes its place.
    """
    is_broken = without_verdict.result in {PytestOutcome.FAILED, PytestOutcome.ERROR}
    blank = replace(without_verdict, error="" if is_broken else without_verdict.error)
    results = [
        replace(blank, verdict=codec.decode(Verdict, entry["verdict"]), result=PytestOutcome(entry["result"]), waiver=entry["waiver"])
        for entry in properties.verdicts
    ]
    if results and results[-1].result is PytestOutcome.WAIVED and without_verdict.result is PytestOutcome.SKIPPED:
        return tuple(results)
    if results and xfail and results[-1].has_fault:
        results[-1] = replace(results[-1], result=PytestOutcome.WAIVED, waiver=xfail)
    elif results and xfail and is_broken:
        results[-1] = replace(results[-1], result=PytestOutcome.FAILED, waiver=xfail)
    elif results and not is_broken:
        results[-1] = replace(results[-1], result=without_verdict.result)
    elif results and all(j.result is not PytestOutcome.FAILED for j in results):
        results[-1] = without_verdict
    return tuple(results)
