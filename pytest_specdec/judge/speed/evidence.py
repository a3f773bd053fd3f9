"""The evidence on speed: a pair's figures in the rows that people publish, and how they were measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance.length import describe_length
from pytest_specdec.judge.speed import latency, step_tokens
from pytest_specdec.judge.speed.first_tokens import first_tokens
from pytest_specdec.judge.speed.step_cost import step_cost
from pytest_specdec.model.promise import SpeedFigure, SpeedLimits, Speedup
from pytest_specdec.stats.boot_spread import LIKELY
from pytest_specdec.stats.paces import paces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.speed.boot_blocks import BootBlocks
    from pytest_specdec.judge.speed.latency import ArmLatency
    from pytest_specdec.judge.speed.step_cost import StepCost
    from pytest_specdec.judge.speed.timing import MeasuredSpeed
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.paces import ArmTimings, ComparedFigure
    from pytest_specdec.stats.proportions import Interval

__all__ = ["describe_interval", "describe_spread", "doubts", "figures", "latencies", "list_further", "speedup", "table"]

_HEADER = ("Metric", "Normal", "Speculative", "Speedup")


def speedup(captured: Captured, measured: MeasuredSpeed, *, gates: int = 0, unfit: str = "") -> Speedup:
    """Return the measured speed for reports and baseline files.

    It has both arms' figures with their ratios and limits, and all latencies. ``gates`` is the number of gates that it was held against,
    and ``unfit`` the reason for which the times do not show decoding; empty if they do.
    """
    timings, cost = measured.paces, _step_cost(captured, measured)
    return Speedup(
        response=SpeedFigure(baseline=timings.response.baseline, speculative=timings.response.speculative, speedup=measured.ratio),
        ttft=_speed_figure(timings.ttft, -1),  # less time is better
        # The first text comes with the first token unless answers begin with reasoning.
        content=_speed_figure(timings.content, -1) if _begins_with_reasoning(timings) else None,
        prompt=_speed_figure(timings.prompt, 1),
        limits=_speed_limits(measured.interval),
        over_passes=_speed_limits(measured.over_passes),  # without the spread between boots
        tokens_per_step=cost.tokens_per_step if cost else None,
        boot_log_ratio=measured.control,  # the control over the baseline: two boots of one server
        gates=gates,
        unfit=unfit,
        latencies=latency.quantiles(_sides(captured)),
    )


def _speed_figure(figure: ComparedFigure | None, sign: int) -> SpeedFigure | None:
    """Return a figure with its ratio.

    ``sign`` is 1 if more is better and -1 if less is, so that a ratio above 1 is an improvement. Returns None without a figure.
    """
    if figure is None:
        return None
    return SpeedFigure(baseline=figure.baseline, speculative=figure.speculative, speedup=_ratio(figure, sign))


def _speed_limits(interval: Interval | None) -> SpeedLimits | None:
    return None if interval is None else SpeedLimits(low=interval.low, high=interval.high)


def table(speed: Speedup) -> tuple[str, ...]:
    """Return both arms' figures and their ratios as lines of a Markdown table.

    Its rows are response speed, time to first token, time to first text if answers reason first, and prompt speed; a row without figures is
    left out.
    """
    figures_by_title = (
        ("Response tok/s", speed.response, ".2f"),
        ("Time to first token (s)", speed.ttft, ".3f"),
        ("Time to first text (s)", speed.content, ".3f"),
        ("Prompt tok/s", speed.prompt, ".2f"),
    )
    rows = [_HEADER, *(_row(title, figure, form) for title, figure, form in figures_by_title if figure)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    header, *body = ([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))] for row in rows)
    return tuple(f"| {' | '.join(cells)} |" for cells in (header, rule, *body))


def _begins_with_reasoning(timings: ArmTimings) -> bool:
    """Return True if an arm's first text came later than its first token."""
    ttft, content = timings.ttft, timings.content
    if ttft is None or content is None:
        return False
    return (ttft.baseline, ttft.speculative) != (content.baseline, content.speculative)


def latencies(captured: Captured) -> tuple[str, ...]:
    """Return lines with both arms' latencies, throughput and cached prompt tokens.

    Goodput is added if the config states an SLO.
    """
    return latency.lines(_latencies(captured))


