"""From a verdict to a pytest outcome: the table of DESIGN, and nothing else decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.report.run import Result

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Workload

__all__ = ["UNSETTLED", "result"]

EQUIVALENCE = frozenset({Family.GREEDY, Family.SAMPLING, Family.SEEDS, Family.LOGPROBS})
"""Families that ask for the baseline's distribution: under ``lossy: true`` they report and do not gate."""

UNSETTLED = frozenset({Outcome.INCONCLUSIVE, Outcome.SUSPICIOUS})
"""Verdicts that more answers settle. Suspicion blames nobody, so it raises no alarm, and no run that ends with it is green at depth."""

SPEED = "speed"
"""Under ``require`` a speed that no gate could decide on fails."""

_FIXED = {
    Outcome.PASS: Result.PASSED,
    Outcome.FAIL: Result.FAILED,
    Outcome.NOT_SPECULATING: Result.FAILED,
    Outcome.INVALID: Result.FAILED,
}


def result(verdict: Verdict, workload: Workload, depth: Depth, config: Config) -> Result:
    """Return what pytest makes of a verdict on ``workload`` at ``depth`` under ``config``."""
    if verdict.outcome in UNSETTLED:
        excused = depth is Depth.SMOKE or verdict.family in config.allow_inconclusive
        return Result.SKIPPED if excused else Result.FAILED
    if verdict.outcome is Outcome.FAIL and config.lossy and verdict.family in EQUIVALENCE:
        return Result.SKIPPED
    if verdict.outcome is Outcome.NOT_DECIDED:
        return Result.FAILED if SPEED in config.require else Result.PASSED
    if verdict.outcome is Outcome.REFUSED:
        return Result.FAILED if _features(workload).intersection(config.require) else Result.SKIPPED
    return _FIXED[verdict.outcome]


def _features(workload: Workload) -> frozenset[str]:
    """Return what a workload's requests ask for, by the names that a config requires: body fields, and kinds of response format."""
    bodies = [request.body for request in workload.requests]
    formats = [body["response_format"] for body in bodies if "response_format" in body]
    return frozenset(key for body in bodies for key in body) | {
        str(form["type"]) for form in formats if isinstance(form, Mapping) and "type" in form
    }
