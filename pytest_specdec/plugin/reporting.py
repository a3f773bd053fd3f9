"""The end of a session: gather verdicts from test reports, write the run's documents, print the table, set the exit code."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, run_documents
from pytest_specdec.files.run_directory import RunDirectory, atomic_write, writable
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import baselines, benchmark_json, run_state
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.report import markdown, terminal
from pytest_specdec.report.run import JudgementResult, PytestOutcome, Run, document
from pytest_specdec.report.table import Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from typing import Any

    from pytest_specdec.model.plan import Plan

__all__ = [
    "CELL",
    "ERROR",
    "LEFT_OUT",
    "VERDICT",
    "SummaryPlugin",
    "again",
    "benchmark",
    "gathered",
    "is_of",
    "judgements",
    "left_out",
    "notes",
    "replay",
    "replay_of",
    "show",
    "write",
]

T = TypeVar("T")

MARKUP: Mapping[Tone, Mapping[str, bool]] = {
    Tone.GOOD: {"green": True},
    Tone.UNSURE: {"yellow": True},
    Tone.BAD: {"red": True, "bold": True},
    Tone.PLAIN: {},
}


def is_of(config: pytest.Config, root: Path, session: str) -> bool:
    """Return whether the run in ``root`` is this session's, or one that it judges again; another session may have been faster."""
    settings = config.stash[SETTINGS]
    return bool(settings.replay or settings.taken_up) or run_documents.session(RunDirectory(root)) == session


def gathered(config: pytest.Config, root: Path, judgements: Sequence[JudgementResult], warnings: Sequence[str]) -> Run:
    """Return the run in ``root`` with what was judged of it."""
    directory = RunDirectory.open(root)
    plan, environment = run_documents.read_plan(directory), _or_none(run_documents.read_environment, directory)
    return Run(
        directory=run_state.shown(root, config),
        replayed=config.stash[SETTINGS].replay is not None,
        plan=plan,
        environment=environment,
        status=_or_none(run_documents.read_status, directory),
        judgements=_in_order(plan, judgements),
        capabilities=_or_none(run_documents.read_capabilities, directory) or {},
        notes=(*warnings, *baselines.notes(config.stash[SETTINGS].baselines, plan.config, environment)),
        made_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
    )


def _in_order(plan: Plan, judgements: Sequence[JudgementResult]) -> tuple[JudgementResult, ...]:
    """Sort by pair, family and workload: tests that run in several processes come in any order."""
    pairs = [pair.name for pair in plan.pairs]
    return tuple(sorted(judgements, key=lambda one: (pairs.index(one.pair), one.family.value, one.workload)))


def _or_none(read: Callable[[RunDirectory], T], directory: RunDirectory) -> T | None:
    """Return what an unfinished capture may not have written."""
    try:
        return read(directory)
    except RunError:
        return None


def write(config: pytest.Config, root: Path, run: Run) -> tuple[str, ...]:
    """Write the documents and return a line for each; a replay leaves the stored run alone and writes only where it was told to."""
    settings = config.stash[SETTINGS]
    folder = settings.run_dir if settings.replay else root
    secrets = Secrets.of(os.environ)
    texts = {"run.json": json.dumps(secrets.masked(document(run)), ensure_ascii=False, indent=1) + "\n"}
    if "md" in settings.reports:
        texts["report.md"] = secrets.mask(markdown.render(run))
    _append_step_summary(secrets.mask(markdown.render(run)))
    if folder is None:
        return ()
    for name, text in texts.items():
        atomic_write(folder / name, text)
    lines = tuple(f"{Path(name).stem}: {run_state.shown(folder / name, config)}" for name in texts)
    return (*lines, *_baseline(config, folder, run))


def benchmark(config: pytest.Config, root: Path, run: Run) -> None:
    """Hand the run's timings to pytest-benchmark, which may save them."""
    benchmark_json.add(config, RunDirectory.open(root), run)