def _latencies(captured: Captured) -> tuple[ArmLatency, ...]:
    arms = (latency.latency(arm, captured.slo) for arm in (captured.baseline, captured.speculative))
    return tuple(arm for arm in arms if arm is not None)


def describe_interval(measured: MeasuredSpeed) -> str:
    """Return the interval's confidence and its sources of error, in words.

    They are passes over the requests and boots of the servers. For an attached baseline (``one_boot``), a server that was running before,
    the interval leaves the spread between boots out.
    """
    estimate, passes = measured.estimate, len(measured.paces.response.log_ratios)
    if estimate is None or measured.interval is None:
        return f"{passes} pass, no interval"
    passed = f"{passes} passes of {measured.paces.requests} requests (spread {estimate.passes_sd:.1%})"
    interval = f"interval: {100 * measured.interval.confidence:.4g}% over {passed}"
    if measured.one_boot:
        student = f"Student's t with {measured.one_boot.within_freedom} degrees of freedom"
        # This run does not show the spread: the number is the one that gates assume.
        assumed = f"gates allow for boots as well, whose spread here is unknown: {estimate.boots.sd:.1%}"
        return f"{interval} within one boot of each server, {student}; {assumed}"
    # ``blocks`` has all boots if the variant has several; with a single one the boots are not counted.
    boots = "and boots" if measured.blocks is None else f"in {_describe_boots(measured.blocks)}"
    return f"{interval} {boots} (spread about {estimate.boots.sd:.1%})"


def _describe_boots(blocks: BootBlocks) -> str:
    return f"{len(blocks.speculative)} boots of the variant and {len(blocks.baseline)} of the baseline"


def describe_spread(measured: MeasuredSpeed) -> str:
    """Return the spread assumed between boots with its sources, in words.

    The control, another boot of the baseline, is a source of its own only without further boots: with these it is among the baseline's.
    """
    spread, runs = measured.spread, measured.earlier
    sources = [f"{runs} earlier run{'s' * (runs > 1)}"] if runs else []
    if measured.blocks:
        sources = [_describe_boots(measured.blocks), *sources]
    elif measured.control is not None:
        sources = [f"control at {math.exp(measured.control):.3f}x the baseline", *sources]
    # The prior: before anything is measured, all spreads up to LIKELY times the stated one are equally likely.
    assumed = f"up to {LIKELY * spread.stated_sd:.1%} equally likely beforehand ({LIKELY:g} times gates.speedup.boot_sd)"
    return f"boot spread: about {spread.sd:.1%}; {assumed}; measured: {' and '.join(sources) or 'none'}"


def doubts(captured: Captured, measured: MeasuredSpeed) -> tuple[str, ...]:
    """Return the caveats of the figures; empty without any.

    They are decoding that could not be timed, or a speedup that its own tokens per step and step gaps contradict.
    """
    timings = measured.paces
    if timings.whole:
        return (f"whole requests timed, first token included: {timings.bursts} of {timings.answers} answers came in one burst",)
    cost = _step_cost(captured, measured)
    return (str(cost.identity),) if cost and cost.identity and cost.identity.broken else ()


def list_further(captured: Captured, measured: MeasuredSpeed) -> tuple[str, ...]:
    """Return further lines of evidence beside the ratio.

    They are the baseline compared with itself, the speeds by boot, the first tokens of cached prompts, the client's load, acceptance, and
    the cost of a verify step with its check by step gaps. The control, which drafts nothing, has no lines on acceptance and verify steps.
    """
    controls = [_compare_control(captured.baseline, control, measured) for control in captured.baseline_boots[1:]]
    lines = [f"control against baseline: {_ratio(timings.response, 1):.3f}x" for timings in controls if timings is not None]
    lines += [str(measured.blocks)] if measured.blocks else []
    cached_prompts = first_tokens(captured)
    lines += [str(cached_prompts)] if cached_prompts else []
    lines += [f"client of {arm.arm}: {arm.client}" for arm in (captured.baseline, captured.speculative) if arm.client is not None]
    if captured.is_control:
        return tuple(lines)
    length, cost = measured.length, step_cost(captured, measured)
    accepted = describe_length(length) if length else "unknown, the server reports neither counters nor windows"
    lines += [f"acceptance length: {accepted}", *step_tokens.lines(captured.speculative, captured.pair.variant.draft)]
    return (*lines, *([str(cost)] if cost else []), *([str(cost.identity)] if cost and cost.identity else []))


