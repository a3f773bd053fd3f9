"""Report formats at work: those that a session writes, their files in the run directory, run.json read back, benchmarks.

A Run has the verdicts of one run and all else that reports show. A format renders it as the text of one file, its ``target``. A matrix of
settings has a run for each group of them. Of the failures with one cause one leads, and the others follow.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from _pytest.junitxml import xml_key

from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import transcripts
from pytest_specdec.files.run_directory import atomic_write, read_text, writable
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.plugin.options import REPORT_FORMATS
from pytest_specdec.report import benchmark_json, junit, run
from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.run import Run, RunClass, TimedAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from xml.etree.ElementTree import Element

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.transcript import Transcript

FileFormat: TypeAlias = "ReportFormat[Run, str]"


def read_run(path: Path) -> Run:
    """Return the run of a directory, or of a run.json. Raises RunError."""
    document = path / "run.json" if path.is_dir() else path
    return run.read(read_document(document), str(document))


def read_document(document: Path) -> str:
    """Return the text of a run.json; raise RunError if unreadable."""
    try:
        return read_text(document)
    except (OSError, UnicodeDecodeError) as error:
        what, reason = "there is no run to read", str(getattr(error, "strerror", None) or error)
        remedy = (
            "name the directory of a run whose session came to its end; unpack an archive first; a replay or a repro leaves reports alone"
        )
        raise RunError(what, where=str(document), found=reason, expected="a run directory, or its run.json", remedy=remedy) from None


def file_formats(requested: Sequence[str]) -> tuple[FileFormat, ...]:
    """Return the session's report formats: run.json, and those requested by name.

    Raises pytest.UsageError if a format is missing, cannot be loaded, writes no file, or writes a file whose name another
    file of the run has.
    """
    formats = tuple(_load_or_refuse(name) for name in dict.fromkeys(("json", *requested)))
    used_names = set(_RUN_FILES)
    for form in formats:
        if form.target in used_names or Path(form.target).name != form.target:
            expected = "a plain file name that no other file of the run has"
            raise _usage_error(form.name, f"the target {form.target!r}", expected)
        used_names.add(form.target)
    return formats


_RUN_FILES = ("plan.json", "config.yaml", "environment.json", "status.json", "progress.jsonl", "session.json", "variables.json")


def _load_or_refuse(name: str) -> FileFormat:
    """Return the format called ``name``; raise pytest.UsageError if it cannot be used."""
    try:
        return load_format(name)
    except SpecdecError as error:
        raise _usage_error(name, error.found, error.expected) from None


def load_format(name: str) -> FileFormat:
    """Return the format called ``name``, found by its entry point in this package or another one.

    Raises SpecdecError if there is none or more than one, if it cannot be loaded, or if it writes no file.
    """
    what, remedy = f"no report format {name!r} that writes a file", "name md, html, junit or json, or install the package of the format"
    points = [*metadata.entry_points(group=REPORT_FORMATS, name=name)]
    if len(points) != 1:
        values = f"{len(points)} entry points {[point.value for point in points]}"
        raise SpecdecError(what, found=values, expected=f"one in the group {REPORT_FORMATS} of an installed package", remedy=remedy)
    try:
        form = points[0].load()
    except Exception as error:  # noqa: BLE001 - another package's import may raise anything
        reason = f"{type(error).__name__} in {points[0].value}: {error}"
        raise SpecdecError(what, found=reason, expected="a module that can be imported", remedy=remedy) from None
    if not isinstance(form, ReportFormat) or form.name != name or form.when is not When.FILES:
        expected = f"a ReportFormat called {name!r} that is due with When.FILES"
        raise SpecdecError(what, found=f"{form!r} in {points[0].value}", expected=expected, remedy=remedy)
    return form


def _usage_error(name: str, found: str, expected: str) -> pytest.UsageError:
    return pytest.UsageError(f"--specdec-report={name}: found {found}; expected {expected}")


def write(folder: Path, run: Run, formats: Sequence[FileFormat], secrets: Secrets) -> tuple[Path, ...]:
    """Write a file per format into ``folder`` and return the paths.

    All ``secrets`` in them are masked. Every text is rendered before any is written. Raises RunError if a file cannot be
    written.
    """
    texts = {folder / form.target: mask_report(secrets, form.target, form.render(run)) for form in formats}
    for path, text in texts.items():
        atomic_write(path, text)
    return tuple(texts)


def mask_report(secrets: Secrets, target: str, text: str) -> str:
    """Return a report's text with its secrets masked.

    In JSON only strings are masked, so that a number that happens to contain a secret's digits stays valid.
    """
    if not target.endswith(".json"):
        return secrets.mask(text)
    return json.dumps(secrets.mask_json(json.loads(text)), ensure_ascii=False, indent=1) + "\n" if secrets.values else text


def append_step_summary(render: Callable[[], str], secrets: Secrets) -> None:
    """Append the Markdown report that ``render`` returns to GitHub Actions' step summary.

    Secrets in it are masked. Nothing is done elsewhere.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with writable(Path(path)), Path(path).open("a", encoding="utf-8", errors="backslashreplace") as summary:
            summary.write(secrets.mask(render()))


