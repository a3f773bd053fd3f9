"""A project whose captures are written by a fake that counts how often it was called."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from pytest_specdec.capture import environment
from pytest_specdec.capture.transport import Transport
from pytest_specdec.config import load
from pytest_specdec.files import codec, run_directory
from pytest_specdec.judge.acceptance import stored as stored_acceptance
from pytest_specdec.plugin import capture, collection, stored_run, summary, verdicts, xdist

LOADED = (capture, collection, stored_acceptance, stored_run, summary, verdicts, xdist)
"""Once for all sessions in this process: what such a session imports first is forgotten after it, and numpy cannot be loaded again."""
HTTP = Transport()
"""For the same reason: it loads httpcore. Forgotten and loaded again, its errors would be classes that httpx does not know."""

CONFIG = """
engine: {kind: reference, model: target}
variants:
  draft-k3: {args: {speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3}}}
  ngram-k3: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4, prompt_lookup_min: 2}}}
"""

CONFTEST = """
import json
import os
import time
from pathlib import Path

import pytest

from pytest_specdec.capture import runner as record
from pytest_specdec.errors import BootError, SetupError
from pytest_specdec.files import run_documents as records, transcripts
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.transcript import Answer, Choice
from pytest_specdec.model.baseline import Environment
from pytest_specdec.model.status import MissingAnswers, Progress, State, Status
from pytest_specdec.model.transcript import Position, Score, SpecCounters, Transcript

HERE = Path(__file__).parent
REAL = (record.record, record.resume)
HOW = os.environ.get("FAKE_CAPTURE", "")


def pytest_configure(config):
    record.record, record.resume = fake, resumed


def pytest_unconfigure(config):
    record.record, record.resume = REAL


def fake(config, plan, directory, *, deadline_s, tell):
    said = {"pid": os.getpid(), "workloads": [w.name for w in plan.workloads], "pairs": [p.name for p in plan.pairs],
            "depth": plan.depth, "deadline_s": deadline_s}
    with (HERE / "captures.jsonl").open("a") as log:
        log.write(json.dumps(said) + "\\n")
    records.write_plan(directory, plan)
    atomic_write(directory.config, config.text)
    about = {"engine": "reference", "engine_version": "0", "model": "target"}
    if not directory.environment.exists():
        records.write_environment(directory, Environment(**about, processor="p", cores=2, memory_gib=8.0))
    if HOW == "raises":
        raise BootError("the server did not come up", found="exit code 7")
    if HOW == "refused":
        raise SetupError("the server refuses the key", found="401")
    if HOW == "broken":
        raise ZeroDivisionError("a bug")
    if HOW == "slow":
        (HERE / "capturing").write_text(str(os.getpid()))
        time.sleep(float(os.environ.get("FAKE_SECONDS", "1")))
    if HOW.startswith("dies") and len((HERE / "captures.jsonl").read_text().splitlines()) == 1:
        os._exit(9)
    return written(plan, directory, tell)


def resumed(*args, **kwargs):
    (HERE / "resumed").touch()
    return fake(*args, **kwargs)


def written(plan, directory, tell):
    missing = []
    for boot in plan.boots:
        for arm in boot.arms:
            if HOW == f"missing:{arm}":
                missing.append(MissingAnswers(arm=arm, workload="", reason="the server did not come up\\n  found:    exit code 7"))
                continue
            for name in boot.answers:
                where = {"boot": boot.index, "boots": len(plan.boots), "arm": arm, "workload": name}
                progress = Progress(at_s=1.0, doing="answering", done=1, of=1, tokens=9, began_at_s=time.time(), **where)
                records.append_progress(directory, progress)
                tell(progress)
                transcripts.write(directory, transcript(arm, boot.index, plan.workload(name)))
        for task in boot.scores:
            scored = scores(task.arm, boot.under, plan.workload(task.workload))
            transcripts.write_scores(directory, boot.under, task.arm, task.workload, scored)
    status = Status(state=State.INCOMPLETE if missing else State.COMPLETE, missing=tuple(missing), boots=len(plan.boots), wall_s=2.0)
    records.write_status(directory, status)
    return status


def scores(arm, under, workload):
    positions = tuple(Position(token_id=token, logprob=-0.1, top_ids=(token, 9), top_logprobs=(-0.1, -3.0)) for token in (1, 2, 3))
    return tuple(Score(request_id=request.id, arm=arm, under=under, positions=positions) for request in workload.requests)


def transcript(arm, boot, workload):
    answers = tuple(
        Answer(request_id=request.id, status=200, choices=(Choice(text="three tokens", token_ids=(1, 2, 3), finish_reason="stop"),))
        for request in workload.requests
    )
    counters = SpecCounters(drafts=3, draft_tokens=9, accepted_tokens=4)
    return Transcript(arm=arm, boot=boot, workload=workload.name, digest=workload.digest, answers=answers, counters=counters)
"""

SAMPLE = """
from pytest_specdec.model.promise import SpeedFigure, Speedup
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Request, Route, Workload


