"""Judgements on their way from a test, maybe in a worker, to the summary: JSON in properties of pytest's test reports.

A judgement is what a test comes to: pytest's outcome, and a verdict on a speculative server's answers to a workload, by one family of
checks. It is due if the run's plan expects it. Reports carry due judgements, verdicts that the test checked, and errors of this plugin.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.files import codec
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Family  # noqa: TC001 - the codec resolves the annotation at run time
from pytest_specdec.report.run import JudgementResult, PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    import pytest

    from pytest_specdec.model.workload import JSON

DUE = "specdec.due"
"""The :class:`DueJudgement` of the test."""
ERROR = "specdec.error"
LEFT_OUT = "specdec.left_out"
"""A test without a planned judgement, and the reason."""
PLANNED = "specdec.planned"
"""By node id, the due judgements of all selected tests that have one: on the first such test of a process."""
VERDICT = "specdec.verdict"
_CARRIERS = frozenset({DUE, ERROR, LEFT_OUT, PLANNED, VERDICT})
"""Properties that carry JSON; they reach no JUnit file."""
_FINAL = frozenset[str]({"passed", "failed", "skipped"})
"""Outcomes of pytest's own: plugins add others, such as ``rerun`` of a test that runs again."""
_XPASS = "[XPASS(strict)]"
"""Begins pytest's text on a test that passed in spite of a strict xfail mark."""
_CHECKS = ("AssertionError", "assert", "Failed: ")
"""How the messages of failed checks begin; those of other exceptions have the exception's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJudgement:
    """A judgement expected of a selected test, by its plan."""

    pair: str
    workload: str
    family: Family
    replay: str
    """The command that judges the same answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutJudgement:
    """A judgement left out of the plan; its test is skipped."""

    pair: str
    why: str
    what: str
    """Family and workload: ``greedy of chat``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Properties:
    """What a test's properties carry."""

    due: DueJudgement | None
    """None for a test that the plan leaves out."""
    errors: tuple[dict[str, Any], ...]
    verdicts: tuple[dict[str, Any], ...]


def attach(item: pytest.Item, name: str, value: JSON) -> None:
    """Attach ``value`` to the report of the test."""
    item.user_properties.append((name, json.dumps(value)))


def detach(report: pytest.TestReport) -> list[tuple[str, object]]:
    """Remove and return the properties added by :func:`attach`."""
    carried = [(name, value) for name, value in report.user_properties if name in _CARRIERS]
    if carried:
        report.user_properties = [(name, value) for name, value in report.user_properties if name not in _CARRIERS]
    return carried


def judgements(report: pytest.TestReport, carried: Sequence[tuple[str, object]]) -> tuple[JudgementResult, ...]:
    """Return the judgements in one report of a test, one per verdict.

    ``carried`` are the report's properties, removed by :func:`detach`. A test that ended without a verdict gives one judgement with its
    error. Empty for a report that does not end its test, and for a test without a due judgement. A teardown has the verdicts of the whole
    test: if a fixture's check failed there, all judgements are returned again, after those of the call.
    """
    properties = _read_properties(carried)
    if properties.due is None:
        return ()
    if not (_is_end_of_test(report) or _is_teardown_failed_by_verdict(report, properties)):
        return ()
    text = _error_text(report, properties) or _crash_message(report)
    judgement = _judgement_without_verdict(report.nodeid, properties.due, result=_pytest_outcome(report, properties), error=text)
    of_test = replace(judgement, is_invalid=any(error.get("is_invalid") for error in properties.errors))
    return _judgements_by_verdict(of_test, properties.verdicts, _xfail_reason(report)) or (of_test,)


def _is_end_of_test(report: pytest.TestReport) -> bool:
    """Return True for the report of a call, or of a setup without one.

    False if the test runs again, since its outcome is then none of pytest's own, and for a report on a subtest.
    """
    is_last_step = report.when == "call" or (report.when == "setup" and not report.passed)
    return is_last_step and report.outcome in _FINAL and not is_of_subtest(report)


