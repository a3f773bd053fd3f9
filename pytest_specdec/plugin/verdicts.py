"""Verdicts in pytest: what a test is given, and the outcome that its verdict becomes.

A test's mark names a workload and a family of checks, whose judge gives a verdict on a pair: the baseline and a variant, which speculates.
The control is the baseline booted again. It does not speculate, so that its failure is the setup's fault: the pair's verdict is invalid.
A judgement, planned before anything boots, is a verdict to come to. An arm is one of these servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

from pytest_specdec.errors import RunError, ScoreError
from pytest_specdec.files import captured as stored
from pytest_specdec.files import codec
from pytest_specdec.judge import registry
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Route
from pytest_specdec.plugin import commands, marker, run_state, waivers
from pytest_specdec.plugin.judgements import DUE, ERROR, LEFT_OUT, PLANNED, VERDICT, DueJudgement, LeftOutJudgement, attach
from pytest_specdec.report import failure, junit
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.families import FamilyRow
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.plan import Judgement
    from pytest_specdec.model.workload import Workload
    from pytest_specdec.plugin.marker import SpecdecMark
    from pytest_specdec.plugin.run_state import RunState

_Read = TypeVar("_Read")
_INVALID = "invalid"
"""Begins the error of a test whose baseline cannot judge."""

UNSETTLED = frozenset({Outcome.INCONCLUSIVE, Outcome.SUSPICIOUS})
"""Verdicts that more answers settle. They blame no engine, yet fail their test, unless smoke depth or the config excuses it."""

SPEED = "speed"
"""Under ``require`` a speed that no gate could decide on fails."""
_CHAT_LOGPROBS = "chat_logprobs"
_REFUSED = "refused"
"""What an arm does with a parameter, in :attr:`Verdict.parameters`."""

_FIXED = {
    Outcome.PASS: PytestOutcome.PASSED,
    Outcome.FAIL: PytestOutcome.FAILED,
    Outcome.NOT_SPECULATING: PytestOutcome.FAILED,
    Outcome.INVALID: PytestOutcome.FAILED,
}


def result_of(verdict: Verdict, workload: Workload, depth: Depth, config: Config, row: FamilyRow) -> PytestOutcome:
    """Return pytest's outcome for a verdict on ``workload`` at ``depth``.

    A refusal, a server's answer that it lacks a feature, fails if ``config`` requires the feature, also in a verdict that passes because
    all arms refuse it alike. Any other refusal is skipped. An inconclusive or suspicious verdict fails; at smoke depth, which sends few
    requests, or if the config allows it, it is skipped. A failure under a lossy config is skipped if the verdict's family (``row``) asks
    for the baseline's distribution, which a lossy mode changes. An undecided speed passes unless the config requires ``speed``. ``_FIXED``
    has the results of all other outcomes.
    """
    if verdict.outcome in {Outcome.PASS, Outcome.REFUSED} and _refused_features(verdict, workload).intersection(config.require):
        return PytestOutcome.FAILED
    if verdict.outcome in UNSETTLED:
        excused = depth is Depth.SMOKE or verdict.family in config.allow_inconclusive
        return PytestOutcome.SKIPPED if excused else PytestOutcome.FAILED
    if verdict.outcome is Outcome.FAIL and config.lossy and row.lossy:
        return PytestOutcome.SKIPPED
    if verdict.outcome is Outcome.NOT_DECIDED:
        return PytestOutcome.FAILED if SPEED in config.require else PytestOutcome.PASSED
    if verdict.outcome is Outcome.REFUSED:
        return PytestOutcome.SKIPPED
    return _FIXED[verdict.outcome]


def _refused_features(verdict: Verdict, workload: Workload) -> frozenset[str]:
    """Return the features that an arm refused.

    They are those that the verdict lists for some arm (``parameters``), or else, if it is REFUSED, all that the workload uses.
    """
    if verdict.parameters:
        return frozenset(name for effects in verdict.parameters.values() for name, effect in effects.items() if effect == _REFUSED)
    return _used_features(workload) if verdict.outcome is Outcome.REFUSED else frozenset()


def _used_features(workload: Workload) -> frozenset[str]:
    """Return the features used by a workload's requests, by the names under ``require``.

    The names are body fields and kinds of response format. Log-probabilities of chat answers have a name of their own too,
    ``chat_logprobs``: a server may serve them on one route only.
    """
    if any(request.route is Route.RESPONSES for request in workload.requests):
        return frozenset({Route.RESPONSES.value})  # nothing else: such a workload is refused only if the route is missing
    bodies = [request.body for request in workload.requests]
    formats = [body["response_format"] for body in bodies if "response_format" in body]
    chat_logprobs = {_CHAT_LOGPROBS for r in workload.requests if r.route is Route.CHAT and "logprobs" in r.body}
    kinds = {str(form["type"]) for form in formats if isinstance(form, Mapping) and "type" in form}
    return frozenset(key for body in bodies for key in body) | kinds | chat_logprobs


JUDGED = pytest.StashKey[list[Verdict]]()
"""The verdicts that judges returned in a test."""
CHECKED = pytest.StashKey[bool]()
"""Whether the test passed a verdict to ``specdec_check``."""

DUE_JUDGEMENTS = pytest.StashKey[dict[str, DueJudgement]]()
"""The due judgements of all selected tests that have one, by node id, until the first of these tests hands them over."""


def read_captured(item: pytest.Item, pair: Pair) -> Captured:
    """Return the answers of ``pair`` to the workload of a test's mark.

    The test is skipped if the plan has no judgement for it. Its setup ends in an error if the answers are missing or, on a scored
    workload, if the control fails. Verdicts on the answers are recorded, so that :func:`require_check`
    notices an unchecked one.
    """
    run, judgement = run_state.get(item.config, marker.pair_name(item)), _planned_judgement(item, pair)
    captured = _read_or_refuse(item, run, lambda: _read_stored(run, judgement))
    if captured.control is not None and captured.workload.scored:
        _check_control(item, run, judgement, captured)
    return replace(captured, on_verdict=_record_verdicts(item))


def _read_stored(run: RunState, judgement: Judgement) -> Captured:
    return stored.read(run.directory, run.plan, judgement, run.gates, run.calibrations(judgement.pair), slo=run.config.slo)


def read_captured_run(item: pytest.Item, pair: Pair) -> CapturedRun:
    """Return the answers of ``pair`` to all workloads of the run.

    The test's setup ends in an error if the answers to the workload of its mark are missing, or if the control fails. Other missing
    workloads are listed in the result. Verdicts are recorded, so that :func:`require_check` notices an unchecked one.
    """
    run, judgement = run_state.get(item.config, marker.pair_name(item)), _planned_judgement(item, pair)
    captured_run = _read_or_refuse(item, run, lambda: stored.read_run(run.directory, run.plan, judgement))
    if captured_run.whole.control is not None:  # whole: the answers to all workloads as one
        _check_control(item, run, judgement, captured_run)
    return replace(captured_run, whole=replace(captured_run.whole, on_verdict=_record_verdicts(item)))


def _record_verdicts(item: pytest.Item) -> Callable[[Verdict], None]:
    """Return the function that records a judge's verdict in the test; none is recorded yet."""
    item.stash[JUDGED] = []
    return item.stash[JUDGED].append


