"""Speed change: how much faster or slower the servers of one run are than those of an earlier one, and what became slower.

A boot is one start of a server, and speeds vary from boot to boot. All boots of one run share the state of the machine, which may be faster
during the other run. So the boots of a run count as one (otherwise than within a run, stats/speedup.py), and the log-ratio of two runs has
twice the variance of one boot, however many were booted. That variance is stated beforehand; boots of a run that vary by more widen it, and
boots that vary by less say nothing of two runs. Boots of both engines that came in turn share the machine: each counts, and how much they
vary is estimated from them over the prior.

Accepted tokens per verify step are compared prompt by prompt (stats/acceptance_change.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from pytest_specdec.gates.rulings import PROVEN_ERROR, SPEED_ERROR, GateRuling
from pytest_specdec.judge.acceptance.length import totals
from pytest_specdec.judge.acceptance.stored import lengths
from pytest_specdec.judge.compared_speed import ChangedFigure, ComparedSpeed, Slowdown, SlowPart, UpgradeFigure, describe
from pytest_specdec.model.baseline import BOOT_SD, LEAST_SHARED
from pytest_specdec.model.families import SPEED_ALPHA
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.stats.acceptance_change import compare as compare_lengths
from pytest_specdec.stats.answer_timing import in_one_burst
from pytest_specdec.stats.boot_spread import BootSpread
from pytest_specdec.stats.paces import paces
from pytest_specdec.stats.speedup import BootLevels, across_blocks, centre

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.gates.rulings import ConfidenceLimits
    from pytest_specdec.judge.draft_steps import StepSum
    from pytest_specdec.model.speed_record import DraftedWorkload, SpeedRecord, TimedWorkload
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.upgrade_gates import UpgradeGates
    from pytest_specdec.model.workload import Workload
    from pytest_specdec.stats.acceptance_change import AcceptanceChange
    from pytest_specdec.stats.paces import ArmTimings, ComparedFigure
    from pytest_specdec.stats.speedup import Estimate

__all__ = ["compare"]

RUNS = 2.0
"""Variance of the log-ratio of two runs over that of one boot."""
LEAST_PASSES = 2
"""Passes that limits need."""
LATER = 1.5
"""Ratio of the new time to first token to the old one that is reported if it is surely exceeded."""
_SHOWN_ERROR = 0.025
"""Of each limit that is shown, one-sided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A figure of both runs with its limits, before a gate is held against it."""

    figure: UpgradeFigure
    arm: str
    workload: str
    old: float
    new: float
    ratio: float
    limits: ConfidenceLimits | None
    """None with one pass, or with few prompts."""
    unfit: str = ""
    """Why it is no speed of the servers; empty where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RelativeLimits:
    """The limits of a ratio, from those of a relative change."""

    change: AcceptanceChange

    def at_least(self, error: float) -> float:
        """Return the lower limit of the ratio."""
        return 1.0 + self.change.at_least(error)

    def at_most(self, error: float) -> float:
        """Return the upper limit of the ratio."""
        return 1.0 + self.change.at_most(error)


def compare(old: SpeedRecord, new: SpeedRecord, gates: UpgradeGates, *, boot_sd: float = BOOT_SD) -> ComparedSpeed:
    """Return the comparison of the speeds of two runs.

    Ratios are new over old. Each gate, the lowest ratio allowed, is ruled at an even share of :data:`SPEED_ALPHA`. ``boot_sd`` is the
    stated standard deviation between boots, in log speed. Times that are not the servers' alone (``unfit``), or of two machines, are shown
    and not gated; those that would have missed their gate otherwise are ``doubtful``. Times to first token have no gate: those that are
    surely more than LATER times the old ones are ``late``.
    """
    timed = (name for name in old.timed if name in new.timed)
    measured = [
        *(figure for name in timed for figure in _compare_timed(old.timed[name], new.timed[name], boot_sd)),
        *(figure for name in old.drafted for figure in _compare_lengths(name, old.drafted[name], new.drafted.get(name, ()))),
    ]
    not_comparable = _describe_machines(old, new)
    thresholds = [None if not_comparable or one.unfit else _threshold(one, gates) for one in measured]
    alpha = SPEED_ALPHA / max(1, sum(threshold is not None for threshold in thresholds))
    figures = tuple(_rule(one, threshold, alpha) for one, threshold in zip(measured, thresholds, strict=True))
    unfit = next((one.unfit for one in measured if one.unfit), "")
    # Ungated above because they are unfit, these are ruled on as if they were not.
    ruled_unfit = (_rule(one, _threshold(one, gates), alpha) for one in measured if one.unfit and not not_comparable)
    return ComparedSpeed(
        ratios=figures,
        not_gated=(not_comparable or unfit) if figures else "",
        slower=tuple(_find_slow_parts(figures, gates, _compare_timed_lengths(old, new))),
        doubtful=tuple(figure for figure in ruled_unfit if figure.ruling is GateRuling.MISSED),
        late=tuple(one for one in figures if one.figure is UpgradeFigure.TTFT and one.low > LATER and not (not_comparable or one.unfit)),
    )


