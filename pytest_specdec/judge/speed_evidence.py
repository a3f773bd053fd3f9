"""The evidence on speed: a pair's figures in the rows that people publish, and how they were measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_specdec.judge import latency, step_tokens
from pytest_specdec.judge.acceptance import shown
from pytest_specdec.judge.step_cost import step_cost
from pytest_specdec.stats.boot_spread import LIKELY
from pytest_specdec.stats.paces import paces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.boot_blocks import BootBlocks
    from pytest_specdec.judge.latency import ArmLatency
    from pytest_specdec.judge.timing import MeasuredSpeed
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.paces import ArmTimings, ComparedFigure

__all__ = ["doubts", "figures", "further", "latencies", "method", "spread", "table"]

_HEADER = ("Metric", "Normal", "Speculative", "Speedup")


def table(measured: MeasuredSpeed) -> tuple[str, ...]:
    """Return response tok/s, time to first token, prompt tok/s and, behind reasoning, time to first text: Normal, Speculative, Speedup."""
    found = measured.paces
    rows = [
        _HEADER,
        _row("Response tok/s", found.response, measured.ratio, ".2f"),
        *([_row("Time to first token (s)", found.ttft, _ratio(found.ttft, -1), ".3f")] if found.ttft else []),
        *([_row("Time to first text (s)", found.content, _ratio(found.content, -1), ".3f")] if found.content and _reasons(found) else []),
        *([_row("Prompt tok/s", found.prompt, _ratio(found.prompt, 1), ".2f")] if found.prompt else []),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    header, *body = ([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))] for row in rows)
    return tuple(f"| {' | '.join(cells)} |" for cells in (header, rule, *body))


def _reasons(found: ArmTimings) -> bool:
    """Whether the first text came later than the first token."""
    sides = [(one.baseline, one.speculative) for one in (found.ttft, found.content) if one is not None]
    return len(set(sides)) > 1


def latencies(captured: Captured) -> tuple[str, ...]:
    """Return percentiles of both arms side by side, what they make in all, cached prompt tokens, and goodput where an SLO is stated."""
    return latency.lines(_latencies(captured))


def _latencies(captured: Captured) -> tuple[ArmLatency, ...]:
    arms = (latency.latency(arm, captured.slo) for arm in (captured.baseline, captured.speculative))
    return tuple(arm for arm in arms if arm is not None)


def method(measured: MeasuredSpeed) -> str:
    """Return how the interval came about and what it spans."""
    found, passes = measured.estimate, len(measured.paces.response.log_ratios)
    if found is None or measured.interval is None:
        return f"{passes} pass, no interval"
    passed = f"{passes} passes of {measured.paces.requests} requests (spread {found.passes_sd:.1%})"
    if measured.one_boot:
        student = f"Student's t with {measured.one_boot.within_freedom} degrees of freedom"
        within = f"interval: {100 * measured.interval.confidence:.4g}% over {passed} within one boot of each server"
        return f"{within}, {student}; gates allow for boots as well, whose spread here is unknown: {found.boots.sd:.1%}"
    boots = "and boots" if measured.blocks is None else f"in {_boots(measured.blocks)}"
    return f"interval: {100 * measured.interval.confidence:.4g}% over {passed} {boots} (spread about {found.boots.sd:.1%})"


def _boots(blocks: BootBlocks) -> str:
    return f"{len(blocks.speculative)} boots of the variant and {len(blocks.baseline)} of the baseline"


def spread(measured: MeasuredSpeed) -> str:
    """Return what boots are taken to vary by, and where that is from."""
    boots, runs = measured.spread, measured.earlier
    here = [] if measured.control is None else [f"control at {math.exp(measured.control):.3f}x the baseline"]
    here = [_boots(measured.blocks)] if measured.blocks else here
    earlier = [f"{runs} earlier run{'s' * (runs > 1)}"] if runs else []
    assumed = f"up to {LIKELY * boots.stated_sd:.1%} equally likely beforehand ({LIKELY:g} times gates.speedup.boot_sd)"
    return f"boot spread: about {boots.sd:.1%}; {assumed}; measured: {' and '.join([*here, *earlier]) or 'none'}"


def doubts(captured: Captured, measured: MeasuredSpeed) -> tuple[str, ...]:
    """Return caveats of the figures: decoding that could not be timed, or a speedup that its own parts contradict."""
    found = measured.paces
    if found.whole:
        return (f"whole requests timed, first token included: {found.bursts} of {found.answers} answers came in one burst",)
    cost = None if captured.is_control else step_cost(captured, measured)
    return (str(cost.identity),) if cost and cost.identity and cost.identity.broken else ()


def further(captured: Captured, measured: MeasuredSpeed) -> tuple[str, ...]:
    """Return what else a person wants to see beside the ratio: the baseline against itself, acceptance, and whether the two agree."""
    again = [_again(captured.baseline, control, measured) for control in captured.baseline_boots[1:]]
    lines = [f"control against baseline: {_ratio(each.response, 1):.3f}x" for each in again if each is not None]
    lines += [str(measured.blocks)] if measured.blocks else []
    lines += [f"client of {arm.arm}: {arm.client}" for arm in (captured.baseline, captured.speculative) if arm.client is not None]
    if captured.is_control:
        return tuple(lines)
    length, cost = measured.length, step_cost(captured, measured)
    known = shown(length) if length else "unknown, the server reports neither counters nor windows"
    lines += [f"acceptance length: {known}", *step_tokens.lines(captured.speculative, captured.pair.variant.draft)]
    return (*lines, *([str(cost)] if cost else []), *([str(cost.identity)] if cost and cost.identity else []))


def _again(baseline: Transcript, control: Transcript, measured: MeasuredSpeed) -> ArmTimings | None:
    return paces((baseline,), control, whole=measured.paces.whole)


def figures(captured: Captured, measured: MeasuredSpeed) -> dict[str, float]:
    """Return the numbers, units in their names; speedups are above one when the speculative side is better."""
    found = measured.paces
    sides = {
        "response_tokens_per_s": found.response,
        "ttft_s": found.ttft,
        "content_ttft_s": found.content if _reasons(found) else None,
        "prompt_tokens_per_s": found.prompt,
    }
    known = {name: figure for name, figure in sides.items() if figure is not None}
    return {
        "speedup": measured.ratio,
        **_limits(measured),
        **{f"baseline_{name}": figure.baseline for name, figure in known.items()},
        **{f"speculative_{name}": figure.speculative for name, figure in known.items()},
        **({"ttft_speedup": _ratio(found.ttft, -1)} if found.ttft else {}),
        **({"content_ttft_speedup": _ratio(found.content, -1)} if found.content and _reasons(found) else {}),
        **({"prompt_speedup": _ratio(found.prompt, 1)} if found.prompt else {}),
        **({"acceptance_length": measured.length.tokens} if measured.length else {}),
        **_of_steps(captured, measured),
        **({"answers_in_one_burst": float(found.bursts)} if found.whole else {}),
        **({} if measured.control is None else {"boot_log_ratio": measured.control}),
        **({"speculative_boots": float(len(measured.blocks.speculative))} if measured.blocks else {}),
        **({"baseline_boots": float(len(measured.blocks.baseline))} if measured.blocks else {}),
        **{name: value for side, arm in _sides(captured) for name, value in latency.figures(side, arm).items()},
        "boot_sd": measured.spread.sd,
        "passes": float(len(found.response.log_ratios)),
    }


def _of_steps(captured: Captured, measured: MeasuredSpeed) -> dict[str, float]:
    cost = None if captured.is_control else step_cost(captured, measured)
    if cost is None:
        return {}
    by_steps = {"speedup_by_steps": cost.identity.predicted} if cost.identity else {}
    return {"tokens_per_step": cost.tokens_per_step, "step_cost": cost.cost, **by_steps}


def _sides(captured: Captured) -> tuple[tuple[str, ArmLatency], ...]:
    baseline = captured.baseline.arm
    return tuple(("baseline" if arm.arm == baseline else "speculative", arm) for arm in _latencies(captured))


def _limits(measured: MeasuredSpeed) -> Mapping[str, float]:
    limits = measured.interval
    if limits is None:
        return {}
    passes = {"passes_low": alone.low, "passes_high": alone.high} if (alone := measured.over_passes) else {}
    return {"speedup_low": limits.low, "speedup_high": limits.high, "confidence": limits.confidence, **passes}


def _row(title: str, figure: ComparedFigure, ratio: float, form: str) -> Sequence[str]:
    return (title, format(figure.baseline, form), format(figure.speculative, form), f"{ratio:.2f}x")


def _ratio(figure: ComparedFigure, sign: int) -> float:
    return math.exp(sign * math.fsum(figure.log_ratios) / len(figure.log_ratios))