def _baseline(config: pytest.Config, folder: Path, run: Run) -> tuple[str, ...]:
    """Update the baseline file where that was asked for; show what it would be where there is none."""
    settings, environment = config.stash[SETTINGS], run.environment
    if environment is None:
        return ()
    verdicts = [judgement.verdict for judgement in run.judgements if judgement.verdict]
    if settings.update_baselines:
        updated = baselines.update(settings.baselines, run.plan.config, environment, verdicts)
        return (f"baseline updated: {run_state.shown(updated.path, config)}", *(f"  {move}" for move in updated.moves)) if updated else ()
    home = baselines.path(settings.baselines, run.plan.config, environment)
    path = None if home.is_file() else baselines.candidate(folder, environment, verdicts)
    return (
        (f"baseline candidate: {run_state.shown(path, config)}, for {run_state.shown(home, config)} (or --specdec-update-baselines)",)
        if path
        else ()
    )


def _append_step_summary(text: str) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with writable(Path(path)), Path(path).open("a", encoding="utf-8", errors="backslashreplace") as summary:
            summary.write(text)


def show(config: pytest.Config, reporter: pytest.TerminalReporter, root: Path, run: Run) -> None:
    """Print the summary of the run in ``root``, write its documents, and say where they are, or why they are not."""
    reporter.write_sep("-", "specdec", bold=True)
    further, verbose = again(config, "--specdec-continue", root), config.get_verbosity() > 0
    lines = terminal.lines(run, artifacts=(), remedy=_remedy(config, root, run), further=further, verbose=verbose)
    remedy = len(lines) - run.red
    _print(reporter, lines[:remedy])
    try:
        for artifact in write(config, root, run):
            reporter.write_line(artifact)
    except (RunError, OSError) as error:
        reporter.write_line(f"the documents of the run are not written: {error}", **MARKUP[Tone.BAD])
    _print(reporter, lines[remedy:])


def _print(reporter: pytest.TerminalReporter, lines: Sequence[terminal.Line]) -> None:
    for line in lines:
        for shown in line:
            reporter.write(shown.text, **MARKUP[shown.tone])
        reporter.write_line("")


def _remedy(config: pytest.Config, root: Path, run: Run) -> str:
    if run.status is None or run.status.state is not State.COMPLETE:
        logs = f"the capture is not complete: its servers' logs are in {run.directory}/servers"
        return f"{logs}; take it up again: {again(config, '--specdec-resume', root)}"
    return f"judge it again, without a server: {replay(config, root)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Properties:
    """The JSON that a test's properties carry."""

    cell: dict[str, Any]
    errors: tuple[dict[str, Any], ...]
    verdicts: tuple[dict[str, Any], ...]


def judgements(report: pytest.TestReport, properties: Sequence[tuple[str, object]]) -> tuple[JudgementResult, ...]:
    """Return what one report of a test of ours says; nothing before the test's last word."""
    is_last = report.when == "call" or (report.when == "setup" and not report.passed)
    said = _said(properties)
    if not is_last or not said.cell:
        return ()
    bare = JudgementResult(
        nodeid=report.nodeid,
        pair=said.cell["pair"],
        workload=said.cell["workload"],
        family=Family(said.cell["family"]),
        result=_result(report),
        error=_error(report, said),
    )
    return _with_verdicts(bare, said) or (bare,)


def left_out(properties: Sequence[tuple[str, object]]) -> set[tuple[str, str]]:
    """Return why and what, where a test of ours had nothing planned to judge."""
    found = [json.loads(str(value)) for name, value in properties if name == LEFT_OUT]
    return {(str(one["why"]), str(one["what"])) for one in found}