def _describe_machines(old: SpeedRecord, new: SpeedRecord) -> str:
    """Return why the speeds of two runs are not comparable; empty if they are."""
    if not old.machine or not new.machine:
        return "of an unknown machine"
    return "" if old.machine == new.machine else "of two machines, not comparable"


def _threshold(measured: _Measured, gates: UpgradeGates) -> float | None:
    """Return the gate on a figure; None where none is stated, or nothing gives limits."""
    if measured.limits is None or measured.figure is UpgradeFigure.TTFT:
        return None
    if measured.figure is UpgradeFigure.LENGTH:
        return gates.acceptance
    return gates.baseline if measured.arm == BASELINE else gates.variant


def _rule(measured: _Measured, gate: float | None, alpha: float) -> ChangedFigure:
    """Return a figure with the ruling on its gate, the lowest ratio allowed.

    MISSED if the upper limit of the ratio, at error ``alpha``, is below the gate. PROVEN if the lower limit, at the fixed error of speeds
    or of lengths, is the gate or more. Else OPEN, as without a gate or limits. Limits are shown at an error of their own.
    """
    limits, ruling = measured.limits, GateRuling.OPEN
    if limits is not None and gate is not None:
        proof_error = PROVEN_ERROR if measured.figure is UpgradeFigure.LENGTH else SPEED_ERROR
        if limits.at_most(alpha) < gate:
            ruling = GateRuling.MISSED
        elif limits.at_least(proof_error) >= gate:
            ruling = GateRuling.PROVEN
    return ChangedFigure(
        figure=measured.figure,
        arm=measured.arm,
        workload=measured.workload,
        old=measured.old,
        new=measured.new,
        ratio=measured.ratio,
        low=0.0 if limits is None else limits.at_least(_SHOWN_ERROR),
        high=math.inf if limits is None else limits.at_most(_SHOWN_ERROR),
        at_least=gate,
        ruling=ruling,
        unfit=measured.unfit,  # the reason against the times, for the report; callers pass no gate then
    )


def _compare_timed(old: TimedWorkload, new: TimedWorkload, boot_sd: float) -> Iterator[_Measured]:
    """Yield each arm's decode speed and time to first token.

    Only requests that both runs sent alike count. A figure that a boot has no usable timing of is left out. ``unfit`` is the first reason
    against an arm's times.
    """
    shared = _find_shared_requests(old.workload, new.workload)
    # The baseline comes first: how much its boots vary is the prior for the variants'.
    baseline_spreads: dict[UpgradeFigure, BootSpread] = {}
    for arm in sorted(old.boots.keys() & new.boots.keys(), key=lambda arm: (arm != BASELINE, arm)):
        before, after = ([boot.part(shared) for boot in side.boots[arm]] for side in (old, new))
        # Of an answer that came in one burst only the whole time is known: then all answers are timed as a whole.
        is_whole = any(in_one_burst(answer) for boot in (*before, *after) for answer in boot.answers)
        unfit = next(filter(None, map(_describe_disturbance, (*before, *after))), "answers came in one burst" if is_whole else "")
        for figure, select in _SELECTED.items():
            boots = _compare_boots(before, after, select, whole=is_whole)
            if boots is None:
                continue
            prior = baseline_spreads.get(figure, BootSpread(stated_sd=boot_sd))
            # ``old.alternated``: the old boots were started in turn with the new ones.
            estimate = _estimate_change(boots, prior, alternated=old.alternated)
            if arm == BASELINE and estimate is not None:
                baseline_spreads[figure] = estimate.boots
            yield _Measured(
                figure=figure,
                arm=arm,
                workload=old.workload.name,
                old=boots.old,
                new=boots.new,
                ratio=math.exp(boots.levels.log_ratio),
                limits=estimate,
                unfit=unfit,
            )


