"""The verdicts of speed: a speedup, an accepted length, or drafting by kind of traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.gates.rulings import SPEED_ERROR, GateRuling, gates_on, rule_gates, ruled_speeds
from pytest_specdec.judge.acceptance import verdict as acceptance
from pytest_specdec.judge.acceptance.verdict import LEAST_PROMPTS
from pytest_specdec.judge.drafting.verdict import judge_drafting
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.speed import boot_blocks, breakdown
from pytest_specdec.judge.speed.evidence import doubts, figures, further, latencies, method, speedup, spread, table
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
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_NOTHING = "nothing to time: no request has a streamed answer of two chunks or more from every arm"
_FLOOR = Gate(figure=SPEEDUP, at_least=1.0, source="default at one client")


def judge(captured: Captured | CapturedRun) -> Verdict:
    """Return whether the pair is as fast as its gates ask; of a workload that is not timed, whether as much is accepted.

    Of a whole run, whether every kind of traffic is drafted for.

    A gate is missed when the speedup lies below it at the captured share of alpha, proven when it lies above it at .75 %, both one-sided;
    one of a baseline file is missed when the speedup lies 5 % below its typical run, beyond what either may be off by. Limits include what
    boots add, as far as this run's control and a baseline file of this machine show it. In between nothing is decided.
    """
    if isinstance(captured, CapturedRun):
        return judge_drafting(captured)
    judged = _judge_times if captured.workload.timed else acceptance.judge_acceptance
    return server_failure(captured) or _further_failure(captured) or refusal(captured) or check_endings(captured) or judged(captured)


def _further_failure(captured: Captured) -> Verdict | None:
    """Look for requests that a further boot did not survive, or a baseline boot beside it: its seconds are not those of all others."""
    blocks = (
        replace(captured, speculative=block.speculative, baseline=block.baselines[0], control=block.baselines[-1], further=())
        for block in captured.further
    )
    return next((verdict for verdict in map(server_failure, blocks) if verdict is not None), None)


def _judge_times(captured: Captured) -> Verdict:
    if breakdown.is_by_load(captured):
        return _under_load(captured)
    measured = measure_speed(captured)
    if measured is None:
        return say(captured, Outcome.INVALID, _NOTHING)
    if captured.is_control:
        return _judge_control(captured, measured)
    idle = speculating(captured, rejecting=False)
    return _by_category(captured, _judge_gates(captured, measured)) if idle is None else _fail_undrafted(captured, measured, idle)


def _under_load(captured: Captured) -> Verdict:
    """Judge the speed with several requests in flight: one number of them is gated, the others are reported beside it."""
    loads = breakdown.by_load(captured)
    if loads is None:
        return say(captured, Outcome.INVALID, _NOTHING)
    level = loads.gated
    if captured.is_control:
        return _judge_control(level.part, level.speed)
    idle = speculating(captured, rejecting=False)
    if idle is not None:
        return _fail_undrafted(level.part, level.speed, idle)
    verdict = _judge_gates(level.part, level.speed)
    return replace(
        verdict,
        headline=f"{level.clients} requests at once: {verdict.headline}; {loads.summary}",
        evidence=(*loads.lines, *verdict.evidence),
        figures={**verdict.figures, **loads.figures},
    )


def _by_category(captured: Captured, verdict: Verdict) -> Verdict:
    """Return the verdict with the speed by category of prompt, where there are several: reported, and not gated."""
    categories = breakdown.by_category(captured)
    if not categories:
        return verdict
    lines = tuple(f"  {category:<10} {speed.ratio:.2f}x" for category, speed in categories.items())
    figures = {f"speedup_{category}": speed.ratio for category, speed in categories.items()}
    return replace(verdict, evidence=("by category:", *lines, *verdict.evidence), figures={**verdict.figures, **figures})


def _fail_undrafted(captured: Captured, found: MeasuredSpeed, idle: Verdict) -> Verdict:
    """Return a verdict on a server that does not speculate with what that costs: of its speed the drafter is the cause."""
    if not idle.red:
        return idle
    headline, speed = f"{idle.headline}; {_opening(found)}: {SlowCause.DRAFTER}", speedup(captured, found)
    return say(
        captured,
        idle.outcome,
        headline,
        short=(*idle.short, method(found)),
        evidence=(*idle.evidence, *table(speed), method(found), *further(captured, found), *latencies(captured)),
        cell=idle.cell,
        names=SlowCause.DRAFTER,
        promise=speed,
        figures={**idle.figures, **figures(captured, found, speed)},
    )


def _judge_control(captured: Captured, found: MeasuredSpeed) -> Verdict:
    """Judge the control: two boots of the baseline must not differ by more than boots do."""
    error = captured.alpha / 2.0
    slower = found.estimate is not None and found.estimate.at_most(error) < 1.0
    faster = found.estimate is not None and found.estimate.at_least(error) > 1.0
    if slower or faster:
        return _say_speed(
            captured,
            found,
            Outcome.FAIL,
            f"the control is {'slower' if slower else 'faster'} than the baseline, although both are the same server",
        )
    return _say_speed(captured, found, Outcome.PASS, "the control is as fast as the baseline")


def _judge_gates(captured: Captured, found: MeasuredSpeed) -> Verdict:
    rulings = _rulings(captured, found)
    outcomes = {one.ruling for one in rulings}
    opening = "; ".join([_opening(found), *([why] if (why := wide(captured, found)) else [])])
    if disturbed := _describe_disturbance(captured):
        return _say_speed(captured, found, Outcome.NOT_DECIDED, f"{opening}; not gated: {disturbed}", reason=disturbed)
    if not rulings and breakdown.is_by_load(captured):
        return _say_speed(captured, found, Outcome.PASS, f"{opening}; reported, without a gate")
    missed = [one for one in rulings if one.ruling is GateRuling.MISSED]
    if missed:
        cause = _cause(captured, found, missed[0].gate)
        named = f": {cause.cause}" if cause else ""
        return _say_speed(captured, found, Outcome.FAIL, f"{opening}{named}; gate missed: {missed[0].threshold}", rulings, cause=cause)
    if outcomes == {GateRuling.PROVEN}:
        above = " and ".join(str(one.gate) for one in rulings)
        return _say_speed(captured, found, Outcome.PASS, f"{opening}; gate met: {above}", rulings)
    why = "; ".join([*_describe_crowding(captured, opening), _why_open(captured, found, rulings)])
    return _say_speed(captured, found, Outcome.NOT_DECIDED, f"{opening}; {why}", rulings, reason=why)


def _cause(captured: Captured, found: MeasuredSpeed, gate: Gate) -> Suspect | None:
    """Return what a missed gate is put down to; None where nothing tells the tokens per step."""
    if gate.figure == ACCEPTANCE_LENGTH:
        return Suspect(cause=SlowCause.DRAFTER, why=acceptance.describe_length(found.length))
    cost = step_cost(captured, found)
    return None if cost is None else suspect(captured, cost, gate.at_least or 0.0)


def _describe_crowding(captured: Captured, opening: str) -> tuple[str, ...]:
    """Return what a busy machine has to do with a gate that stays open, where that is not said yet."""
    return tuple(f"the machine was busy: {why}" for why in busy(captured)[:1] if why not in opening)


def _describe_disturbance(captured: Captured) -> str:
    """Return what disturbed a server's times, so that they do not show its speed; empty where nothing is known to."""
    if behind := _behind(captured):
        return behind
    arms = _arms(captured)
    if used := " and ".join(arm.arm for arm in arms if arm.foreign):
        return f"others used the server of {used} meanwhile"
    limited = " and ".join(arm.arm for arm in arms if arm.limited)
    return f"{limited} was told to slow down (429, too many requests); lower `limits.concurrency` or raise its limit" if limited else ""


