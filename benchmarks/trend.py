"""Steps of a trend on simulated runs: ``python -m benchmarks.trend`` writes benchmarks/results/trend.{json,md}.

``--history DIR [--runs N] [--template RUN.json]`` writes run.json of N nights instead, made from a real run: each figure varies by 3 %, one
night is far off, and at an engine's upgrade after two thirds the speed falls by a tenth. ``python -m pytest_specdec trend DIR`` reads them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks import results
from pytest_specdec.model.promise import AcceptedLength, SampledTokens, SpeedLimits, Speedup
from pytest_specdec.report import run, trend, trend_page
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.trend import ALPHA
from pytest_specdec.stats.change_point import find_change_points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.promise import Promise
    from pytest_specdec.report.run import JudgementResult, Run

Floats: TypeAlias = npt.NDArray[np.float64]
Draw: TypeAlias = Callable[[np.random.Generator, int], Floats]

TEMPLATE = Path("docs/examples/vllm-gpu/run.json")
SPREAD, LOSS = 0.03, 0.1
SERIES = 1_000
COUNTS = (5, 10, 20, 60, 200, 400)
AFTER = (1, 2, 3, 4, 5, 7, 10)
SIZE = f"Series without a step that are marked, at {ALPHA:.0%}"
DEPENDENT = "False steps where neighbouring runs are correlated"
POWER = f"A loss of {LOSS:.0%} at a spread of {SPREAD:.0%} that is marked, by runs since"
PLACE = "Where a marked loss is put"
NIGHTLY = "A steady series looked at again after every run, marked at some time"


def normal(rng: np.random.Generator, count: int) -> Floats:
    """Return independent normal values."""
    return rng.normal(size=count)


def heavy(rng: np.random.Generator, count: int) -> Floats:
    """Return values of Student's t with two degrees of freedom, which has no finite variance."""
    return rng.standard_t(2, count)


def draw_whole_numbers(rng: np.random.Generator, count: int) -> Floats:
    """Return whole numbers, most of them 0."""
    return rng.normal(size=count).round()


def draw_with_outlier(rng: np.random.Generator, count: int) -> Floats:
    """Return normal values, one of them far off."""
    return np.where(np.arange(count) == rng.integers(count), 1000.0, rng.normal(size=count))


def correlate(rho: float) -> Draw:
    """Return what draws normal values with the correlation ``rho`` between neighbours."""

    def draw(rng: np.random.Generator, count: int) -> Floats:
        values = rng.normal(size=count)
        for i in range(1, count):
            values[i] = rho * values[i - 1] + math.sqrt(1.0 - rho**2) * values[i]
        return values

    return draw


SHAPES: dict[str, Draw] = {
    "normal": normal,
    "Student's t, 2 degrees": heavy,
    "whole numbers": draw_whole_numbers,
    "one far off": draw_with_outlier,
}


def measure_marked_share(draw: Draw, count: int, series: int = SERIES) -> float:
    """Return the share of series with a step."""
    rng = np.random.default_rng(count)
    return sum(bool(find_change_points(draw(rng, count), ALPHA)) for _ in range(series)) / series


