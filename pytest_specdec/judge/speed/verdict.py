"""The verdicts of speed: a speedup, an accepted length, or drafting by kind of request.

A gate is a least speedup, or accepted length (tokens per verify step), from a config or a baseline file. Its ruling is MISSED, PROVEN or
OPEN, by the figure's confidence limits. A boot is one start of a server, a pass one round over the requests, and the control the baseline
booted again. Speed by load is measured with several numbers of clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.gates.rulings import SPEED_ERROR, GateRuling, gates_on, rule_gates, rule_speeds
from pytest_specdec.judge.acceptance import verdict as acceptance
from pytest_specdec.judge.acceptance.length import describe_length
from pytest_specdec.judge.acceptance.verdict import LEAST_PROMPTS
from pytest_specdec.judge.drafting.verdict import judge_drafting
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.speed import boot_blocks, breakdown
from pytest_specdec.judge.speed.evidence import describe_interval, describe_spread, doubts, figures, latencies, list_further, speedup, table
from pytest_specdec.judge.speed.step_cost import SlowCause, Suspect, step_cost, suspect
from pytest_specdec.judge.speed.timing import measure_speed
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, SPEEDUP, Gate
from pytest_specdec.model.captured_run import CapturedRun
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.gates.rulings import RuledGate
    from pytest_specdec.judge.speed.timing import MeasuredSpeed
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_NOTHING = "nothing to time: no request has a streamed answer of two chunks or more from every arm"
_FLOOR = Gate(figure=SPEEDUP, at_least=1.0, source="default at one client")


def judge(captured: Captured | CapturedRun) -> Verdict:
    """Return the verdict on a pair's speed, acceptance or drafting.

    A whole run is judged by the drafts for each kind of request, a timed workload by its speedup, another one by its accepted tokens.
    Failures of the first boots and of further ones, refusals and wrong endings come first.
    """
    if isinstance(captured, CapturedRun):
        return judge_drafting(captured)
    judged = _judge_times if captured.workload.timed else acceptance.judge_acceptance
    return server_failure(captured) or _check_further_boots(captured) or refusal(captured) or check_endings(captured) or judged(captured)


def _check_further_boots(captured: Captured) -> Verdict | None:
    """Return the verdict on a further boot that failed, else None.

    Further boots are those of the variant after its first, with the baseline boots beside them. The times of a failed boot are not
    comparable with those of the others.
    """
    # A block has one or two boots of the baseline: a single one is its own control.
    blocks = (
        replace(captured, speculative=block.speculative, baseline=block.baselines[0], control=block.baselines[-1], further=())
        for block in captured.further
    )
    return next((verdict for verdict in map(server_failure, blocks) if verdict is not None), None)


def _judge_times(captured: Captured) -> Verdict:
    """Return the verdict on a timed workload.

    INVALID if nothing could be timed. Workloads timed at several numbers of clients, the control, and a variant that drafts nothing have
    judgements of their own.
    """
    if breakdown.is_by_load(captured):
        return _judge_load(captured)
    measured = measure_speed(captured)
    if measured is None:
        return say(captured, Outcome.INVALID, _NOTHING)
    if captured.is_control:
        return _judge_control(captured, measured)
    idle = speculating(captured, needs_rejections=False)  # None for a variant that drafts
    return _add_categories(captured, _judge_gates(captured, measured)) if idle is None else _add_speed(captured, measured, idle)


def _judge_load(captured: Captured) -> Verdict:
    """Return the verdict on a workload timed at several numbers of clients.

    Only one of these numbers is held against gates (:attr:`SpeedByLoad.gated`). Of a variant that drafts, the others are reported with it.
    INVALID if nothing could be timed.
    """
    loads = breakdown.by_load(captured)
    if loads is None:
        return say(captured, Outcome.INVALID, _NOTHING)
    level = loads.gated
    if captured.is_control:
        return _judge_control(level.part, level.speed)
    idle = speculating(captured, needs_rejections=False)  # None for a variant that drafts
    if idle is not None:
        return _add_speed(level.part, level.speed, idle)
    verdict = _judge_gates(level.part, level.speed)
    return replace(
        verdict,
        headline=f"{level.clients} requests at once: {verdict.headline}; {loads.summary}",
        evidence=(*loads.lines, *verdict.evidence),
        figures={**verdict.figures, **loads.figures},
    )


def _add_categories(captured: Captured, verdict: Verdict) -> Verdict:
    """Return the verdict with the speed by category of prompt added.

    That speed is reported and not gated. The verdict is unchanged if there is only one category.
    """
    categories = breakdown.by_category(captured)
    if not categories:
        return verdict
    lines = tuple(f"  {category:<10} {speed.ratio:.2f}x" for category, speed in categories.items())
    figures = {f"speedup_{category}": speed.ratio for category, speed in categories.items()}
    return replace(verdict, evidence=("by category:", *lines, *verdict.evidence), figures={**verdict.figures, **figures})


def _add_speed(captured: Captured, measured: MeasuredSpeed, idle: Verdict) -> Verdict:
    """Return the verdict on missing drafts with the measured speed added.

    ``idle`` is that verdict without the speed. It is red if nothing excuses the lack, such as load, texts or chance: the lack then explains
    the speed, and the fault is named after the drafter. Otherwise ``idle`` is returned unchanged.
    """
    if not idle.red:
        return idle
    speed = speedup(captured, measured)
    headline = f"{idle.headline}; {_opening(measured)}: {SlowCause.DRAFTER}"
    return say(
        captured,
        idle.outcome,
        headline,
        short=(*idle.short, describe_interval(measured)),
        evidence=(*idle.evidence, *table(speed), describe_interval(measured), *list_further(captured, measured), *latencies(captured)),
        cell=idle.cell,
        names=SlowCause.DRAFTER,
        promise=speed,
        figures={**idle.figures, **figures(captured, measured, speed)},
    )


def _judge_control(captured: Captured, measured: MeasuredSpeed) -> Verdict:
    """Return the verdict on the control, another boot of the baseline.

    FAIL if it is faster or slower than the baseline by more than boots vary, since both are the same server; else PASS, also if one pass
    gives no interval.
    """
    error = captured.alpha / 2.0  # on either side
    slower = measured.estimate is not None and measured.estimate.at_most(error) < 1.0
    faster = measured.estimate is not None and measured.estimate.at_least(error) > 1.0
    if slower or faster:
        return _say_speed(
            captured,
            measured,
            Outcome.FAIL,
            f"the control is {'slower' if slower else 'faster'} than the baseline, although both are the same server",
        )
    return _say_speed(captured, measured, Outcome.PASS, "the control is as fast as the baseline")


def _judge_gates(captured: Captured, measured: MeasuredSpeed) -> Verdict:
    """Return the verdict by the gates on speedup and acceptance.

    In this order: NOT_DECIDED if the times were disturbed, whatever the gates. PASS for speed by load without a gate: it depends on the
    machine, so that only a baseline file of this machine gates it. FAIL if a gate is missed, with its likely cause. PASS if there are gates
    and all are proven. NOT_DECIDED otherwise.
    """
    rulings, width_note = _rulings(captured, measured), explain_wide_interval(captured, measured)
    opening = "; ".join([_opening(measured), *([width_note] if width_note else [])])
    if disturbed := _describe_disturbance(captured):
        return _say_speed(captured, measured, Outcome.NOT_DECIDED, f"{opening}; not gated: {disturbed}", reason=disturbed)
    if not rulings and breakdown.is_by_load(captured):
        return _say_speed(captured, measured, Outcome.PASS, f"{opening}; reported, without a gate")
    missed = [ruled for ruled in rulings if ruled.ruling is GateRuling.MISSED]
    if missed:
        cause = _find_cause(captured, measured, missed[0])
        suffix = f": {cause.cause}" if cause else ""
        return _say_speed(captured, measured, Outcome.FAIL, f"{opening}{suffix}; gate missed: {missed[0].threshold}", rulings, cause=cause)
    if rulings and all(ruled.ruling is GateRuling.PROVEN for ruled in rulings):
        gates_text = " and ".join(str(ruled.gate) for ruled in rulings)
        return _say_speed(captured, measured, Outcome.PASS, f"{opening}; gate met: {gates_text}", rulings)
    why = "; ".join([*_describe_crowding(captured, opening), _why_open(captured, measured, rulings)])
    return _say_speed(captured, measured, Outcome.NOT_DECIDED, f"{opening}; {why}", rulings, reason=why)


def _find_cause(captured: Captured, measured: MeasuredSpeed, missed: RuledGate) -> Suspect | None:
    """Return the likely cause of a missed gate.

    It is always the drafter for a gate on the accepted length. For a gate on the speedup it is the drafter, the cost of a verify step, or
    the client. Returns None if nothing shows the tokens per step, which this takes.
    """
    if missed.gate.figure == ACCEPTANCE_LENGTH:
        return Suspect(cause=SlowCause.DRAFTER, why=describe_length(measured.length))
    cost = step_cost(captured, measured)
    if cost is None:
        return None
    # By the earlier runs of a baseline file; for a gate without such runs, its threshold.
    expected_speedup = missed.least
    return suspect(captured, cost, expected_speedup)


def _describe_crowding(captured: Captured, opening: str) -> tuple[str, ...]:
    """Return a note on the busiest client machine, for a gate that stays open.

    Empty if no machine was busy, or if ``opening`` mentions it already.
    """
    return tuple(f"the machine was busy: {why}" for why in busy(captured)[:1] if why not in opening)


def _describe_disturbance(captured: Captured) -> str:
    """Return the disturbance of a server's times, in words.

    The times do not show a server's speed if the client was too slow, others used the server, or it answered 429, too many requests: the
    first of these is returned. Empty without any.
    """
    if behind := _describe_slow_client(captured):
        return behind
    arms = boot_blocks.arms(captured)
    if used := " and ".join(arm.arm for arm in arms if arm.foreign):
        return f"others used the server of {used} meanwhile"
    limited = " and ".join(arm.arm for arm in arms if arm.limited)
    return f"{limited} was told to slow down (429, too many requests); lower `limits.concurrency` or raise its limit" if limited else ""


def _why_unfit(captured: Captured, measured: MeasuredSpeed) -> str:
    """Return the reason for times not fit as decoding speeds.

    It is the first of a disturbance, a busy machine, and whole requests timed in place of decoding. Such times are not taken into baseline
    files. Empty if the times are fit.
    """
    if disturbed := _describe_disturbance(captured):
        return disturbed
    if busy(captured):
        return "the machine was busy while servers were timed"
    burst = "answers came in one burst, so that whole requests were timed, which is another quantity than decoding"
    return burst if measured.paces.whole else ""


def _mark_unfit_times(captured: Captured) -> dict[str, float]:
    """Return a figure of 1 for each reason that makes times unfit, by name; empty without one."""
    marks = {"disturbed": bool(_describe_disturbance(captured)), "busy_machine": bool(busy(captured))}
    return {name: 1.0 for name, unfit in marks.items() if unfit}


def _describe_slow_client(captured: Captured) -> str:
    """Return which arm's client was too slow, and the reason.

    The measured times may then be the client's, not the server's. Only the first such arm is named. Empty without one; an arm whose client
    was not measured does not count.
    """
    limited = ((arm.arm, arm.client.limited) for arm in boot_blocks.arms(captured) if arm.client is not None)
    return next((f"the client could not keep up with {arm}: {why}" for arm, why in limited if why), "")


def _rulings(captured: Captured, measured: MeasuredSpeed) -> tuple[RuledGate, ...]:
    """Return the rulings on the gates by the measured speed and acceptance.

    A gate is missed by the upper limit at a share of alpha, and proven by the lower limit at .75 % (speedup) or 2.5 % (acceptance). Gates
    on acceptance are left out if it was measured over fewer than LEAST_PROMPTS prompts: workloads with more prompts decide them. Alpha is
    shared by the two kinds of gates.
    """
    gates, length = _speedup_gates(captured), measured.length
    lengths = gates_on(captured.gates, ACCEPTANCE_LENGTH) if length is not None and length.prompts >= LEAST_PROMPTS else ()
    alpha = captured.alpha / max(1, bool(gates) + bool(lengths))
    return (*rule_speeds(gates, measured.estimate, alpha), *rule_gates(lengths, length, alpha))


def _speedup_gates(captured: Captured) -> tuple[Gate, ...]:
    """Return the gates on the speedup, or a default one.

    Without any gate the default is no slowdown, for workloads of one client only. Gates of a config do not apply to speeds by load: those
    depend on the machine, so only its baseline file gates them.
    """
    by_load = breakdown.is_by_load(captured)
    # A gate of a baseline file names its workload.
    gates = tuple(gate for gate in gates_on(captured.gates, SPEEDUP) if gate.workload or not by_load)
    return gates or ((_FLOOR,) if captured.workload.concurrency == 1 else ())


def _why_open(captured: Captured, measured: MeasuredSpeed, rulings: Sequence[RuledGate]) -> str:
    """Return the reason for an undecided verdict, in words.

    It is a missing gate, then a missing interval, then how the figure lies against the first open gate. An interval wholly above or below
    a gate may leave it open: gates are ruled at higher confidence, and with the spread between boots. Callers ensure that a gate is open,
    if there are any.
    """
    if not rulings:
        return f"no gate is set for {captured.workload.concurrency} clients"
    interval = measured.interval
    if measured.estimate is None or interval is None:
        return "one pass gives no interval"
    gate = next(ruled.gate for ruled in rulings if ruled.ruling is GateRuling.OPEN)
    if gate.figure != SPEEDUP:
        return f"{describe_length(measured.length)} leave the gate open: {gate}"
    if interval.high < (gate.at_least or 0.0):
        return f"the interval is below the gate, but not surely enough to fail: {gate}"
    if interval.low >= (gate.at_least or 0.0):
        return f"above the gate here, but not by more than boots are taken to vary: {gate}"
    return f"the interval contains the gate: {gate}"


def _opening(measured: MeasuredSpeed) -> str:
    return f"{measured.shown}, {measured.change.value}"


def _say_speed(
    captured: Captured,
    measured: MeasuredSpeed,
    outcome: Outcome,
    headline: str,
    rulings: Sequence[RuledGate] = (),
    *,
    reason: str = "",
    cause: Suspect | None = None,
) -> Verdict:
    """Return a verdict on the measured speed, with its lines and figures.

    ``rulings`` are those on its gates. ``reason`` is given for NOT_DECIDED, and ``cause`` for a missed gate. Proven gates rule out speedups
    below the least of their lower limits.
    """
    causes = [str(cause)] if cause else []
    lines = [*map(str, rulings), *causes, *doubts(captured, measured), describe_interval(measured), describe_spread(measured)]
    lines += [f"busy machine: {why}" for why in busy(captured)]
    # A reason against the times (``unfit``) keeps them out of baseline files.
    speed = speedup(captured, measured, gates=len(rulings), unfit=_why_unfit(captured, measured))
    proven_limits = [ruled.low for ruled in rulings if ruled.gate.figure == SPEEDUP and ruled.ruling is GateRuling.PROVEN]
    confirmation = ["to confirm the fail: run the same command again, which boots the variant once more"] if outcome is Outcome.FAIL else []
    return say(
        captured,
        outcome,
        headline,
        short=lines,
        evidence=(*table(speed), *lines, *list_further(captured, measured), *confirmation, *latencies(captured)),
        rules_out=f"a speedup below {min(proven_limits):.2f}x would have been caught ({1.0 - SPEED_ERROR:.2%}); {describe_spread(measured)}"
        if proven_limits
        else "",
        settle=_settle(captured, measured, rulings) if outcome is Outcome.NOT_DECIDED else "",
        reason=reason,
        cell=cell(measured),
        names=cause.cause if cause else "",
        promise=speed,
        figures={**figures(captured, measured, speed), "gates": float(len(rulings)), **_mark_unfit_times(captured)},
    )


def _settle(captured: Captured, measured: MeasuredSpeed, rulings: Sequence[RuledGate]) -> str:
    """Return the remedy for an undecided verdict, in words.

    A slow client comes first, then other disturbances, a missing gate and a single pass. Else the remedy is against the larger source of
    error, passes or boots. More boots in one run are offered as well, since each also has passes, and a lower gate unless the interval is
    wide. Attached servers, which this run cannot boot, have a remedy of their own if boots are the larger source.
    """
    if _describe_slow_client(captured):
        return "a client with a core to itself, or fewer requests at once"
    if _describe_disturbance(captured):
        return "servers that nobody else uses and no gateway slows down"
    if not rulings:
        return "a gate: gates.speedup.at_least in the config"
    if measured.estimate is None:
        return "at least two passes"
    is_attached = measured.one_boot is not None
    # Passes bring more than half of the variance, boots the rest.
    passes_dominate = measured.estimate.within_variance > measured.estimate.standard_error**2 / 2.0
    if is_attached and not passes_dominate:
        return f"gates.speedup.boot_sd, if boots vary by less than {measured.estimate.boots.sd:.1%}; or servers that are booted here"
    more = "more passes or a quieter machine" if passes_dominate else "more runs into the baseline file (--specdec-update-baselines)"
    boots = "" if is_attached else f", more boots in one run (--specdec-boots {_more_boots(measured)})"
    lower_gate = "" if is_wide(measured) else f", or a gate of at most {measured.estimate.at_least(SPEED_ERROR):.2f}"
    return f"{more}{boots}{lower_gate}"


def _more_boots(measured: MeasuredSpeed) -> int:
    """Return the number of boots of the variant to measure next.

    It is twice the present one and at least four: four show a difference of a tenth if boots and passes vary by a few percent.
    """
    return max(4, 2 * len(measured.blocks.speculative)) if measured.blocks else 4


WIDE = 3.0
"""Upper over lower limit above which an interval is shown only with the reason: it does not distinguish no speedup from a threefold one."""
_FEW = 4
"""Degrees of freedom below which limits lie far apart only because passes are few: Student's t at 2.5 % is 2.8 with four, 12.7 with one."""