def _why_unfit(captured: Captured, found: MeasuredSpeed) -> str:
    """Return why the times do not show the servers' speed of decoding; empty where they do."""
    if disturbed := _describe_disturbance(captured):
        return disturbed
    if busy(captured):
        return "the machine was busy while servers were timed"
    burst = "answers came in one burst, so that whole requests were timed, which is another quantity than decoding"
    return burst if found.paces.whole else ""


def _marks(captured: Captured) -> dict[str, float]:
    """Return the figures that mark times which do not show a server's speed."""
    marks = {"disturbed": bool(_describe_disturbance(captured)), "busy_machine": bool(busy(captured))}
    return {name: 1.0 for name, unfit in marks.items() if unfit}


def _behind(captured: Captured) -> str:
    """Return why the times of an arm may be the client's own; empty where they are the server's."""
    busy = ((arm.arm, arm.client.limited) for arm in _arms(captured) if arm.client is not None)
    return next((f"the client could not keep up with {arm}: {why}" for arm, why in busy if why), "")


def _arms(captured: Captured) -> list[Transcript]:
    return list(boot_blocks.arms(captured))


def _rulings(captured: Captured, found: MeasuredSpeed) -> tuple[RuledGate, ...]:
    """Hold the gates against what was measured; those on acceptance only where it is over enough prompts, the others are left to such."""
    gates, length = _on_speedup(captured), found.length
    lengths = gates_on(captured.gates, ACCEPTANCE_LENGTH) if length is not None and length.prompts >= LEAST_PROMPTS else ()
    alpha = captured.alpha / max(1, bool(gates) + bool(lengths))
    return (*ruled_speeds(gates, found.estimate, alpha), *rule_gates(lengths, length, alpha))