def _estimate_change(boots: _ComparedBoots, prior: BootSpread, *, alternated: bool) -> Estimate | None:
    """Return the log-ratio of two runs with its error; None with one pass."""
    if alternated:  # boots that came in turn met the same state of the machine, so that each counts
        return boots.estimate(prior, 1.0 / len(boots.levels.baseline) + 1.0 / len(boots.levels.speculative))
    # Else the boots of a run count as one. If they vary by less than is stated, this says nothing of two runs.
    estimate = boots.estimate(prior, RUNS)
    return None if estimate is None else replace(estimate, boots=estimate.boots.at_least_stated)


def _find_shared_requests(old: Workload, new: Workload) -> frozenset[str]:
    """Return the ids of requests sent in both runs alike, under the same traffic."""
    if old.traffic_digest != new.traffic_digest:
        return frozenset()
    return frozenset(request.id for request in new.requests if request.id in old.by_id and old.by_id[request.id].digest == request.digest)


def _describe_disturbance(boot: Transcript) -> str:
    """Return the reason against a boot's times; empty if there is none.

    They are not the server's alone if the client was too slow, others used the server, or the machine was busy.
    """
    if boot.client is not None and boot.client.limited:
        return f"the client could not keep up with {boot.arm}: {boot.client.limited}"
    if boot.foreign or boot.limited:
        return f"others used the server of {boot.arm} meanwhile, or it refused requests as too many"
    return boot.busy_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedBoots:
    """One figure of one arm, boot by boot of both runs."""

    old: float
    """The typical value over the old boots, in the figure's unit."""
    new: float
    """The same over the new boots."""
    blocks: tuple[tuple[float, ...], ...]
    """Log-ratios of each new boot to the old ones, pass by pass."""
    levels: BootLevels
    """Log of each boot's speed over the first old boot's: new boots as ``speculative``, old ones as ``baseline``."""

    def estimate(self, spread: BootSpread, relative_variance: float) -> Estimate | None:
        """Return the log-ratio of the runs with its error; None with one pass.

        ``spread`` is the prior of how much boots vary. ``relative_variance`` is the variance of the log-ratio that comes from boots, in
        units of the variance of one boot.
        """
        if min(map(len, self.blocks)) < LEAST_PASSES:
            return None
        old_boots = [len(self.levels.baseline)] * len(self.blocks)  # each new boot was compared with all of them
        estimate = across_blocks(self.blocks, [self.levels], spread, baseline_boots=old_boots)
        # It takes all boots as independent, which those of one run may not be.
        return replace(estimate, relative_variance=relative_variance)


_SELECTED: Mapping[UpgradeFigure, Callable[[ArmTimings], ComparedFigure | None]] = {
    UpgradeFigure.DECODE: lambda timings: timings.response,
    UpgradeFigure.TTFT: lambda timings: timings.ttft,
}


