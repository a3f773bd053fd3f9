"""The command ``repro RUN TEST``: one wrong answer of a stored run as a folder that needs nothing of this package.

A judgement is one test's result for a variant and a workload, a set of requests; its example is the wrong answer. An arm is one of the
servers compared, the baseline or a variant of it with speculation. A transcript has an arm's answers to a workload.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec import __version__
from pytest_specdec.config import shipped, variables
from pytest_specdec.config.config import Overlay
from pytest_specdec.config.load import load
from pytest_specdec.engines.optional import BugForm
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError, RunError, SpecdecError
from pytest_specdec.files import excerpt, run_documents, transcripts
from pytest_specdec.files.run_directory import REPRO_RUN, RunDirectory, atomic_write, read_text, writable
from pytest_specdec.live_shrinking import LiveLimits, shrink_on
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Symptom
from pytest_specdec.plugin.report_files import read_run
from pytest_specdec.report import repro
from pytest_specdec.report_command import judgements_matching, refuse

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Mapping

    from pytest_specdec.config.config import EngineSettings, VariantSettings
    from pytest_specdec.model.plan import Boot, Judgement, Plan
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Example
    from pytest_specdec.report.run import JudgementResult, Run

_ABOUT = (
    "Write a folder that shows one wrong answer of a stored run: a README, the two server commands, a script for the openai package, the "
    "request for curl, both answers, text for the engine's issue tracker, and the part of the run by which --specdec-replay judges it. "
    "Exits with 2 if the run has no such answer."
)


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command ``repro`` and its options."""
    parser = commands.add_parser("repro", help="write a folder that shows one wrong answer", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("run_path", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("test", metavar="TEST", help="a part of the test's id: test_greedy, or [draft-k3]")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where the folder is written (default: repro-PAIR-FAMILY)")
    parser.add_argument("--shrink", action="store_true", help="leave out of the requests what the fault does not need, on live servers")
    parser.add_argument("--baseline", metavar="URL", help="address of the live baseline, to /v1, for --shrink")
    parser.add_argument("--speculative", metavar="URL", help="address of the live server with the fault, likewise")
    parser.add_argument("--most-requests", metavar="N", type=int, default=5000, help="sent by --shrink at most (default: 5000)")
    parser.add_argument("--most-minutes", metavar="M", type=float, default=5.0, help="that --shrink takes at most (default: 5)")
    parser.set_defaults(run=write_repro)


def write_repro(arguments: Namespace) -> int:
    """Write the folder of a repro; return the exit code.

    With ``--shrink`` the repro's requests are made smaller on live servers first. The part of the stored run that it takes to judge it
    again goes into the folder too. The code is 2, and an error is printed, if the run has no such wrong answer, if the folder is in use, or
    if shrinking, reading or writing fails; else 0.
    """
    try:
        stored = read_run(arguments.run_path)
        judgement = _find_judgement(stored, arguments.test, arguments.run_path)
        folder = arguments.out or Path(f"repro-{judgement.pair}-{judgement.family.value}")
        _check_unused(folder)
        directory = _open_capture(stored, arguments.run_path)
        plan = run_documents.read_plan(directory)
        planned, fault_repro = _find_planned_judgement(plan, judgement, directory), _read_repro(directory, plan, judgement)
        if arguments.shrink:
            fault_repro = _shrink_live(fault_repro, arguments)
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name, text in repro.files(fault_repro, _bug_form(fault_repro.environment.engine)).items():
            atomic_write(folder / name, text)
        excerpt.write(directory, plan, planned, RunDirectory(folder / REPRO_RUN))
    except SpecdecError as error:
        return refuse(error)
    sys.stdout.write(f"{folder / 'README.md'}\n")
    return 0


def _shrink_live(fault_repro: repro.Repro, arguments: Namespace) -> repro.Repro:
    """Return a smaller repro with the fault, by trials on live servers.

    Raises RunError if an address is missing, if the fault takes the server down, or if it does not show on these
    servers.
    """
    if not arguments.baseline or not arguments.speculative:
        what, remedy = "shrinking needs both servers", "start them by the commands of the README that is written without --shrink"
        raise RunError(what, where="--shrink", found="no address", expected="--baseline URL --speculative URL", remedy=remedy)
    if fault_repro.example.symptom is Symptom.UNANSWERED:
        what, remedy = "a fault that takes the server down is not shrunk", "leave --shrink away"
        raise RunError(what, where="--shrink", found=fault_repro.example.symptom.value, expected="a server that stays up", remedy=remedy)
    limits = LiveLimits(requests=arguments.most_requests, seconds=60.0 * arguments.most_minutes)
    return shrink_on(fault_repro, arguments.baseline, arguments.speculative, limits)


def _check_unused(folder: Path) -> None:
    """Raise RunError if something is in the folder already.

    Nothing is written over.
    """
    if folder.is_file() or (folder.exists() and any(folder.iterdir())):
        what, remedy = "the folder is in use, and nothing is written over", "name a new one: --out DIR"
        raise RunError(what, where="--out", found=str(folder), expected="a new or empty directory", remedy=remedy)


def _open_capture(stored: Run, path: Path) -> RunDirectory:
    """Return the run directory with the answers of a stored run.

    It is ``path``, or, if that holds only the report of a replay, the directory that was replayed.
    Raises RunError if neither is a run directory.
    """
    try:
        return RunDirectory.open(path)
    except RunError:
        return RunDirectory.open(Path(stored.directory))


def _find_judgement(stored: Run, test: str, path: Path) -> JudgementResult:
    """Return the first red judgement with a wrong answer as example.

    A red one has found a fault of the engine. It is among those with ``test`` in their id. Raises RunError without one.
    """
    red = [judgement for judgement in judgements_matching(stored, test, path) if judgement.verdict and judgement.verdict.red]
    for judgement in red:
        if judgement.verdict and judgement.verdict.example:
            return judgement
    if red:
        what, headline = "no single answer shows this fault", str(red[0].verdict.headline if red[0].verdict else "")
        remedy = f"show its evidence: python -m pytest_specdec show {path} {test!r}"
        raise RunError(what, where=str(path), found=headline, expected="a fault that one answer has", remedy=remedy)
    what, remedy = "no such test found a fault", f"see which did: python -m pytest_specdec report {path}"
    raise RunError(what, where=str(path), found="no red judgement", expected=f"one with {test!r} in its id", remedy=remedy)


def _find_planned_judgement(plan: Plan, judgement: JudgementResult, directory: RunDirectory) -> Judgement:
    """Return the plan's judgement that a reported one was made of.

    They have the same variant, workload and family. Raises RunError if the plan has none.
    """
    key = judgement.pair, judgement.workload, judgement.family
    for planned in plan.judgements:
        if (planned.pair, planned.workload, planned.family) == key:
            return planned
    what, remedy = "the run's plan and its report do not agree", "replay the run, and name the folder of that report"
    raise RunError(what, where=str(directory.plan), found="no such judgement", expected=" ".join(key), remedy=remedy)


def replay_command(nodeid: str) -> str:
    """Return the pytest command to judge a repro's folder again.

    It is to be typed in that folder. ``nodeid`` is pytest's id of the test, ``FILE::TEST[...]``. A test of the package's own
    suites, or of a copy of them, is named by its module, which every user of the package has installed.
    """
    path, colons, test = nodeid.partition("::")
    file = _find_shipped(path, test.partition("[")[0])
    arguments = [path + colons + test]
    if file is not None:
        module = ".".join(file.relative_to(shipped.SUITES).with_suffix("").parts)
        arguments = ["--pyargs", f"{shipped.MODULE}.{module}{colons}{test}"]
    return f"pytest {shlex.join(arguments)} --specdec-replay ."


def _find_shipped(path: str, test: str) -> Path | None:
    """Return the file of the package's suites that has a test.

    ``path`` is that of the test's id: from the root of a checkout or a copy, or, under ``--pyargs``, from any folder of the suites.
    Returns None if no file has the test, or several have.
    """
    _, is_from_suites, path_in_suites = path.rpartition("suites/")
    if is_from_suites:
        candidates = [shipped.SUITES / path_in_suites]
    else:
        candidates = [file for file in shipped.SUITES.rglob(Path(path).name) if file.as_posix().endswith(f"/{path}")]
    files = [file for file in candidates if file.is_file() and f"def {test}(" in file.read_text(encoding="utf-8")]
    return files[0] if len(files) == 1 else None


def _read_repro(directory: RunDirectory, plan: Plan, judgement: JudgementResult) -> repro.Repro:
    """Return the repro of a judgement's example, read from its run.

    It has the request with the wrong answer, the requests sent with it, and for both arms the command, the answer and
    its scores. The caller has checked that the judgement's verdict has an example. Raises RunError if the run lacks the
    request or the answers.
    """
    verdict = judgement.verdict
    assert verdict is not None
    example = verdict.example
    assert example is not None
    name, request_id = _locate_request(plan, verdict.workload, example.request_id, directory.plan)
    example = replace(example, request_id=request_id)
    speculative, baseline = (_read_transcript(directory, arm, name) for arm in (verdict.pair, BASELINE))
    # The capture may have multiplied the planned token limits.
    workload = run_documents.read_workload(directory, plan, name).with_room(speculative.room)
    request_stream = workload.by_id[request_id].stream
    config = load(directory.config)
    variant = next((variant for variant in config.variants if variant.name == verdict.pair), Overlay())
    return repro.Repro(
        verdict=verdict,
        example=example,
        request=workload.by_id[request_id],
        groups=repro.requests_to_send(example, verdict.family, workload),
        concurrency=max(map(len, workload.in_waves)) if workload.waves else min(workload.concurrency, len(workload.requests)),
        streamed=workload.stream if request_stream is None else request_stream,
        deadline_s=workload.deadline_s,
        # The script fills ``${VAR}`` in the fields of an arm alone: _read_arm has the fields with variables.
        body={name: value for name, value in config.engine.body.items() if not variables.names(value)},
        baseline=_read_arm(directory, plan, baseline, example, "baseline", engine=config.engine, overlay=config.baseline),
        speculative=_read_arm(directory, plan, speculative, example, "speculative", engine=config.engine, overlay=variant),
        environment=run_documents.read_environment(directory),
        release=__version__,
        replay=replay_command(judgement.nodeid),
    )


def _locate_request(plan: Plan, workload: str, request_id: str, path: Path) -> tuple[str, str]:
    """Return the workload and the id of an example's request.

    They are ``workload`` and ``request_id`` as given if that workload has the request: ids may have a slash. A verdict on a whole run
    names requests of other workloads as ``WORKLOAD/ID``. Raises RunError if the plan in ``path`` has no such request.
    """
    other_workload, _, other_id = request_id.partition("/")
    requests = {planned.name: planned.by_id for planned in plan.workloads}
    for name, id_ in ((workload, request_id), (other_workload, other_id)):
        if id_ in requests.get(name, {}):
            return name, id_
    what, remedy = "the run does not hold the request", "restore the files that the capture wrote, or capture again"
    raise RunError(what, where=str(path), found=workload, expected=f"request {request_id}", remedy=remedy)


def _read_transcript(directory: RunDirectory, arm: str, workload: str) -> Transcript:
    """Return an arm's transcript of a workload.

    Raises RunError if the run does not hold it.
    """
    transcript = transcripts.read(directory, arm, workload)
    if transcript is None:
        what, remedy = "the run does not hold the answers", "restore the files that the capture wrote, or capture again"
        raise RunError(what, where=str(directory.transcript(arm, workload)), found="no file", expected="answers", remedy=remedy)
    return transcript


def _read_arm(
    directory: RunDirectory,
    plan: Plan,
    transcript: Transcript,
    example: Example,
    role: str,
    *,
    engine: EngineSettings,
    overlay: Overlay | VariantSettings,
) -> repro.ArmRecord:
    """Return an arm's command and its scored answer to the example.

    ``transcript`` has the arm's answers. ``role`` is ``baseline`` or ``speculative``, and ``overlay`` what the config lays
    over the engine for it. The arm's body fields are those of the overlay and, of the engine, those with a ``${VAR}``: the repro has the
    others for both arms. An answer or score that the run does not hold is None.
    """
    boot = plan.boots[transcript.boot]
    key = example.request_id, example.pass_index
    answer: Answer | None = next((answer for answer in transcript.answers if answer.key == key), None)
    scores = transcripts.read_scores(directory, BASELINE, transcript.arm, transcript.workload)
    return repro.ArmRecord(
        command=_server_command(directory, plan, boot, role, env={**engine.env, **overlay.env}),
        answer=answer,
        score=next((score for score in scores if score.key == key), None),
        headers={**engine.headers, **overlay.headers},
        body={**{name: value for name, value in engine.body.items() if variables.names(value)}, **overlay.body},
    )


def _server_command(directory: RunDirectory, plan: Plan, boot: Boot, role: str, *, env: Mapping[str, str]) -> str:
    """Return the command that started a boot's server, from its log.

    A log begins with the command. A server of several processes has a log and a command for each, the last of them in the foreground; a
    log that is missing is left out. A process that ``is_asked`` takes the requests, the others work behind it. ``role`` is ``baseline`` or
    ``speculative``, and ``env`` are the variables that the config sets.
    """
    log = directory.server_log(boot.index, boot.arm)
    logs = [(log.with_name(f"{log.stem}.{process.name}.log"), process.is_asked) for process in plan.processes]
    lines = [(read_text(path).partition("\n")[0], is_asked) for path, is_asked in (*logs, (log, True)) if path.is_file()]
    return " &\n".join(repro.server_command(line, role, env, is_asked=is_asked) for line, is_asked in lines)


def _bug_form(kind: str) -> str:
    """Return the form of the engine's issue tracker for a bug.

    It is a plain form if the engine has none, or is not installed.
    """
    try:
        engine = engine_of(kind)
    except EngineError:
        return repro.PLAIN_FORM
    return engine.bug_form() if isinstance(engine, BugForm) else repro.PLAIN_FORM