def _on_speedup(captured: Captured) -> tuple[Gate, ...]:
    """Return the thresholds for the speedup; without any, no slowdown at one client.

    Those of a config are not held against speeds by load: what these come to depends on the machine, whose baseline file gates them.
    """
    by_load = breakdown.is_by_load(captured)
    known = tuple(gate for gate in gates_on(captured.gates, SPEEDUP) if gate.workload or not by_load)
    return known or ((_FLOOR,) if captured.workload.concurrency == 1 else ())


def _why_open(captured: Captured, found: MeasuredSpeed, rulings: Sequence[RuledGate]) -> str:
    if not rulings:
        return f"no gate is set for {captured.workload.concurrency} clients"
    if found.estimate is None:
        return "one pass gives no interval"
    gate = next(one.gate for one in rulings if one.ruling is GateRuling.OPEN)
    interval = found.interval
    if gate.figure == SPEEDUP and interval is not None and interval.high < (gate.at_least or 0.0):
        return f"the interval is below the gate, but not surely enough to fail: {gate}"
    if gate.figure == SPEEDUP and interval is not None and interval.low >= (gate.at_least or 0.0):
        return f"above the gate here, but not by more than boots are taken to vary: {gate}"
    return (
        f"the interval contains the gate: {gate}"
        if gate.figure == SPEEDUP
        else f"{acceptance.describe_length(found.length)} leave the gate open: {gate}"
    )


def _opening(found: MeasuredSpeed) -> str:
    return f"{found.shown}, {found.change.value}"


def _say_speed(
    captured: Captured,
    found: MeasuredSpeed,
    outcome: Outcome,
    headline: str,
    rulings: Sequence[RuledGate] = (),
    *,
    reason: str = "",
    cause: Suspect | None = None,
) -> Verdict:
    causes = [str(cause)] if cause else []
    lines = [*map(str, rulings), *causes, *doubts(captured, found), method(found), spread(found)]
    lines += [f"busy machine: {why}" for why in busy(captured)]
    speed = speedup(captured, found, gates=len(rulings), unfit=_why_unfit(captured, found))
    proven = [one.low for one in rulings if one.gate.figure == SPEEDUP and one.ruling is GateRuling.PROVEN]
    surer = ["to confirm the fail: run the same command again, which boots the variant once more"] if outcome is Outcome.FAIL else []
    return say(
        captured,
        outcome,
        headline,
        short=lines,
        evidence=(*table(speed), *lines, *further(captured, found), *surer, *latencies(captured)),
        rules_out=f"a speedup below {min(proven):.2f}x would have been caught ({1.0 - SPEED_ERROR:.2%}); {spread(found)}" if proven else "",
        settle=_settle(captured, found, rulings) if outcome is Outcome.NOT_DECIDED else "",
        reason=reason,
        cell=cell(found),
        names=cause.cause if cause else "",
        promise=speed,
        figures={**figures(captured, found, speed), "gates": float(len(rulings)), **_marks(captured)},
    )


