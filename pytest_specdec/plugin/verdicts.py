"""Verdicts in pytest: what a test is given, and the outcome that its verdict becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import captured as stored
from pytest_specdec.files import codec
from pytest_specdec.judge import registry
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth
from pytest_specdec.plugin import marker, reporting, run_state
from pytest_specdec.plugin.reporting import CELL, ERROR, LEFT_OUT, VERDICT
from pytest_specdec.report import failure, junit
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.families import FamilyRow
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.plan import Judgement
    from pytest_specdec.model.workload import JSON, Workload
    from pytest_specdec.plugin.marker import SpecdecMark
    from pytest_specdec.plugin.run_state import SessionState

__all__ = ["UNSETTLED", "captured", "check", "check_all_told", "result_of"]

UNSETTLED = frozenset({Outcome.INCONCLUSIVE, Outcome.SUSPICIOUS})
"""Verdicts that more answers settle. Suspicion blames nobody, so it raises no alarm, and no run that ends with it is green at depth."""

SPEED = "speed"
"""Under ``require`` a speed that no gate could decide on fails."""

_FIXED = {
    Outcome.PASS: PytestOutcome.PASSED,
    Outcome.FAIL: PytestOutcome.FAILED,
    Outcome.NOT_SPECULATING: PytestOutcome.FAILED,
    Outcome.INVALID: PytestOutcome.FAILED,
}


def result_of(verdict: Verdict, workload: Workload, depth: Depth, config: Config, row: FamilyRow) -> PytestOutcome:
    """Return what pytest makes of a verdict on ``workload`` at ``depth`` under ``config``, in the family of ``row``."""
    if verdict.outcome in UNSETTLED:
        excused = depth is Depth.SMOKE or verdict.family in config.allow_inconclusive
        return PytestOutcome.SKIPPED if excused else PytestOutcome.FAILED
    if verdict.outcome is Outcome.FAIL and config.lossy and row.lossy:
        return PytestOutcome.SKIPPED
    if verdict.outcome is Outcome.NOT_DECIDED:
        return PytestOutcome.FAILED if SPEED in config.require else PytestOutcome.PASSED
    if verdict.outcome is Outcome.REFUSED:
        return PytestOutcome.FAILED if _features(workload).intersection(config.require) else PytestOutcome.SKIPPED
    return _FIXED[verdict.outcome]


def _features(workload: Workload) -> frozenset[str]:
    """Return what a workload's requests ask for, by the names that a config requires: body fields, and kinds of response format."""
    bodies = [request.body for request in workload.requests]
    formats = [body["response_format"] for body in bodies if "response_format" in body]
    return frozenset(key for body in bodies for key in body) | {
        str(form["type"]) for form in formats if isinstance(form, Mapping) and "type" in form
    }


TOLD = pytest.StashKey[list[Verdict]]()
"""The verdicts that judges came to on what a test was given."""
CHECKED = pytest.StashKey[bool]()
"""Whether it handed one over."""


def captured(item: pytest.Item, pair: Pair) -> Captured:
    """Return what the mark's workload brought from ``pair``; a setup error when it is missing or the control itself fails."""
    found, wanted = run_state.get(item.config), marker.read(item)
    judgement = found.judgement(pair.name, wanted.workload.name, wanted.family)
    if judgement is None:
        return _leave_out(item, found, wanted)
    _note(item, CELL, {"pair": pair.name, "workload": wanted.workload.name, "family": wanted.family.value})
    kept = _read(item, found, judgement)
    _ask_control(item, found, kept)
    item.stash[TOLD] = []
    return replace(kept, told=item.stash[TOLD].append)


def _leave_out(item: pytest.Item, found: SessionState, wanted: SpecdecMark) -> Captured:
    """Skip what the plan holds no judgement of: its depth asks nothing of the workload, or the stored run was begun with other tests."""
    depth, name = found.plan.depth, wanted.workload.name
    if found.settings.replay is None or wanted.workload.take.get(depth) == 0:
        why, reason = f"left out at {depth} depth", f"{name} asks for more than this depth allows, so it is left out at {depth} depth"
    else:
        run = run_state.shown(found.root, item.config)
        why, reason = "not in this run, so left out", f"the run {run} holds no {wanted.family} judgement of {name}: it was begun without"
    _note(item, LEFT_OUT, {"why": why, "what": f"{wanted.family} of {name}"})
    pytest.skip(reason)