def _planned_judgement(item: pytest.Item, pair: Pair) -> Judgement:
    """Return the planned judgement of a test and its pair.

    The test is skipped if the plan has none. Otherwise the judgement is attached to its report as due; the first such test of a process
    carries the due judgements of all tests too, so that the summary can name those never made.
    """
    run, mark = run_state.get(item.config, marker.pair_name(item)), marker.read(item)
    judgement = run.judgement(pair.name, mark.workload.name, mark.family)
    if judgement is None:
        return _skip_unplanned(item, run, mark)
    attach(item, DUE, codec.encode(due_judgement(item, run, mark)))
    if DUE_JUDGEMENTS in item.config.stash:  # once for each process: a worker that dies has handed them over by then
        attach(item, PLANNED, codec.encode(item.config.stash[DUE_JUDGEMENTS]))
        del item.config.stash[DUE_JUDGEMENTS]
    return judgement


def due_judgement(item: pytest.Item, run: RunState, mark: SpecdecMark) -> DueJudgement:
    """Return the judgement that a test has to come to."""
    replay = commands.replay_of(item, run.root)
    return DueJudgement(pair=marker.pair_name(item), workload=mark.workload.name, family=mark.family, replay=replay)


def _skip_unplanned(item: pytest.Item, run: RunState, mark: SpecdecMark) -> NoReturn:
    """Skip a test without a judgement in the plan, with the reason.

    Its workload is sent to no arm, or not at this depth, or the stored run was captured for other tests. What is sent to no arm and
    required by the config ends the setup as invalid.
    """
    depth, name = run.plan.depth, mark.workload.name
    takes_no_requests = mark.workload.take.get(depth) == 0  # take: the number of requests by depth
    is_captured_here = run.settings.replay is None  # all selected tests were planned for, but those left out by depth
    if name in run.plan.withheld:
        why, reason = run.plan.withheld[name], f"{name}: {run.plan.withheld[name]}"
        _refuse_if_required(item, run, mark, reason)
    elif is_captured_here or takes_no_requests:
        why, reason = f"left out at {depth} depth", f"{name} is left out at {depth} depth"
    else:
        path = commands.as_typed(run.root, item.config)
        why, reason = "not in this run, so left out", f"the run {path} has no {mark.family} judgement of {name}: its capture left it out"
    left_out = LeftOutJudgement(pair=marker.pair_name(item), why=why, what=f"{mark.family} of {name}")
    attach(item, LEFT_OUT, codec.encode(left_out))
    pytest.skip(reason)