def _compare_boots(
    old: Sequence[Transcript], new: Sequence[Transcript], select: Callable[[ArmTimings], ComparedFigure | None], *, whole: bool
) -> _ComparedBoots | None:
    """Return one figure of an arm in both runs, boot by boot.

    ``select`` takes the figure from two arms' timings. With ``whole`` answers are timed as a whole, since the decoding of some could not be
    timed. A boot's level is the centre of its log-ratios over all passes. None if a boot has no usable timing of the figure.
    """
    new_over_old = _compare_with(old, new, select, whole=whole)
    old_over_first = _compare_with(old[:1], old, select, whole=whole)
    if new_over_old is None or old_over_first is None:
        return None
    # All levels are over the first old boot: log(new / first) = log(new / mean of old) + log(mean of old / first).
    old_levels = tuple(centre(figure.log_ratios) for figure in old_over_first)
    mean_old_level = _mean(old_levels)
    new_levels = tuple(centre(figure.log_ratios) + mean_old_level for figure in new_over_old)
    return _ComparedBoots(
        old=new_over_old[0].baseline,  # every new boot was compared with the same old ones
        new=math.exp(_mean([math.log(figure.speculative) for figure in new_over_old])),
        blocks=tuple(figure.log_ratios for figure in new_over_old),
        levels=BootLevels(speculative=new_levels, baseline=old_levels),
    )


def _compare_with(
    reference: Sequence[Transcript], boots: Sequence[Transcript], select: Callable[[ArmTimings], ComparedFigure | None], *, whole: bool
) -> list[ComparedFigure] | None:
    """Return one figure of each of ``boots``, compared with the reference boots together.

    ``select`` takes the figure from a boot's timings; with ``whole`` answers are timed as a whole. The figure's ``baseline`` is that of the
    reference, ``speculative`` the boot's. None if the figure is unknown for a boot, as without a request timed in all boots compared.
    """
    timings = [paces(reference, boot, whole=whole) for boot in boots]
    figures = [figure for timing in timings if timing and (figure := select(timing))]
    return figures if len(figures) == len(boots) else None


def _compare_lengths(variant: str, old: Sequence[DraftedWorkload], new: Sequence[DraftedWorkload]) -> Iterator[_Measured]:
    """Yield one variant's accepted tokens per verify step in both runs.

    Nothing is yielded if the runs share fewer than LEAST_SHARED prompts. Each prompt has one value in a run, the mean over its requests.
    """
    new_by_name = {drafted.workload.name: drafted for drafted in new}
    by_prompt: dict[str, tuple[list[float], list[float]]] = {}
    for drafted in old:
        if drafted.workload.name in new_by_name:
            _collect_lengths(drafted, new_by_name[drafted.workload.name], by_prompt)
    if len(by_prompt) < LEAST_SHARED:
        return
    sides = zip(*((_mean(before), _mean(after)) for before, after in by_prompt.values()), strict=True)
    change = compare_lengths(*map(list, sides))
    limits, ratio = _RelativeLimits(change=change), 1.0 + change.relative
    yield _Measured(figure=UpgradeFigure.LENGTH, arm=variant, workload="", old=change.stored, new=change.now, ratio=ratio, limits=limits)


def _collect_lengths(old: DraftedWorkload, new: DraftedWorkload, by_prompt: dict[str, tuple[list[float], list[float]]]) -> None:
    """Add both runs' tokens per verify step to ``by_prompt``.

    Its values are two lists for a prompt, one of the old run and one of the new. Only requests sent with the same body in both runs count.
    """
    before, after = lengths(old.transcript, old.workload), lengths(new.transcript, new.workload)
    for request in new.workload.requests:
        if request.id in before and request.id in after and before[request.id].request == request.digest:
            sides = by_prompt.setdefault(request.prompt_key, ([], []))
            sides[0].append(before[request.id].tokens_per_step)
            sides[1].append(after[request.id].tokens_per_step)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _compare_timed_lengths(old: SpeedRecord, new: SpeedRecord) -> Mapping[tuple[str, str], float]:
    """Return the ratios of tokens per verify step, new over old, by variant and workload.

    They help to explain the speed of the same, timed answers: at other texts the drafter may do better or worse. Left out where a run's
    timed answers show no steps.
    """
    ratios = {}
    for workload in old.timed.keys() & new.timed.keys():
        before, after = old.timed[workload].boots, new.timed[workload].boots
        for arm in before.keys() & after.keys():
            old_steps, new_steps = _sum_steps(before[arm]), _sum_steps(after[arm])
            if old_steps is not None and new_steps is not None:
                ratios[arm, workload] = new_steps.length / old_steps.length
    return ratios