def _compare_control(baseline: Transcript, control: Transcript, measured: MeasuredSpeed) -> ArmTimings | None:
    return paces((baseline,), control, whole=measured.paces.whole)


def figures(captured: Captured, measured: MeasuredSpeed, speed: Speedup) -> dict[str, float]:
    """Return all numbers of a measured speed, with units in their names.

    Speedups are above 1 if the variant is better.
    """
    timings = measured.paces
    quantities = {
        "response_tokens_per_s": speed.response,
        "ttft_s": speed.ttft,
        "content_ttft_s": speed.content,
        "prompt_tokens_per_s": speed.prompt,
    }
    ratios = {"ttft_speedup": speed.ttft, "content_ttft_speedup": speed.content, "prompt_speedup": speed.prompt}
    return {
        "speedup": speed.ratio,
        **_limit_figures(measured),
        **{f"baseline_{name}": figure.baseline for name, figure in quantities.items() if figure},
        **{f"speculative_{name}": figure.speculative for name, figure in quantities.items() if figure},
        **{name: figure.speedup for name, figure in ratios.items() if figure},
        **({"acceptance_length": measured.length.tokens} if measured.length else {}),
        **_step_figures(captured, measured),
        **_repeated_prompt_figures(captured),
        # Such answers show no decoding speed, so that whole requests were timed.
        **({"answers_in_one_burst": float(timings.bursts)} if timings.whole else {}),
        **({} if measured.control is None else {"boot_log_ratio": measured.control}),  # the control over the baseline: two boots
        **({"speculative_boots": float(len(measured.blocks.speculative))} if measured.blocks else {}),
        **({"baseline_boots": float(len(measured.blocks.baseline))} if measured.blocks else {}),
        **{name: value for side, arm in _sides(captured) for name, value in latency.figures(side, arm).items()},
        "boot_sd": measured.spread.sd,
        "passes": float(len(timings.response.log_ratios)),
    }


def _step_cost(captured: Captured, measured: MeasuredSpeed) -> StepCost | None:
    return None if captured.is_control else step_cost(captured, measured)


def _step_figures(captured: Captured, measured: MeasuredSpeed) -> dict[str, float]:
    """Return the tokens per step and step cost, by name; empty if unknown.

    ``speedup_by_steps`` is added if the streams show the steps: the speedup that tokens per step and the gaps between steps predict.
    """
    cost = _step_cost(captured, measured)
    if cost is None:
        return {}
    predicted = {"speedup_by_steps": cost.identity.predicted} if cost.identity else {}
    return {"tokens_per_step": cost.tokens_per_step, "step_cost": cost.cost, **predicted}


def _repeated_prompt_figures(captured: Captured) -> dict[str, float]:
    """Return the first-token times of prompts asked again over new ones, by name; empty if unknown."""
    again = first_tokens(captured)
    return {} if again is None else {"baseline_again_ttft": again.baseline, "speculative_again_ttft": again.speculative}


def _sides(captured: Captured) -> tuple[tuple[str, ArmLatency], ...]:
    """Return the latencies of both arms, each with its name in reports."""
    baseline = captured.baseline.arm
    return tuple(("baseline" if arm.arm == baseline else "speculative", arm) for arm in _latencies(captured))


def _limit_figures(measured: MeasuredSpeed) -> Mapping[str, float]:
    """Return the speedup's limits, and those over the passes alone, by name; empty without any."""
    limits = measured.interval
    if limits is None:
        return {}
    over_passes = measured.over_passes
    passes = {"passes_low": over_passes.low, "passes_high": over_passes.high} if over_passes else {}
    return {"speedup_low": limits.low, "speedup_high": limits.high, "confidence": limits.confidence, **passes}


def _row(title: str, figure: SpeedFigure, form: str) -> Sequence[str]:
    return (title, format(figure.baseline, form), format(figure.speculative, form), f"{figure.speedup:.2f}x")


def _ratio(figure: ComparedFigure, sign: int) -> float:
    """Return the geometric mean of a figure's ratios, or its reciprocal for a ``sign`` of -1."""
    return math.exp(sign * math.fsum(figure.log_ratios) / len(figure.log_ratios))