def is_wide(measured: MeasuredSpeed) -> bool:
    """Return True if the shown interval is too wide to be of use."""
    return measured.interval is not None and measured.interval.high > WIDE * measured.interval.low


def cell(measured: MeasuredSpeed) -> str:
    """Return the ratio and its interval, for a table.

    A wide interval is left out, since it needs an explanation for which a table has no room.
    """
    return f"{measured.ratio:.2f}x, interval too wide" if is_wide(measured) else measured.shown


def explain_wide_interval(captured: Captured, measured: MeasuredSpeed) -> str:
    """Return the explanation of a wide interval; empty if it is not wide."""
    if measured.interval is None or not is_wide(measured):
        return ""
    factor = measured.interval.high / measured.interval.low
    return f"the interval spans a factor of {factor:,.3g}, which says next to nothing: {' and '.join(_explain_width(captured, measured))}"


def _explain_width(captured: Captured, measured: MeasuredSpeed) -> Iterator[str]:
    """Yield the larger source of an interval's error, passes or boots.

    Few passes are added to it, and a busy machine. Nothing is yielded without an estimate.
    """
    # As in ``measured.interval``: for attached servers the estimate over the passes alone.
    estimate = measured.one_boot or measured.estimate
    if estimate is None:
        return
    if estimate.within_variance >= estimate.standard_error**2 / 2.0:  # passes bring half of the variance or more
        yield f"passes vary by {estimate.passes_sd:.0%}"
        if estimate.within_freedom < _FEW:
            yield f"{estimate.passes} passes are few"
    elif estimate.boots.freedom:  # differences between boots were measured
        yield f"boots vary by {estimate.boots.sd:.0%}"
    else:
        yield f"boots are taken to vary by {estimate.boots.sd:.0%}"
    yield from (f"the machine was busy ({why})" for why in busy(captured)[:1])


def busy(captured: Captured) -> tuple[str, ...]:
    """Return a line per boot with an overloaded client machine, the worst first."""
    crowded = [arm for arm in boot_blocks.arms(captured) if arm.busy_machine]
    return tuple(dict.fromkeys(arm.busy_machine for arm in sorted(crowded, key=lambda arm: -(arm.machine_load or 0.0))))
