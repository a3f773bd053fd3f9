"""The timings of a run as benchmarks of pytest-benchmark, whose JSON comparison tools read."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import RunError
from pytest_specdec.files import transcripts
from pytest_specdec.model.pair import BASELINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.run import Run

__all__ = ["add"]


def add(config: pytest.Config, directory: RunDirectory, run: Run) -> None:
    """Add the run's timings, in seconds, where this session saves benchmarks: each timed answer by arm, and the capture as a whole.

    Without them a session whose answers were timed by servers alone would have "no benchmarks", which strict projects make an error.
    """
    session: Any = getattr(config, "_benchmarksession", None)
    if session is None or not (session.json or session.save or session.autosave):
        return
    about: dict[str, JSON] = {"config": run.plan.config, "depth": run.plan.depth.value}
    for found in _timed(directory, run):
        seconds = [answer.timing.latency_s for answer in found.answers if answer.ok and answer.timing is not None]
        if sum(seconds) > 0.0:
            rate = {"tokens_per_s": round(found.tokens / sum(seconds), 3)}
            session.benchmarks.append(_benchmark(f"{found.workload}[{found.arm}]", found.workload, seconds, {**about, **rate}))
    if run.status is not None and run.status.wall_s > 0.0:
        session.benchmarks.append(_benchmark("capture", "capture", [run.status.wall_s], about))


def _timed(directory: RunDirectory, run: Run) -> Iterator[Transcript]:
    for workload in run.plan.workloads:
        for arm in (BASELINE, *(pair.name for pair in run.plan.pairs)) if workload.timed else ():
            with suppress(RunError):  # the tests that miss it have said so
                found = transcripts.read(directory, arm, workload.name)
                if found is not None:
                    yield found


def _benchmark(name: str, group: str, seconds: Sequence[float], about: dict[str, JSON]) -> Any:  # noqa: ANN401 - pytest-benchmark has no types
    stats: Any = import_module("pytest_benchmark.stats")
    fixture = SimpleNamespace(
        name=name, fullname=name, group=group, param=None, params=None, extra_info=about, cprofile_stats=None, has_error=False
    )
    made = stats.Metadata(fixture, iterations=1, options={})
    for each in seconds:
        made.update(each)
    return made
