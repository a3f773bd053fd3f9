"""From the reports of tests, maybe run in workers, to judgements."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.files import codec
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.report.run import Judgement, Result
from pytest_specdec.summary import CELL, ERROR, LEFT_OUT, VERDICT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    import pytest

__all__ = ["judgements", "left_out", "notes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """The JSON that a test's properties carry."""

    cell: dict[str, Any]
    errors: tuple[dict[str, Any], ...]
    verdicts: tuple[dict[str, Any], ...]


def judgements(report: pytest.TestReport, properties: Sequence[tuple[str, object]]) -> tuple[Judgement, ...]:
    """Return what one report of a test of ours says; nothing before the test's last word."""
    is_last = report.when == "call" or (report.when == "setup" and not report.passed)
    said = _said(properties)
    if not is_last or not said.cell:
        return ()
    bare = Judgement(
        nodeid=report.nodeid,
        pair=said.cell["pair"],
        workload=said.cell["workload"],
        family=Family(said.cell["family"]),
        result=_result(report),
        error=_error(report, said),
    )
    return _with_verdicts(bare, said) or (bare,)


def left_out(properties: Sequence[tuple[str, object]]) -> set[tuple[str, str]]:
    """Return why and what, where a test of ours had nothing planned to judge."""
    found = [json.loads(str(value)) for name, value in properties if name == LEFT_OUT]
    return {(str(one["why"]), str(one["what"])) for one in found}


def notes(left: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return a sentence for each reason that something was left out for."""
    by_reason: dict[str, list[str]] = {}
    for why, what in sorted(left):
        by_reason.setdefault(why, []).append(what)
    return tuple(f"{why}: {', '.join(names)}" for why, names in by_reason.items())


def _said(properties: Sequence[tuple[str, object]]) -> _Said:
    by_name: dict[str, list[dict[str, Any]]] = {CELL: [{}], ERROR: [], LEFT_OUT: [], VERDICT: []}
    for name, value in properties:
        by_name[name].append(json.loads(str(value)))
    return _Said(cell=by_name[CELL][-1], errors=tuple(by_name[ERROR]), verdicts=tuple(by_name[VERDICT]))


def _result(report: pytest.TestReport) -> Result:
    """Return what pytest made of the test; an expected failure is reported as skipped."""
    if report.when == "setup" and report.failed:
        return Result.ERROR
    return Result(report.outcome)


def _error(report: pytest.TestReport, said: _Said) -> str:
    if said.errors:
        return str(said.errors[-1]["text"])
    if report.skipped and not said.verdicts:
        return _skipped(report)
    return report.longreprtext if report.when == "setup" and report.failed else ""


def _skipped(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")


def _with_verdicts(bare: Judgement, said: _Said) -> tuple[Judgement, ...]:
    """Return a judgement per verdict; what failed a test behind its passing verdicts is charged to the last of them."""
    found = [replace(bare, verdict=codec.decode(Verdict, v["verdict"]), result=Result(v["result"])) for v in said.verdicts]
    if found and (bare.result is not Result.FAILED or all(j.result is not Result.FAILED for j in found)):
        found[-1] = replace(found[-1], result=bare.result)
    return tuple(found)