def _sum_steps(boots: Sequence[Transcript]) -> StepSum | None:
    """Return the tokens and verify steps of all boots' answers; None if none shows its steps."""
    sums = [steps for boot in boots for steps in totals(boot).values()]
    return reduce(add, sums) if sums else None


def _find_slow_parts(
    figures: Sequence[ChangedFigure], gates: UpgradeGates, accepted: Mapping[tuple[str, str], float]
) -> Iterator[Slowdown]:
    """Yield the slower parts: the baseline, then those of each variant.

    A part is the baseline, the drafter, the verify step, or the variant if the latter two cannot be told apart. Only figures that miss
    their gate show one. ``accepted`` has the ratios of tokens per verify step in the timed answers, by variant and workload. A part is
    yielded once for a variant, with the first workload that shows it.
    """
    missed = [figure for figure in figures if figure.ruling is GateRuling.MISSED]
    slow_baseline = next((figure for figure in missed if figure.arm == BASELINE), None)
    if slow_baseline is not None:
        yield Slowdown(part=SlowPart.BASELINE, arm=BASELINE, why=describe(slow_baseline))
    for variant in dict.fromkeys(figure.arm for figure in missed if figure.arm != BASELINE):
        length = next((figure for figure in figures if (figure.arm, figure.figure) == (variant, UpgradeFigure.LENGTH)), None)
        parts: dict[SlowPart, Slowdown] = {}
        if length is not None and length.ruling is GateRuling.MISSED:
            parts[SlowPart.DRAFTER] = Slowdown(part=SlowPart.DRAFTER, arm=variant, why=describe(length))
        for decode in (figure for figure in missed if _is_decode(figure, variant)):
            for slow in _explain_decode(decode, length, figures, gates, accepted):
                parts.setdefault(slow.part, slow)
        yield from parts.values()


def _explain_decode(
    decode: ChangedFigure,
    length: ChangedFigure | None,
    figures: Sequence[ChangedFigure],
    gates: UpgradeGates,
    accepted: Mapping[tuple[str, str], float],
) -> Iterator[Slowdown]:
    """Yield the slower part that explains one variant's missed decode speed.

    ``decode`` is the missed figure, on one workload. Its ratio, new speed over old, is the product of three ratios: the baseline's, that of
    tokens per verify step (``length`` where ``accepted`` lacks the workload's own), and that of the step, the inverse of its cost in plain
    decode steps. The step is named if its ratio alone would miss the variant's gate. Nothing is yielded if it would not, and baseline or
    drafter miss a gate of their own.
    """
    variant, of_baseline = decode.arm, [one for one in figures if one.arm == BASELINE and one.workload == decode.workload]
    base_ratio = next((one.ratio for one in of_baseline if one.figure is UpgradeFigure.DECODE), 1.0)
    accepted_ratio = accepted.get((variant, decode.workload), 1.0 if length is None else length.ratio)
    step_ratio = decode.ratio / (base_ratio * accepted_ratio)
    ratios = f"the baseline {base_ratio:.2f}x, accepted tokens {accepted_ratio:.2f}x, so that a verify step costs {1.0 / step_ratio:.2f}x"
    why = f"{describe(decode)}; {ratios}"
    is_length_known = length is not None or (variant, decode.workload) in accepted
    # Without tokens per step, what is left of the ratio is that of drafter and step together.
    step_part = SlowPart.STEP if is_length_known else SlowPart.VARIANT
    if step_ratio < gates.variant:
        yield Slowdown(part=step_part, arm=variant, why=why)
        return
    if any(one.ruling is GateRuling.MISSED for one in (*of_baseline, length) if one is not None):
        return
    # No part alone is slow enough: the one with the lowest ratio is named.
    parts = [(base_ratio, SlowPart.BASELINE), (step_ratio, step_part)]
    if is_length_known:
        parts.append((accepted_ratio, SlowPart.DRAFTER))
    yield Slowdown(part=min(parts)[1], arm=variant, why=why)


def _is_decode(figure: ChangedFigure, arm: str) -> bool:
    return (figure.arm, figure.figure) == (arm, UpgradeFigure.DECODE)