def workload(name, requests=3, body={}, **fields):
    return Workload(name=name, version=1, requests=tuple(
        Request(id=f"{name}-{i}", route=Route.CHAT,
                body={"messages": [{"role": "user", "content": str(i)}], "max_tokens": 8, "temperature": 0, **body})
        for i in range(requests)), **{"scored": False, **fields})


CHAT, CODE = workload("chat", take={Depth.SMOKE: 1}), workload("code")


def speedup(ratio):
    return Speedup(response=SpeedFigure(baseline=1.0, speculative=ratio, speedup=ratio))


def say(captured, outcome=Outcome.PASS, **fields):
    return Verdict(**{"outcome": outcome, "family": captured.family, "pair": captured.pair.name, "workload": captured.workload.name,
        "headline": f"{len(captured.speculative.answers)} answers", "cell": "3/3", "rules_out": "anything worse", **fields})
"""

TESTS = """
import pytest
from sample import CHAT, CODE, say


@pytest.mark.specdec(CHAT, family="greedy")
def test_chat(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))


@pytest.mark.specdec(CODE, family="liveness")
def test_code(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""


class Project:
    """A pytester directory with a config, a fake capture and two workloads."""

    def __init__(self, pytester):
        self.pytester = pytester
        self.path = pytester.path
        (self.path / "suites/configs").mkdir(parents=True)
        (self.path / "suites/configs/tiny.yaml").write_text(CONFIG)
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(sample=SAMPLE)
        pytester.makeini("[pytest]\naddopts = -p no:randomly -p no:benchmark -p no:cacheprovider -p no:hypothesispytest -p no:anyio\n")

    def tests(self, text=TESTS):
        self.pytester.makepyfile(test_it=text)
        return self

    def outcome(self, verdict, body=""):
        """Write one test that hands over one verdict, as a Python expression of ``say``'s arguments."""
        return self.tests(
            f"import pytest\nfrom sample import *\nW = workload('chat'{body})\n\n"
            f"@pytest.mark.specdec(W, family='greedy')\ndef test_it(specdec_captured, specdec_check):\n"
            f"    specdec_check(say(specdec_captured, {verdict}))\n"
        )

    def config(self, more):
        (self.path / "suites/configs/tiny.yaml").write_text(CONFIG + more)
        return self

    def run(self, *args, subprocess=False, config="tiny"):
        run = self.pytester.runpytest_subprocess if subprocess else self.pytester.runpytest_inprocess
        return run(*([f"--specdec-config={config}"] if config else []), *args)

    @property
    def captures(self):
        log = self.path / "captures.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def runs(self):
        return sorted((self.path / ".specdec").glob("*")) if (self.path / ".specdec").exists() else []

    @property
    def document(self):
        (run,) = self.runs
        return json.loads((run / "run.json").read_text())


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch):
    for name in ("CI", "GITHUB_STEP_SUMMARY", "PYTEST_ADDOPTS", "FAKE_CAPTURE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(pytester):
    return Project(pytester)


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """An empty folder for this test's temporary folders, also for those of its sessions."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def repository():
    return Path(__file__).parent.parent.parent


@pytest.fixture
def begun_here():
    """Have a run that the fake captured say that it was captured on this machine."""

    def _begun_here(run):
        path = run / "environment.json"
        real = codec.encode(environment.environment(load.load(run / "config.yaml"), "0"))
        path.write_text(json.dumps({**real, "schema": json.loads(path.read_text())["schema"]}))

    return _begun_here


@pytest.fixture
def full_disk(monkeypatch):
    """Let no file below a folder of the name given be written."""

    def _full_disk(name):
        write = run_directory._replace_file

        def write_elsewhere(path, text):
            if name in path.parts:
                raise OSError(28, "No space left on device")
            write(path, text)

        monkeypatch.setattr(run_directory, "_replace_file", write_elsewhere)

    return _full_disk


RENAMED = {"judgements": "cells", "top_tokens": "atoms", "server_failures": "casualties"}


@pytest.fixture
def refused_as_older(project):
    """Give a stored run the schemas and keys of the release before, and expect one whole error from an option that takes it."""

    def _refused(run, option):
        for path in (run / "plan.json", run / "run.json", *run.glob("transcripts/*/*.jsonl")):
            text = re.sub(r"(pytest-specdec[:/](?:plan|transcript|run)[:/])2", r"\g<1>1", path.read_text())
            path.write_text(re.sub("|".join(RENAMED), lambda name: RENAMED[name.group()], text))
        captures = len(project.captures)
        result = project.run(f"{option}={run}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [
                "ERROR: an older release wrote this run",
                f"  where:    {run / 'plan.json'}",
                "  found:    schema 'urn:pytest-specdec:plan:1'",
                "  expected: schema 'urn:pytest-specdec:plan:2'",
                "  remedy:   judge it with the release that wrote it, or capture again",
            ]
        )
        assert not any(word in result.stderr.str() for word in ("unknown field", "Traceback"))
        assert len(project.captures) == captures

    return _refused