def measure_losses(before: int, after: int, series: int = SERIES // 2) -> tuple[float, float, float]:
    """Return the share of losses that are marked, and of these the shares put at the very run and with it in the confidence set."""
    rng = np.random.default_rng(before)
    places = []
    for _ in range(series):
        values = rng.normal(0.0, SPREAD, before + after)
        values[before:] += math.log1p(-LOSS)
        places += [one for one in find_change_points(values, ALPHA) if abs(one.index - before) <= 2][:1]
    seen = max(len(places), 1)
    return (
        len(places) / series,
        sum(one.index == before for one in places) / seen,
        sum(one.earliest <= before <= one.latest for one in places) / seen,
    )


def measure_nightly_share(nights: int, series: int = 100) -> float:
    """Return the share of steady series that are marked on one night or more."""
    rng = np.random.default_rng(nights)
    return (
        sum(any(find_change_points(values[: n + 1], ALPHA) for n in range(nights)) for values in rng.normal(size=(series, nights))) / series
    )


def rows() -> Iterator[dict[str, object]]:
    """Yield the rows of all tables."""
    for name, draw in SHAPES.items():
        yield {"table": SIZE, "values": name, **{f"{count} runs": f"{measure_marked_share(draw, count):.3f}" for count in COUNTS}}
    for rho in (0.1, 0.2, 0.3, 0.5):
        shares = {f"{count} runs": f"{measure_marked_share(correlate(rho), count, 300):.3f}" for count in COUNTS[1:]}
        yield {"table": DEPENDENT, "correlation of neighbours": rho, **shares}
    for before in (10, 20, 60, 200):
        yield {"table": POWER, "runs before": before, **{str(after): f"{measure_losses(before, after)[0]:.2f}" for after in AFTER}}
    for after in (3, 5, 10, 30):
        share, exact, inside = measure_losses(60, after)
        seen = {"marked": f"{share:.2f}", "at the very run": f"{exact:.2f}", "within the 95 % confidence set": f"{inside:.3f}"}
        yield {"table": PLACE, "runs before": 60, "runs since": after, **seen}
    for nights in (30, 100, 365):
        yield {"table": NIGHTLY, "nights": nights, "marked": f"{measure_nightly_share(nights):.2f}"}


def history(template: Run, count: int, *, seed: int = 7) -> Iterator[Run]:
    """Yield ``count`` nightly runs made from a real one, with a step at two thirds of them."""
    rng = np.random.default_rng(seed)
    upgrade, start = 2 * count // 3, datetime(2026, 1, 5, 2, 30, tzinfo=UTC)
    environment, status = template.environment, template.status
    for number in range(count):
        after, factor = number >= upgrade, float(np.exp(rng.normal(0.0, SPREAD)))
        factor *= (1.0 - LOSS if after else 1.0) * (0.4 if number == count // 4 else 1.0)
        pair = template.pairs[0]
        judgements = tuple(_judgement(one, factor if one.pair == pair else 1.0, rng) for one in template.judgements)
        if number in {upgrade, upgrade + 1}:
            judgements = tuple(_waive_failure(one) if number > upgrade else one for one in judgements)
        else:
            judgements = tuple(map(_waive_failure, judgements))
        wall_s = 300.0 * float(np.exp(rng.normal(0.0, 0.05)))
        yield replace(
            template,
            replayed=False,
            made_at=(start + timedelta(days=number, seconds=float(rng.integers(600)))).isoformat(timespec="seconds"),
            environment=environment and replace(environment, engine_version="0.27.0" if after else "0.26.0"),
            status=status and replace(status, wall_s=round(wall_s, 3), served=tuple(replace(b, wall_s=wall_s) for b in status.served)),
            judgements=judgements,
        )


def _waive_failure(judgement: JudgementResult) -> JudgementResult:
    """Return a judgement, with a failure as one that a waiver expects."""
    return replace(judgement, result=PytestOutcome.WAIVED) if judgement.result is PytestOutcome.FAILED else judgement


def _judgement(judgement: JudgementResult, factor: float, rng: np.random.Generator) -> JudgementResult:
    verdict = judgement.verdict
    if verdict is None:
        return judgement
    vary = float(np.exp(rng.normal(0.0, 0.01)))
    figures = {name: value * vary if name.endswith("_nats") else value for name, value in verdict.figures.items()}
    return replace(judgement, verdict=replace(verdict, promise=_promise(verdict.promise, factor, rng), figures=figures))


def _promise(promise: Promise | None, factor: float, rng: np.random.Generator) -> Promise | None:
    """Return a promise with other figures."""
    if isinstance(promise, AcceptedLength):
        return replace(promise, tokens_per_step=promise.tokens_per_step * float(np.exp(rng.normal(0.0, 0.01))))
    if isinstance(promise, SampledTokens):
        return replace(promise, log10_wealth=float(rng.exponential(0.35)))
    if not isinstance(promise, Speedup):
        return promise
    own = float(np.exp(rng.normal(0.0, SPREAD / 2.0)))
    response = promise.response
    baseline = response.baseline * own
    ratio = 2.1 * response.speedup * factor
    return replace(
        promise,
        response=replace(response, baseline=baseline, speculative=baseline * ratio, speedup=ratio),
        limits=SpeedLimits(low=ratio * 0.94, high=ratio * 1.06),
    )


def write_history(folder: Path, template: Path, count: int) -> None:
    """Write run.json of each night into a folder of its own."""
    stored = run.read(template.read_text(encoding="utf-8"), str(template))
    for night in history(stored, count):
        target = folder / night.made_at[:10] / "run.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(run.render(night), encoding="utf-8")


def seconds_of_a_page(template: Path, count: int) -> dict[str, object]:
    """Return what reading ``count`` runs and rendering their page takes: processor time, since others may use the machine."""
    stored = run.read(template.read_text(encoding="utf-8"), str(template))
    texts = [run.render(night) for night in history(stored, count)]
    began = time.process_time()
    trends = trend.build([trend.read(text, "run.json") for text in texts])
    page = trend_page.render(trends)
    taken = time.process_time() - began
    size = {"MB of a run.json": f"{len(texts[0]) / 1e6:.2f}", "MB of the page": f"{len(page) / 1e6:.2f}"}
    return {
        "table": "Processor seconds for the page of many runs",
        "runs": count,
        "variants": len(stored.pairs),
        **size,
        "seconds": f"{taken:.1f}",
    }


def main() -> None:
    """Measure and write, or write a history."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trend")
    parser.add_argument("--history", type=Path, help="write nightly runs into this folder instead")
    parser.add_argument("--runs", type=int, default=90)
    parser.add_argument("--template", type=Path, default=TEMPLATE)
    options, began = parser.parse_args(), time.monotonic()
    if options.history is not None:
        write_history(options.history, options.template, options.runs)
        return
    pages = [seconds_of_a_page(Path(f"docs/examples/{name}/run.json"), 400) for name in ("vllm-gpu", "vllm-cpu")]
    results.write("trend", [*rows(), *pages], command="python -m benchmarks.trend", seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