def _refuse_if_required(item: pytest.Item, run: RunState, mark: SpecdecMark, reason: str) -> None:
    """End a test's setup as invalid if the config requires a feature of its workload, which is sent to no arm for ``reason``."""
    required = sorted(_used_features(mark.workload).intersection(run.config.require))
    if not required:
        return
    attach(item, DUE, codec.encode(due_judgement(item, run, mark)))  # without it the summary would not report the error
    names, name = ", ".join(required), mark.workload.name
    remedy = f"mend what was found, or take {names} out of `require`"
    text = f"the config requires {names}\n  found:    {reason}\n  expected: servers that {name} can be sent to\n  remedy:   {remedy}"
    _end_setup(item, run, _INVALID, text)


def _read_or_refuse(item: pytest.Item, run: RunState, read: Callable[[], _Read]) -> _Read:
    """Return the result of ``read``, or end the test's setup in an error.

    The error begins with ``invalid`` if stored scores are no distributions, since the baseline then cannot judge, and with
    ``not captured`` for any other data that is missing or unreadable. Tests for which the same was found show it in full once.
    """
    try:
        return read()
    except RunError as error:
        missing = error
    # Outside the except block, or pytest would show the cause a second time.
    kind = _INVALID if isinstance(missing, ScoreError) else "not captured"
    return _end_setup(item, run, kind, str(missing), cause=missing.found or str(missing))


def _check_control(item: pytest.Item, run: RunState, judgement: Judgement, captured: Captured | CapturedRun) -> None:
    """End the test's setup as invalid if the control fails.

    ``captured`` is what the judge gets for ``judgement``: the answers to its workload, or to all workloads of the run.
    """
    outcome, text = _control_verdict(run, judgement, captured)
    if outcome is Outcome.FAIL:
        why = f"the control fails {judgement.family} on {judgement.workload}: no variant can be judged by such a baseline"
        _end_setup(item, run, _INVALID, f"{why}\n{text}")


def _control_verdict(run: RunState, judgement: Judgement, captured: Captured | CapturedRun) -> tuple[Outcome, str]:
    """Return outcome and evidence of the family's judge on the control.

    The judge gets ``captured`` with the control in the variant's place. It is called once for a workload and family, since the control is
    the same for every pair.
    """
    key = (judgement.workload, judgement.family)
    if key not in run.controls:
        try:
            judge = registry.judge_of(run.families[judgement.family])
        except LookupError:  # the family has no judge, since its tests decide by their own asserts
            return Outcome.PASS, ""
        verdict = judge(captured.as_control())
        run.controls[key] = (verdict.outcome, failure.evidence(verdict))
    return run.controls[key]