def notes(left: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return a sentence for each reason that something was left out for."""
    by_reason: dict[str, list[str]] = {}
    for why, what in sorted(left):
        by_reason.setdefault(why, []).append(what)
    return tuple(f"{why}: {', '.join(names)}" for why, names in by_reason.items())


def _said(properties: Sequence[tuple[str, object]]) -> _Properties:
    by_name: dict[str, list[dict[str, Any]]] = {CELL: [{}], ERROR: [], LEFT_OUT: [], VERDICT: []}
    for name, value in properties:
        by_name[name].append(json.loads(str(value)))
    return _Properties(cell=by_name[CELL][-1], errors=tuple(by_name[ERROR]), verdicts=tuple(by_name[VERDICT]))


def _result(report: pytest.TestReport) -> PytestOutcome:
    """Return what pytest made of the test; an expected failure is reported as skipped."""
    if report.when == "setup" and report.failed:
        return PytestOutcome.ERROR
    return PytestOutcome(report.outcome)


def _error(report: pytest.TestReport, said: _Properties) -> str:
    if said.errors:
        return str(said.errors[-1]["text"])
    if report.skipped and not said.verdicts:
        return _skipped(report)
    return report.longreprtext if report.when == "setup" and report.failed else ""


def _skipped(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")


def _with_verdicts(bare: JudgementResult, said: _Properties) -> tuple[JudgementResult, ...]:
    """Return a judgement per verdict; what failed a test behind its passing verdicts is charged to the last of them."""
    found = [replace(bare, verdict=codec.decode(Verdict, v["verdict"]), result=PytestOutcome(v["result"])) for v in said.verdicts]
    if found and (bare.result is not PytestOutcome.FAILED or all(j.result is not PytestOutcome.FAILED for j in found)):
        found[-1] = replace(found[-1], result=bare.result)
    return tuple(found)


PLACES = ("--specdec-run-dir", "--specdec-replay", "--specdec-resume", "--specdec-continue")
"""Options that name a run: a session has one of them at most."""


def again(config: pytest.Config, option: str, run: Path) -> str:
    """Return the command line of this session with ``option`` in place of what named its run, as typed where it was typed."""
    args = [*_without_places([str(arg) for arg in config.invocation_params.args]), option, run_state.shown(run, config)]
    return f"pytest {shlex.join(args)}"


def _without_places(args: list[str]) -> list[str]:
    rest, skipped = [], False
    for arg in args:
        if skipped or arg.partition("=")[0] in PLACES:
            skipped = arg in PLACES
        else:
            rest.append(arg)
    return rest


def replay(config: pytest.Config, run: Path) -> str:
    """Return the command that judges all that this session judged again, without a server."""
    tests = [run_state.shown(config.invocation_params.dir / arg, config) for arg in config.args]
    return f"pytest {shlex.join(tests)} --specdec-replay {shlex.quote(run_state.shown(run, config))}"


def replay_of(item: pytest.Item, run: Path) -> str:
    """Return the command that judges what ``item`` judged again, without a server."""
    path, colons, rest = item.nodeid.partition("::")
    node = run_state.shown(item.config.rootpath / path, item.config) + colons + rest
    return f"pytest {shlex.quote(node)} --specdec-replay {shlex.quote(run_state.shown(run, item.config))}"


CELL = "specdec.cell"
ERROR = "specdec.error"
LEFT_OUT = "specdec.left_out"
VERDICT = "specdec.verdict"
CARRIERS = frozenset({CELL, ERROR, LEFT_OUT, VERDICT})
"""Names of the properties that carry JSON from the test, maybe in a worker, to the summary; they reach no JUnit file."""


class SummaryPlugin:
    """Registered where tests of ours will run: in the only process, or in the controller of several."""

    def __init__(self, config: pytest.Config, root: Path, *, session: str, warnings: Sequence[str] = ()) -> None:
        self._config = config
        self._root = root
        self._session = session
        self._warnings = tuple(warnings)
        self._judgements: list[JudgementResult] = []
        self._left_out: set[tuple[str, str]] = set()
        """Why, and what."""
        self._run: Run | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test of ours says, before other plugins see the report."""
        ours = [(name, value) for name, value in report.user_properties if name in CARRIERS]
        if ours:
            report.user_properties = [pair for pair in report.user_properties if pair[0] not in CARRIERS]
            self._judgements += judgements(report, ours)
            self._left_out |= left_out(ours)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Gather the run before pytest-benchmark, a wrapper too, saves what there is."""
        if (self._root / "plan.json").is_file():
            self._finish(session, exitstatus)
        yield

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Gather the run; one in which nothing could be judged is no success."""
        if not is_of(self._config, self._root, self._session):
            return
        warnings = (*self._warnings, *notes(self._left_out))
        self._run = gathered(self._config, self._root, self._judgements, warnings)
        if self._config.pluginmanager.getplugin("terminalreporter") is None:
            write(self._config, self._root, self._run)
        benchmark(self._config, self._root, self._run)
        if exitstatus == pytest.ExitCode.OK and not self._run.judged:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table and what goes with it, then write the documents: a full disk is not to cost the verdicts."""
        if self._run is not None:
            show(self._config, terminalreporter, self._root, self._run)