def is_of_subtest(report: pytest.TestReport) -> bool:
    """Return True for a report on a part of a test, which comes before that on the test itself."""
    return hasattr(report, "context")


def due_judgements(carried: Sequence[tuple[str, object]]) -> dict[str, DueJudgement]:
    """Return the due judgements of all selected tests, by node id.

    One report of a process carries them, as :data:`PLANNED`; empty for any other.
    """
    planned = [json.loads(str(value)) for name, value in carried if name == PLANNED]
    return {nodeid: codec.decode(DueJudgement, due) for by_nodeid in planned for nodeid, due in by_nodeid.items()}


def missing_judgement(nodeid: str, due: DueJudgement, report: pytest.TestReport | None) -> JudgementResult:
    """Return the judgement, an error, for a due one that was never made.

    ``due`` is that of the test ``nodeid``. ``report`` is on the test's failure, such as the end of its worker process; None if the session
    ended before the test did. Its crash, where pytest has one, gives a shorter message than its whole text.
    """
    reason = "its test came to no end; --specdec-replay judges the same answers again"
    if report is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else report.longreprtext
    return _judgement_without_verdict(nodeid, due, result=PytestOutcome.ERROR, error=f"not made: {reason}")


def _judgement_without_verdict(nodeid: str, due: DueJudgement, *, result: PytestOutcome, error: str) -> JudgementResult:
    """Return the judgement of a test that ended without a verdict."""
    return JudgementResult(
        nodeid=nodeid, pair=due.pair, workload=due.workload, family=due.family, result=result, error=error, replay=due.replay
    )


def repeated_error(carried: Sequence[tuple[str, object]]) -> str:
    """Return the kind of an error that another test has shown in full; empty for any other."""
    return next((str(error["repeats"]) for error in _read_properties(carried).errors if "repeats" in error), "")


def left_out_judgements(carried: Sequence[tuple[str, object]]) -> set[LeftOutJudgement]:
    """Return the judgements left out of the run's plan.

    Their tests are skipped, as at a depth without their workload. ``carried`` are the properties of one test's report.
    """
    return {codec.decode(LeftOutJudgement, json.loads(str(value))) for name, value in carried if name == LEFT_OUT}


def left_out_notes(left_out: Iterable[LeftOutJudgement]) -> tuple[str, ...]:
    """Return a note per reason for leaving out judgements.

    It lists family and workload of each of them, once for all pairs of a baseline and a speculative variant.
    """
    by_reason: dict[str, list[str]] = {}
    for why, what in sorted({(judgement.why, judgement.what) for judgement in left_out}):
        by_reason.setdefault(why, []).append(what)
    return tuple(f"{why}: {', '.join(names)}" for why, names in by_reason.items())


def _read_properties(carried: Sequence[tuple[str, object]]) -> _Properties:
    """Return the properties of the test's last run, decoded.

    Every run of a test, as pytest-rerunfailures repeats it, begins with its due judgement. What comes before the last one is dropped.
    """
    due: DueJudgement | None = None
    errors: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    for name, value in carried:
        if name == DUE:
            due, errors, verdicts = codec.decode(DueJudgement, json.loads(str(value))), [], []
        elif name == ERROR:
            errors.append(json.loads(str(value)))
        elif name == VERDICT:
            verdicts.append(json.loads(str(value)))
    return _Properties(due=due, errors=tuple(errors), verdicts=tuple(verdicts))


def _pytest_outcome(report: pytest.TestReport, properties: _Properties) -> PytestOutcome:
    """Return pytest's outcome of the test, with ERROR for some failures.

    ERROR is for those without a failed check: a failed setup, an error of this plugin such as an unchecked verdict, and an exception of the
    test itself. An expected failure (xfail) counts as skipped, as in pytest's own reports.
    """
    if report.failed and (report.when == "setup" or properties.errors or not _is_failed_check(report)):
        return PytestOutcome.ERROR
    return PytestOutcome(report.outcome)