def saves_benchmarks(config: pytest.Config) -> bool:
    """Return True if pytest-benchmark saves this session's benchmarks."""
    session: Any = getattr(config, "_benchmarksession", None)
    return session is not None and bool(session.json or session.save or session.autosave)


def timings(directory: RunDirectory, plan: Plan) -> Iterator[TimedAnswers]:
    """Yield the tokens and latencies of each arm's timed answers.

    There is an entry for the baseline and each variant on each timed workload. Missing transcripts are left out, since the tests report
    them.
    """
    for workload in (workload for workload in plan.workloads if workload.timed):
        for arm in (BASELINE, *(pair.name for pair in plan.pairs)):
            with suppress(RunError):
                transcript = transcripts.read(directory, arm, workload.name)
                if transcript is not None:
                    yield _timed_answers(arm, workload.name, transcript)


def _timed_answers(arm: str, workload: str, transcript: Transcript) -> TimedAnswers:
    """Return tokens and latencies of the successful answers that have both."""
    tokens_and_timings = [(answer.reported_tokens, answer.timing) for answer in transcript.answers if answer.ok]
    timed = [(tokens, timing.latency_s) for tokens, timing in tokens_and_timings if tokens and timing is not None]
    return TimedAnswers(arm=arm, workload=workload, tokens=tuple(n for n, _ in timed), latencies_s=tuple(s for _, s in timed))


def add_benchmarks(config: pytest.Config, run: Run, group: str = "") -> None:
    """Add the run's timings to those saved by pytest-benchmark.

    For a ``group`` of a matrix their names begin with it: each group has a baseline, and tools compare by name. Nothing is done if
    pytest-benchmark saves none.
    """
    if saves_benchmarks(config):
        session: Any = config._benchmarksession  # type: ignore[attr-defined]  # noqa: SLF001 - pytest-benchmark has no other way in
        prefix = f"{group}/" if group else ""
        session.benchmarks.extend(_convert_benchmark(benchmark, prefix) for benchmark in benchmark_json.FORMAT.render(run))


def withhold_speeds(config: pytest.Config, run: Run) -> None:
    """Remove the speed of variants with wrong tokens from pytest's JUnit file.

    pytest has not written the file yet, so that its cases are changed in memory. Nothing is done in a session without a JUnit file.
    """
    pairs_with_wrong_tokens = run.not_counted
    for case in _list_cases(config):
        junit.withhold_speed(case, pairs_with_wrong_tokens)


def point_to_leaders(config: pytest.Config, run: Run) -> None:
    """Name the leading failure in the JUnit case of each following failure.

    pytest has not written the file yet, so that its cases are changed in memory. Nothing is done in a session without a JUnit file.
    """
    log = config.stash.get(xml_key, None)
    if log is None:
        return
    pointers_by_case = junit.pointers(run, log.prefix or "")  # the prefix of class names, by --junit-prefix
    for case in _list_cases(config):
        junit.add_pointer(case, pointers_by_case)


def _list_cases(config: pytest.Config) -> list[Element]:
    """Return the test cases of pytest's JUnit file; [] in a session without one.

    They are the very elements that pytest writes later: once a test has ended, ``to_xml`` of its reporter returns the same one each time.
    """
    log = config.stash.get(xml_key, None)
    return [] if log is None else [reporter.to_xml() for reporter in log.node_reporters_ordered]


def describe_run(config: pytest.Config, run: Run, group: str = "") -> None:
    """Add the run's class and environment to the session's JUnit file.

    For a ``group`` of a matrix the properties are called ``specdec.GROUP.…``. Nothing is done without such a file.
    """
    log = config.stash.get(xml_key, None)
    if log is not None:
        for name, value in junit.suite_properties(run):
            log.add_global_property(name.replace("specdec.", f"specdec.{group}.", 1) if group else name, value)


def describe_matrix(config: pytest.Config, run_class: RunClass) -> None:
    """Add the class of a matrix to the session's JUnit file; nothing without such a file."""
    log = config.stash.get(xml_key, None)
    if log is not None:
        log.add_global_property("specdec.class", run_class.value)


def shorten_followers(reports: Mapping[str, pytest.TestReport], run: Run) -> None:
    """Replace the text of each following failure by a pointer to the leading one.

    pytest then prints only the leading failure in full. ``reports`` are those of the failed tests, by node id.
    """
    for nodeid, pointer in run.pointers.items():
        if nodeid in reports:
            reports[nodeid].longrepr = printable(pointer)


def _convert_benchmark(benchmark: benchmark_json.Benchmark, prefix: str) -> Any:  # noqa: ANN401 - pytest-benchmark has no types
    """Return a benchmark as the object that pytest-benchmark saves, ``prefix`` before its name.

    pytest-benchmark can save only objects of its own class ``Metadata``, which reads its fields from the benchmark's fixture.
    """
    stats: Any = import_module("pytest_benchmark.stats")
    name = prefix + benchmark.name
    fields = {"name": name, "fullname": name, "group": benchmark.group, "extra_info": dict(benchmark.extra_info)}
    fixture = SimpleNamespace(**fields, param=None, params=None, cprofile_stats=None, has_error=False)
    converted = stats.Metadata(fixture, iterations=1, options={})
    for seconds in benchmark.seconds:
        converted.update(seconds)
    return converted