def _read(item: pytest.Item, found: SessionState, judgement: Judgement) -> Captured:
    try:
        return stored.read(found.directory, found.plan, judgement, found.gates, found.calibration)
    except RunError as error:
        missing = error
    return _refuse(item, found, "not captured", str(missing), cause=missing.found or str(missing))


def _ask_control(item: pytest.Item, found: SessionState, kept: Captured) -> None:
    """Judge the judge: on the control, where nothing speculates, it has to be content."""
    if kept.control is None or not kept.workload.scored:
        return
    outcome, text = _of_control(found, kept)
    if outcome is Outcome.FAIL:
        why = f"the control fails {kept.family} on {kept.workload.name}: the baseline does not agree with itself, so no variant is judged"
        _refuse(item, found, "invalid", f"{why}\n{text}")


def _of_control(found: SessionState, kept: Captured) -> tuple[Outcome, str]:
    """Return what the family's judge says of the control; it is the same for every pair. A family judged by its own tests has no judge."""
    key = (kept.workload.name, kept.family)
    if key not in found.controls:
        try:
            verdict = registry.judge_of(found.families[kept.family])(kept.as_control())
        except LookupError:
            return Outcome.PASS, ""
        found.controls[key] = (verdict.outcome, failure.evidence(verdict))
    return found.controls[key]


def _refuse(item: pytest.Item, found: SessionState, kind: str, text: str, *, cause: str = "") -> Captured:
    """End the setup with an error: in full the first time that its cause shows, by reference from then on."""
    text = "\n".join(map(printable, text.split("\n")))  # it may quote a server's log
    _note(item, ERROR, {"text": f"{kind}: {text}"})
    teller = found.told.setdefault(cause or text, item.nodeid)
    return pytest.fail(f"{kind}: {text}" if teller == item.nodeid else f"{kind}: see {teller}", pytrace=False)


def check(item: pytest.Item, verdict: Verdict) -> None:
    """Make a verdict this test's outcome."""
    __tracebackhide__ = True
    if not isinstance(verdict, Verdict):
        msg = f"specdec_check: expected a Verdict, as judge.greedy.judge(captured) returns; found {verdict!r}"
        raise TypeError(msg)
    item.stash[CHECKED] = True
    found = run_state.get(item.config)
    result = result_of(verdict, marker.read(item).workload, found.plan.depth, found.config, found.families[verdict.family])
    _note(item, VERDICT, {"verdict": codec.encode(verdict), "result": result.value})
    item.user_properties.extend(junit.properties(verdict))
    if item.config.get_verbosity() > 0:
        item.add_report_section("call", "specdec", failure.section(verdict))
    if result is PytestOutcome.SKIPPED:
        pytest.skip(failure.headline(verdict) + (f"; to settle it: {verdict.settle}" if verdict.settle else ""))
    if result is PytestOutcome.FAILED:
        pytest.fail(failure.short(verdict, reporting.replay_of(item, found.root)), pytrace=False)


def check_all_told(item: pytest.Item) -> None:
    """Fail a test that had a verdict and handed none over: it would be green whatever the judge found."""
    __tracebackhide__ = True
    told = item.stash.get(TOLD, [])
    if told and not item.stash.get(CHECKED, False):
        last = told[-1]
        what = f"a verdict nobody checked: {last.family} of {last.workload}, {last.outcome}"
        text = f"{what}\n  expected: the test to hand it over\n  remedy:   hand it to specdec_check, or check in suites/: check(verdict)"
        _note(item, ERROR, {"text": text})
        pytest.fail(text, pytrace=False)


def _note(item: pytest.Item, name: str, value: JSON) -> None:
    item.user_properties.append((name, json.dumps(value)))