def _end_setup(item: pytest.Item, run: RunState, kind: str, text: str, *, cause: str = "") -> NoReturn:
    """End a test's setup with an error, shown in full once.

    ``kind`` begins the error. The first test with an error of this ``cause``, by default the ``text``, shows it in full, and later
    tests refer to that test.
    """
    text = "\n".join(map(printable, text.split("\n")))  # it may quote a server's log
    first_test = run.reported.setdefault(cause or text, item.nodeid)
    repeats = {} if first_test == item.nodeid else {"repeats": kind}
    attach(item, ERROR, {"text": f"{kind}: {text}", "is_invalid": kind == _INVALID, **repeats})
    pytest.fail(f"{kind}: {text}" if first_test == item.nodeid else f"{kind}: see {first_test}", pytrace=False)


def check(item: pytest.Item, verdict: Verdict) -> None:
    """Turn a verdict into the outcome of the test.

    The outcome is that of :func:`result_of`, unless a waiver, by which the config excuses a known failure, changes it. Verdict and outcome
    are attached to the test's report, for the summary and a JUnit file. The test goes on after a pass; otherwise it is skipped, failed or,
    if waived, marked as an expected failure. Raises TypeError if ``verdict`` is no Verdict.
    """
    __tracebackhide__ = True
    if not isinstance(verdict, Verdict):
        msg = f"specdec_check: expected a Verdict, as judge.greedy.judge(captured) returns; found {verdict!r}"
        raise TypeError(msg)
    item.stash[CHECKED] = True
    run, workload = run_state.get(item.config, marker.pair_name(item)), marker.read(item).workload
    depth, day = run.plan.depth, run.settings.day
    result = result_of(verdict, workload, depth, run.config, run.families[verdict.family])
    waived = waivers.apply_waivers(run.config.waivers, verdict, result, nodeid=item.nodeid, depth=depth, day=day)
    attach(item, VERDICT, {"verdict": codec.encode(verdict), "result": waived.result.value, "waiver": waived.waiver})
    item.user_properties.extend((*junit.properties(verdict), *((("specdec.waiver", waived.waiver),) if waived.waiver else ())))
    if item.config.get_verbosity() > 0:
        item.add_report_section("call", "specdec", failure.section(verdict))
    if waived.result is PytestOutcome.WAIVED:
        pytest.xfail(f"{failure.headline(verdict)}; known: {waived.waiver}")
    if waived.result is PytestOutcome.SKIPPED:
        pytest.skip(failure.headline(verdict) + (f"; to settle it: {verdict.settle}" if verdict.settle else ""))
    # Under --runxfail pytest.xfail does nothing: a waived failure then fails.
    if waived.result in {PytestOutcome.FAILED, PytestOutcome.WAIVED}:
        required = sorted(_refused_features(verdict, workload).intersection(run.config.require))  # so that the refusal fails
        note = waived.note or (f"the config requires {', '.join(required)}: an arm refuses it" if required else "")
        pytest.fail((f"{note}\n" if note else "") + failure.short(verdict, commands.replay_of(item, run.root)), pytrace=False)


def require_check(item: pytest.Item) -> None:
    """Fail a test that got verdicts and checked none of them.

    Such a test would be green whatever the verdicts are.
    """
    __tracebackhide__ = True
    unchecked = item.stash.get(JUDGED, [])
    if unchecked and not item.stash.get(CHECKED, False):
        last = unchecked[-1]
        what = f"unchecked verdict: {last.family} of {last.workload}, {last.outcome}"
        text = (
            f"{what}\n  expected: a call of specdec_check with the verdict\n  remedy:   specdec_check(verdict), in suites/ check(verdict)"
        )
        attach(item, ERROR, {"text": text})
        pytest.fail(text, pytrace=False)
