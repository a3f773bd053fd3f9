"""The timings of a run as benchmarks, for the JSON that comparison tools read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.report.formats import ReportFormat, When

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.run import Run

__all__ = ["FORMAT", "Benchmark", "benchmarks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Timings under one name."""

    name: str
    group: str
    seconds: tuple[float, ...]
    extra_info: Mapping[str, JSON]


def benchmarks(run: Run) -> tuple[Benchmark, ...]:
    """Return the latencies of each arm's timed answers, and the capture as a whole.

    Without them a session whose answers were timed by servers alone would have "no benchmarks", which strict projects make an error.
    """
    about: dict[str, JSON] = {"config": run.plan.config, "depth": run.plan.depth.value}
    timed = (
        Benchmark(
            name=f"{arm.workload}[{arm.arm}]",
            group=arm.workload,
            seconds=arm.latencies_s,
            extra_info={**about, "tokens_per_s": round(arm.tokens / sum(arm.latencies_s), 3)},
        )
        for arm in run.timings
        if sum(arm.latencies_s) > 0.0
    )
    wall_s = run.status.wall_s if run.status is not None else 0.0
    capture = [Benchmark(name="capture", group="capture", seconds=(wall_s,), extra_info=about)] if wall_s > 0.0 else []
    return (*timed, *capture)


FORMAT = ReportFormat(name="benchmark", target="--benchmark-json", when=When.FINISH, render=benchmarks)
