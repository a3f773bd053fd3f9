"""The corners of an upgrade: old and new run by baseline and variant, as a table of texts.

An arm is the baseline, the model without speculation, or a variant, with it. A compared figure is one figure of speed of an arm in both
runs, over the requests that both sent. A promise is what a verdict has measured, such as a speedup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_change import BaselineRelation
from pytest_specdec.judge.compared_speed import UpgradeFigure
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.promise import AcceptedLength, Speedup
from pytest_specdec.report.environment import conditions
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import NOT_COUNTED
from pytest_specdec.report.upgrade import CornerRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.judge.compared_speed import ChangedFigure, ComparedSpeed
    from pytest_specdec.model.promise import Promise
    from pytest_specdec.report.run import Run

__all__ = ["list_corners"]

_NONE = "-"
_SHORT = {UpgradeFigure.DECODE: "decode", UpgradeFigure.TTFT: "first token", UpgradeFigure.LENGTH: "accepted tokens"}


def list_corners(old: Run, new: Run, baseline: BaselineChange | None, speed: ComparedSpeed | None) -> tuple[CornerRow, ...]:
    """Return a table of both runs, with one row per arm.

    The header comes first, then the baseline, then each variant of either run. The last column has the ratios of new over old. The
    baseline's speeds are those of the requests that both runs sent, or if not compared, of each run's first timed verdict.
    """
    variants = dict.fromkeys((*old.pairs, *new.pairs))
    header = CornerRow(arm="arm", old=f"old: {_describe_engine(old)}", new=f"new: {_describe_engine(new)}", change="new over old")
    answers_text, baseline_figures = _describe_answers(baseline), _first_figures(BASELINE, speed)
    rows = [
        CornerRow(
            arm=BASELINE,
            old=_describe_compared({kind: figure.old for kind, figure in baseline_figures.items()}) or _describe_baseline(old),
            new=_describe_compared({kind: figure.new for kind, figure in baseline_figures.items()}) or _describe_baseline(new),
            change="; ".join((answers_text, *_describe_ratios(BASELINE, speed))),
        ),
        *(
            CornerRow(
                arm=variant,
                old=_describe_variant(old, variant),
                new=_describe_variant(new, variant),
                change="; ".join(_describe_ratios(variant, speed)) or _NONE,
            )
            for variant in variants
        ),
    ]
    all_rows = (header, *rows)
    return tuple(CornerRow(**{name: printable(getattr(row, name)) for name in ("arm", "old", "new", "change")}) for row in all_rows)


def _describe_engine(run: Run) -> str:
    return conditions(run.environment).get("engine", run.plan.engine)


def _describe_answers(change: BaselineChange | None) -> str:
    """Return what became of the baseline's answers, in few words."""
    if change is None or change.relation is BaselineRelation.UNKNOWN:
        return "answers not compared"
    return "the same answers" if change.relation is BaselineRelation.SAME else "other answers"


def _describe_compared(speeds: Mapping[UpgradeFigure, float]) -> str:
    """Return the baseline's speeds in one run, over the requests of both runs.

    ``speeds`` are by kind. The ratios in the last column are made of them. Empty without a decode speed.
    """
    return _describe_speeds(speeds[UpgradeFigure.DECODE], speeds.get(UpgradeFigure.TTFT)) if UpgradeFigure.DECODE in speeds else ""


def _describe_baseline(run: Run) -> str:
    """Return the baseline's speed, as the first timed verdict has it."""
    speedup = next((promise for promise in _promises(run) if isinstance(promise, Speedup)), None)
    if speedup is None:
        return "not timed"
    return _describe_speeds(speedup.response.baseline, speedup.ttft.baseline if speedup.ttft else None)


def _describe_speeds(tokens_per_s: float, ttft_s: float | None) -> str:
    first = f", first token {1e3 * ttft_s:,.3g} ms" if ttft_s is not None else ""
    return f"{tokens_per_s:,.4g} tokens/s{first}"


def _describe_variant(run: Run, variant: str) -> str:
    """Return a variant's findings, speedup and accepted length in words.

    It is ``not judged`` if the run did not judge the variant. If tokens are wrong, a note that speed does not count stands for the figures.
    """
    if variant not in run.pairs:
        return "not judged"
    names = list(dict.fromkeys(cause.name for cause in run.causes.get(variant, ())))
    findings = f"{len(names)} finding{'s' * (len(names) != 1)}: {', '.join(names)}" if names else "no finding"
    if variant in run.not_counted:
        return f"{findings}; speed {NOT_COUNTED}"
    return "; ".join((findings, *_describe_promises(run, variant)))


def _describe_promises(run: Run, variant: str) -> Iterator[str]:
    """Yield the first speedup and the first accepted length of a variant."""
    promises = list(_promises(run, variant))
    speedup = next((promise for promise in promises if isinstance(promise, Speedup)), None)
    length = next((promise for promise in promises if isinstance(promise, AcceptedLength)), None)
    if speedup is not None:
        yield f"{speedup.ratio:.2f}x"
    if length is not None:
        yield f"{length.tokens_per_step:.2f} tokens per step"


def _promises(run: Run, variant: str = "") -> Iterator[Promise]:
    """Yield what the run's verdicts have measured, in order.

    Only that of ``variant``, or of all variants if it is empty.
    """
    for judgement in run.judgements:
        if judgement.verdict is not None and judgement.verdict.promise is not None and variant in {"", judgement.pair}:
            yield judgement.verdict.promise


def _describe_ratios(arm: str, speed: ComparedSpeed | None) -> Iterator[str]:
    """Yield each ratio of an arm in few words."""
    for kind, figure in _first_figures(arm, speed).items():
        limits = f" [{figure.low:.2f}, {figure.high:.2f}]" if figure.has_limits else ""
        yield f"{_SHORT[kind]} {figure.ratio:.2f}x{limits}"


def _first_figures(arm: str, speed: ComparedSpeed | None) -> Mapping[UpgradeFigure, ChangedFigure]:
    """Return the first compared figure of each kind for one arm.

    Of several workloads the first counts. Empty if no speeds were compared.
    """
    first: dict[UpgradeFigure, ChangedFigure] = {}
    for figure in speed.ratios if speed is not None else ():
        if figure.arm == arm:
            first.setdefault(figure.figure, figure)
    return first
