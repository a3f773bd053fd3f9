"""The timings of a run as benchmarks, for the JSON that comparison tools read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.run import NOT_COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Timings under one name."""

    name: str
    group: str
    seconds: tuple[float, ...]
    """Of each timed answer, seconds per token; of the capture, its duration."""
    extra_info: Mapping[str, JSON]


def benchmarks(run: Run) -> tuple[Benchmark, ...]:
    """Return each arm's seconds per token, and the duration of the capture.

    An arm is the baseline or a variant. An answer's time from sending to the last byte is divided by its tokens, at least one, so that
    answers of another length, as after a change of ``max_tokens``, can still be compared. Arms of variants with wrong tokens are left out,
    since tools compare whatever number there is, and the ``extra_info`` of every benchmark names these variants. The capture has a
    benchmark of its own: without any, pytest-benchmark warns, and projects may turn warnings into errors. Arms and captures without a
    measured time are left out.
    """
    common_info: dict[str, JSON] = {"config": run.plan.config, "depth": run.plan.depth.value}
    if run.not_counted:
        common_info["not_comparable"] = dict.fromkeys(map(printable, run.not_counted), NOT_COUNTED)
    timed = (
        Benchmark(
            name=f"{timing.workload}[{timing.arm}]",
            group=timing.workload,
            seconds=tuple(latency / tokens for latency, tokens in zip(timing.latencies_s, timing.tokens, strict=True)),
            extra_info={**common_info, "unit": "seconds per token", "tokens_per_s": round(sum(timing.tokens) / sum(timing.latencies_s), 3)},
        )
        for timing in run.timings
        if sum(timing.latencies_s) > 0.0 and timing.arm not in run.not_counted
    )
    wall_s = run.status.wall_s if run.status is not None else 0.0
    capture = [Benchmark(name="capture", group="capture", seconds=(wall_s,), extra_info=common_info)] if wall_s > 0.0 else []
    return (*timed, *capture)


FORMAT = ReportFormat(name="benchmark", target="--benchmark-json", when=When.FINISH, render=benchmarks)