def _settle(captured: Captured, found: MeasuredSpeed, rulings: Sequence[RuledGate]) -> str:
    if _behind(captured):
        return "a client with a core to itself, or fewer requests at once"
    if _describe_disturbance(captured):
        return "servers that nobody else uses and no gateway slows down"
    if not rulings:
        return "a gate: gates.speedup.at_least in the config"
    if found.estimate is None:
        return "at least two passes"
    noisy = found.estimate.passes_sd**2 / found.estimate.passes > found.estimate.standard_error**2 / 2.0
    if found.one_boot and not noisy:
        return f"gates.speedup.boot_sd, if boots vary by less than {found.estimate.boots.sd:.1%}; or servers that are booted here"
    boots = "" if found.one_boot else f", more boots in one run (--specdec-boots {_more_boots(found)})"
    more = "more passes or a quieter machine" if noisy else "more runs into the baseline file (--specdec-update-baselines)"
    return f"{more}{boots}" + ("" if is_wide(found) else f", or a gate of at most {found.estimate.at_least(SPEED_ERROR):.2f}")


def _more_boots(found: MeasuredSpeed) -> int:
    """Return how many boots of the variant to measure next: four tell a tenth where boots and passes vary by a few percent."""
    return max(4, 2 * len(found.blocks.speculative)) if found.blocks else 4


WIDE = 3.0
"""Upper over lower limit from which on an interval is not shown without the reason: no speedup and a threefold one are alike to it."""
_FEW = 4
"""Degrees of freedom below which limits lie far apart for want of passes alone: Student's t at 2.5 % is 2.8 with four, 12.7 with one."""


def is_wide(measured: MeasuredSpeed) -> bool:
    """Whether the limits of the shown interval lie too far apart to say anything."""
    return measured.interval is not None and measured.interval.high > WIDE * measured.interval.low


def cell(measured: MeasuredSpeed) -> str:
    """Return the ratio and its interval for a table; without the interval where that needs a sentence, for which a table has no room."""
    return f"{measured.ratio:.2f}x, interval too wide" if is_wide(measured) else measured.shown


def wide(captured: Captured, measured: MeasuredSpeed) -> str:
    """Return the sentence without which a wide interval is not shown; empty where it is none."""
    if measured.interval is None or not is_wide(measured):
        return ""
    factor = measured.interval.high / measured.interval.low
    return f"the interval spans a factor of {factor:,.3g}, which says next to nothing: {' and '.join(_reasons(captured, measured))}"


def _reasons(captured: Captured, measured: MeasuredSpeed) -> Iterator[str]:
    """Yield the larger part of the error, passes or boots, then what made it large."""
    estimate = measured.one_boot or measured.estimate
    if estimate is None:
        return
    if estimate.passes_sd**2 / estimate.passes >= estimate.standard_error**2 / 2.0:
        yield f"passes vary by {estimate.passes_sd:.0%}"
        if estimate.within_freedom < _FEW:
            yield f"{estimate.passes} passes are few"
    else:
        yield f"boots {'vary' if estimate.boots.freedom else 'are taken to vary'} by {estimate.boots.sd:.0%}"
    yield from (f"the machine was busy ({why})" for why in busy(captured)[:1])


def busy(captured: Captured) -> tuple[str, ...]:
    """Return what shows that the client's machine had more to do than its cores can, boot by boot; the worst first."""
    crowded = [arm for arm in boot_blocks.arms(captured) if arm.busy_machine]
    return tuple(dict.fromkeys(arm.busy_machine for arm in sorted(crowded, key=lambda arm: -(arm.machine_load or 0.0))))
