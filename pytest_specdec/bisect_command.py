"""The command ``bisect CONFIG --good V --bad V``: the first release of an engine that has a fault.

Its ends are the releases V. A trial is one run of the tests at one release, in an environment of its own. The record, a file, has the
question put to every release and the trials so far, so that the same command goes on where it ended.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.bisect import record as records
from pytest_specdec.bisect import summary
from pytest_specdec.bisect.environments import Environments, environment_command
from pytest_specdec.bisect.record import Question, Record, Trial
from pytest_specdec.bisect.releases import list_releases, select_between
from pytest_specdec.bisect.search import DETECTION, Answer, Ask, End
from pytest_specdec.bisect.trial import Runner
from pytest_specdec.capture.runner import raise_on_sigterm
from pytest_specdec.config import load, shipped
from pytest_specdec.errors import DeadlineError, EngineError, SpecdecError
from pytest_specdec.files.run_directory import RUNS, safe
from pytest_specdec.model.workload import Depth
from pytest_specdec.report_command import refuse

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

    from pytest_specdec.config.config import Config

_ABOUT = (
    "Find the first release of an engine that has a fault: an environment per release, the selected tests in each, a run at a time. Both "
    "ends are verified first. The same command goes on where it ended. Exits with 0 if the release is found, with 1 if it is only narrowed "
    "down, or if an end is not as stated, and with 2 after an error."
)
_INTERRUPTED = 130
_DIGITS = 12
"""Of the digest of a config: enough to see a change."""


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command ``bisect`` and its options."""
    parser = commands.add_parser("bisect", help="find the first release with a fault", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one, with ${SPECDEC_ENVIRONMENT} for the release")
    parser.add_argument("tests", metavar="TEST", nargs="*", help="files or ids of tests, before the options (default: the suites)")
    parser.add_argument("--good", metavar="V", required=True, help="a release without the fault")
    parser.add_argument("--bad", metavar="V", required=True, help="a later one with it")
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", default="", help="selects tests, as for pytest")
    parser.add_argument("--releases", metavar="V1,V2", help="those between, or commits, from old to new (default: those that pip lists)")
    parser.add_argument("--package", metavar="NAME", help="that pip lists the releases of (default: the engine's kind)")
    parser.add_argument("--depth", choices=[depth.value for depth in Depth], default=Depth.SMOKE.value, help="as --specdec-depth")
    about = f"probability with which a run at a bad release is red, for a fault that comes and goes (default: {DETECTION:g})"
    parser.add_argument("--detection", metavar="P", type=float, default=DETECTION, help=about)
    parser.add_argument("--minutes", metavar="N", type=float, default=float("inf"), help="that it takes at most (default: no bound)")
    parser.add_argument("--disk", metavar="GIB", type=float, default=30.0, help="that environments take together at most (default: 30)")
    parser.add_argument("--folder", metavar="F", type=Path, help="of environments and runs (default: .specdec/bisect-CONFIG-GOOD-BAD)")
    parser.set_defaults(run=bisect)


def bisect(arguments: Namespace) -> int:
    """Search for the first bad release and return the exit code.

    A line is printed for each run, then the result. The code is 0 if the release is found, 1 if it is only narrowed
    down, an end is not as stated or the time is up, 2 after an error and 130 after an interrupt.
    """
    here = Path.cwd()
    try:
        with raise_on_sigterm(KeyboardInterrupt()):
            _check_numbers(arguments)
            config = load.load(load.find(arguments.config, here))
            folder = (arguments.folder or here / RUNS / safe(f"bisect-{config.name}-{arguments.good}-{arguments.bad}")).absolute()
            command = environment_command(config, os.environ)
            record = _take_up(arguments, config, folder)
            environments = Environments(
                root=folder / "environments", command=command, start=config.path.parent.absolute(), most_gib=arguments.disk
            )
            deadline = time.monotonic() + 60.0 * arguments.minutes
            runner = Runner(question=record.question, root=folder / "runs", start=here, deadline=deadline)
            return _search(record, environments, runner, folder)
    except SpecdecError as error:
        return refuse(error)
    except KeyboardInterrupt:  # outside of the runs, such as while pip lists the releases
        _print("Interrupted. The same command goes on.")
        return _INTERRUPTED


def _check_numbers(arguments: Namespace) -> None:
    """Raise SpecdecError if a number among the options is out of range."""
    for option, value, fits, expected in (
        ("--minutes", arguments.minutes, arguments.minutes > 0, "minutes above 0"),
        ("--disk", arguments.disk, arguments.disk > 0, "GiB above 0"),
        ("--detection", arguments.detection, 0 < arguments.detection <= 1, "a probability above 0 and at most 1"),
    ):
        if not fits:
            what = f"{option} is out of range"
            raise SpecdecError(what, where=option, found=f"{value:g}", expected=expected)


def _take_up(arguments: Namespace, config: Config, folder: Path) -> Record:
    """Return the record of an earlier search, or a new one.

    A new record has the releases from end to end, as the options or pip list them, and no trials. Without tests in the
    options its question has the suites. Raises SpecdecError if the record in ``folder`` is of another question or other
    releases, or if the releases cannot be listed.
    """
    question = Question(
        config=str(config.path.absolute()),
        config_digest=hashlib.sha256(config.text.encode()).hexdigest()[:_DIGITS],
        good=arguments.good,
        bad=arguments.bad,
        tests=(
            *(arguments.tests or shlex.split(shipped.arguments(Path.cwd()))),
            *(("-k", arguments.keyword) if arguments.keyword else ()),
        ),
        depth=arguments.depth,
        detection=arguments.detection,
        package=arguments.package or "",
    )
    ends = (arguments.good, arguments.bad)
    names = filter(None, (release.strip() for release in (arguments.releases or "").split(",")))
    releases = select_between(tuple(names), *ends) if arguments.releases else ()
    record = records.take_up(folder / records.FILE, question, releases)
    if record is not None:
        return record
    package = arguments.package or config.engine.kind.replace("_", "-")
    return Record(question=question, releases=releases or select_between(list_releases(package, ends), *ends))


def _search(record: Record, environments: Environments, runner: Runner, folder: Path) -> int:
    """Run releases up to the result or deadline, and return the exit code.

    ``runner`` runs the tests at a release, in an environment of ``environments``. The code is 0 if the release is found, 1 if it is only
    narrowed down or the time is up, and 130 after an interrupt, which loses the run in progress alone: the record is written into
    ``folder`` after every run.
    """
    _print(summary.opening(record))
    code, width = 1, max(map(len, record.releases))
    try:
        while isinstance(step := record.step, Ask):
            trial, earlier_targets = _try_release(step.release, record, environments, runner, folder), record.targets
            record = replace(record, trials=(*record.trials, trial))
            # Targets are the tests that the fault turns red, by the runs of both ends. If they change, all stored runs are judged anew.
            record = record if record.targets == earlier_targets else runner.judge_again(record)
            records.write(folder / records.FILE, record)
            _print(summary.trial_line(record.trials[-1], width))
        code = 0 if step.end is End.FOUND else 1
    except DeadlineError:
        _print("The time is up.")
    except KeyboardInterrupt:
        code = _INTERRUPTED
    for line in summary.closing(record):
        _print(line)
    return code


def _try_release(release: str, record: Record, environments: Environments, runner: Runner, folder: Path) -> Trial:
    """Return the trial of a release in its own environment.

    ``record`` has the earlier trials of the release. The log of making the environment is written into ``folder``. If the environment
    cannot be made, the release is untestable, and the trial's headline says why. Raises DeadlineError if the time is up, and RunError if
    pytest cannot be started or a log cannot be written.
    """
    log, began = folder / "logs" / f"{safe(release)}.log", time.monotonic()
    if time.monotonic() >= runner.deadline:
        what = "the time is up"
        raise DeadlineError(what)
    try:
        environments.make(release, log, runner.deadline)
    except EngineError as error:
        place = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        reason = f"{error.what}: {'; '.join(error.found.splitlines())} (log: {place})"
        return Trial(release=release, answer=Answer.UNTESTABLE, seconds=time.monotonic() - began, headline=reason)
    return runner.run(release, environments.variables(release), record.of(release), record.targets)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