def _error_text(report: pytest.TestReport, properties: _Properties) -> str:
    """Return the reason for a missing verdict; empty if none is known.

    It is the last error that was attached to the report, else pytest's reason for skipping a test without verdicts, else the text of a
    failed setup or of an unexpected pass.
    """
    if properties.errors:
        return str(properties.errors[-1]["text"])
    if report.skipped and not properties.verdicts:
        return _skip_reason(report)
    return report.longreprtext if (report.when == "setup" and report.failed) or _is_unexpected_pass(report) else ""


def _is_teardown_failed_by_verdict(report: pytest.TestReport, properties: _Properties) -> bool:
    """Return True for a teardown in which a fixture checked a verdict that failed."""
    if report.when != "teardown" or not report.failed or not properties.verdicts:
        return False
    return PytestOutcome(properties.verdicts[-1]["result"]) is PytestOutcome.FAILED


def _crash_message(report: pytest.TestReport) -> str:
    """Return the message of a failed call; empty for any other report."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.when != "call" or not report.failed or crash is None:
        return ""
    # A check is an assertion or ``pytest.fail``. With any other exception the test fails by itself.
    return f"{'its own check failed' if _is_failed_check(report) else 'its test failed by itself'}: {crash.message}"


def _is_failed_check(report: pytest.TestReport) -> bool:
    """Return True if a failed test may have failed by a check.

    A check is an assertion, or ``pytest.fail`` other than that of pytest-timeout; their messages begin in certain ways (``_CHECKS``). A
    failure without a message may be one too, but the unexpected pass of a test with a strict xfail mark is none.
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

    A waiver is a config's statement of a known failure; here it is ``xfail: REASON``. The reason is given too if a test passed in spite of
    a strict xfail mark; empty for any other outcome.
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


def _judgements_by_verdict(of_test: JudgementResult, verdicts: Sequence[Mapping[str, Any]], xfail: str) -> tuple[JudgementResult, ...]:
    """Return a judgement per verdict of a test; () without verdicts.

    ``verdicts`` are the properties that the test's checks attached. A judgement has the outcome that the check gave its verdict, but the
    last one depends on the outcome of the test too (:func:`_last_judgement`). ``of_test`` has that outcome and the test's error, and
    ``xfail`` is the reason for which a failure is expected, empty if none is.
    """
    if not verdicts:
        return ()
    # The error of a red test is about the test itself: only the last judgement may have it, as ``of_test``.
    common = replace(of_test, error="") if _is_red(of_test) else of_test
    results = [
        replace(common, verdict=codec.decode(Verdict, entry["verdict"]), result=PytestOutcome(entry["result"]), waiver=entry["waiver"])
        for entry in verdicts
    ]
    has_failed_verdict = any(result.result is PytestOutcome.FAILED for result in results)
    return (*results[:-1], _last_judgement(results[-1], of_test, xfail, has_failed_verdict=has_failed_verdict))


def _last_judgement(last: JudgementResult, test: JudgementResult, xfail: str, *, has_failed_verdict: bool) -> JudgementResult:
    """Return the judgement by a test's last verdict, given the test's outcome.

    ``last`` has the outcome that the check gave this verdict, and ``test`` that of the test. ``xfail`` is the reason for which a failure is
    expected, empty if none is; ``has_failed_verdict`` says whether a check failed the test by any of its verdicts.
    """
    if last.result is PytestOutcome.WAIVED and test.result is PytestOutcome.SKIPPED:
        return last  # pytest reports a failure waived by the config as skipped
    if xfail and last.has_fault:  # the engine failed, as the mark expects
        return replace(last, result=PytestOutcome.WAIVED, waiver=xfail)
    if xfail and _is_red(test):  # of red tests only one that passed under a strict mark has an xfail reason: the mark is not needed
        return replace(last, result=PytestOutcome.FAILED, waiver=xfail)
    if not _is_red(test):
        return replace(last, result=test.result)
    # A test that failed by none of its verdicts failed by itself, and says nothing of the engine.
    return last if has_failed_verdict else test


def _is_red(test: JudgementResult) -> bool:
    """Return True for a test that failed or ended in an error."""
    return test.result in {PytestOutcome.FAILED, PytestOutcome.ERROR}
