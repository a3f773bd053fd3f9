"""``engines`` in a config: the engine in use is judged first, by a session of its own, and the new one is compared with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.upgrades import quantise
from pytest_specdec.files import old_answers, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.status import Progress, State, Status
from pytest_specdec.plugin import child_session, old_engine

CHECKPOINTS = Path(__file__).parents[2] / "specdec_reference" / "checkpoints"
BOTH = "engines: {old: {}, new: {env: {NEW_BUILD: 1}}}\n"


@pytest.fixture
def one(project):
    """A project of one test and two engines, in one run directory."""
    project.outcome("Outcome.PASS").config(BOTH)

    def run(*args, **how):
        return project.run("--specdec-depth=smoke", "-k", "draft", *args, **how)

    run.project = project
    return run


@pytest.fixture
def judged(monkeypatch):
    """The old engine's run without a session: it is taken from an earlier run, and what would have been started is kept."""
    commands = []

    def judge(run, tell):
        commands.append(old_engine.arguments(run.arguments, run.root / "old", run.settings.deadline_s))
        shutil.copytree(judged.source, run.root / "old")
        return judged.took_s

    monkeypatch.setattr(old_engine, "judge", judge)
    judged.commands, judged.took_s = commands, 0.0
    return judged


def test_the_old_engine_has_a_run_of_its_own_and_the_new_one_is_compared_with_it(one, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--junitxml=it.xml")
    result = one("--specdec-run-dir=both", "--specdec-exit-codes")
    result.stdout.fnmatch_lines([
        "*old engine, captured and judged first: no env NEW_BUILD; * boots*",
        "UPGRADE: NO FINDING in either run; whether the baseline's answers changed is unknown: *",
        "RESULT: *",
    ])  # fmt: skip
    assert len(one.project.captures) == 2
    root = one.project.path / "both"
    assert "it.xml" not in (root / "old.log").read_text()
    old, new = (json.loads((folder / "run.json").read_text()) for folder in (root / "old", root))
    assert "engines" in (root / "config.yaml").read_text()
    assert "engines:" not in (root / "old/config.yaml").read_text()
    assert [judgement["verdict"]["outcome"] for judgement in (*old["judgements"], *new["judgements"])] == ["pass", "pass"]
    assert new["notes"][0].startswith("UPGRADE from both/old: ")
    replayed = one.project.run("--specdec-replay=both", config=None)
    replayed.stdout.fnmatch_lines(["UPGRADE: NO FINDING in either run; *"])
    assert len(one.project.captures) == 2


def test_a_collection_starts_nothing_and_names_both(one, judged):
    for option in ("--co", "--setup-plan"):
        one(option).stdout.fnmatch_lines(["*old engine, captured and judged first: *", "*new engine: env NEW_BUILD*"])
    assert (judged.commands, one.project.captures, one.project.runs) == ([], [], [])


def test_another_model_is_said(one):
    one.project.config("engines: {old: {}, new: {model: another}}\n")
    one("--co").stdout.fnmatch_lines(["*THE MODELS DIFFER: old target, new another; answers may change by that"])


def test_one_engine_alone_is_judged_without_the_other(one, judged):
    for name in ("old", "new"):
        one(f"--specdec-engine={name}", f"--specdec-run-dir={name}").assert_outcomes(passed=1, deselected=1)
        assert json.loads((one.project.path / name / "plan.json").read_text())["old"] is None
    assert judged.commands == []


def test_what_goes_with_no_second_engine_is_said_before_anything_boots(one, judged):
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    for args, words in (
        (("--specdec-against=kept",), "the run has two predecessors"),
        (("--specdec-engine=older",), "--specdec-engine: expected one of old, new, found 'older'*"),
        (("--specdec-replay=kept", "--specdec-engine=old"), "--specdec-engine: found --specdec-replay; *"),
    ):
        result = one.project.run(*args)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {words}"])
    assert (len(one.project.captures), judged.commands) == (1, [])


def test_a_deadline_is_shared_and_the_new_engine_gets_what_is_left(one, judged):
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    judged.source, judged.took_s = one.project.path / "kept", 30.0
    one("--specdec-deadline=100s")
    assert "--specdec-deadline=50" in judged.commands[0]
    assert one.project.captures[-1]["deadline_s"] == pytest.approx(70.0)


def test_the_new_run_gets_the_old_answers_to_score_once_they_are_there(one, judged, monkeypatch):
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    judged.source, copied = one.project.path / "kept", []
    monkeypatch.setattr(old_answers, "copy", lambda earlier, directory, plan: copied.append((earlier, directory.root, earlier.is_dir())))
    one("--specdec-run-dir=both")
    root = one.project.path / "both"
    assert copied == [(root / "old", root, True)]


def test_a_session_that_leaves_no_run_is_an_error_of_the_run_and_no_verdict_is_lost(one, monkeypatch):
    def judge(run, tell):
        (run.root / "old.log").write_text("1\n2\n3\n4\nthe disk is full\n")
        return 0.0

    monkeypatch.setattr(old_engine, "judge", judge)
    result = one("--specdec-exit-codes")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == 75
    (note,) = [note for note in one.project.document["notes"] if note.startswith("UPGRADE not judged: ")]
    assert note.endswith("the disk is full")
    assert json.loads((one.project.runs[0] / "status.json").read_text())["state"] == "incomplete"


@pytest.mark.parametrize("spoil, why", [
    (shutil.rmtree, "the old engine's session left no run.json; *"),
    (lambda old: (old / "run.json").write_text('{"schema": "pytest-specdec/run/3"}'), "an older release wrote this run; *"),
])  # fmt: skip
def test_a_replay_without_a_readable_old_run_is_undecided_and_keeps_its_verdicts(one, judged, spoil, why):
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    judged.source = one.project.path / "kept"
    one("--specdec-run-dir=both")
    spoil(one.project.path / "both/old")
    result = one.project.run("--specdec-replay=both", "--specdec-exit-codes", config=None)
    result.assert_outcomes(passed=1)
    assert result.ret == 76
    result.stdout.fnmatch_lines([f"*UPGRADE not judged: {why}", "RESULT: undecided*"])


def test_a_run_is_resumed_with_the_old_engines_if_that_is_not_judged(one, judged):
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    judged.source = one.project.path / "kept"
    one("--specdec-run-dir=both")
    captures = len(one.project.captures)
    one("--specdec-resume=both").assert_outcomes(passed=1, deselected=1)
    assert (len(judged.commands), len(one.project.captures)) == (1, captures)
    shutil.rmtree(one.project.path / "both/old")
    one("--specdec-resume=both").assert_outcomes(passed=1, deselected=1)
    assert (len(judged.commands), len(one.project.captures)) == (2, captures + 1)


def test_an_interrupt_of_the_old_engines_session_leaves_a_run_to_resume(one, judged, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(old_engine, "judge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one("--specdec-run-dir=both")
    status = json.loads((one.project.path / "both/status.json").read_text())
    assert (status["state"], status["error"][:49]) == ("incomplete", "the old engine's session was ended by KeyboardInt")
    assert one.project.captures == []
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    judged.source = one.project.path / "kept"
    one("--specdec-resume=both").assert_outcomes(passed=1, deselected=1)
    assert len(judged.commands) == 1


def test_the_old_engines_command_is_that_of_the_session_into_its_own_folder(tmp_path):
    own = ["suites", "-k", "chat", "--specdec-run-dir", "new", "--specdec-deadline=90", "--specdec-update-baselines",
           "--specdec-accept-regression=why", "--junitxml=it.xml", "-n2", "--specdec-config=x",
           "--benchmark-json=b.json", "--benchmark-save", "it", "--benchmark-autosave", "--benchmark-compare-fail=min:5%"]  # fmt: skip
    begin = (sys.executable, "-m", "pytest", "suites", "-k", "chat", "-n2", "--specdec-config=x", "--override-ini=addopts=",
             "--specdec-engine=old")  # fmt: skip
    assert old_engine.arguments(own, tmp_path / "old", None) == (*begin, f"--specdec-run-dir={tmp_path / 'old'}")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/plan.json").touch()
    assert old_engine.arguments(own, tmp_path / "old", 90.0) == (
        *begin,
        f"--specdec-resume={tmp_path / 'old'}",
        "--specdec-deadline=45",
    )


def test_options_of_the_ini_file_and_the_environment_count_as_those_of_the_command_line(one, judged, monkeypatch):
    """Left to pytest, they would reach the old engine's session whole, and it would update the file of the new one."""
    one("--specdec-engine=old", "--specdec-run-dir=kept")
    judged.source = one.project.path / "kept"
    monkeypatch.setenv("PYTEST_ADDOPTS", "--specdec-update-baselines -W 'ignore:a b'")
    ini = one.project.path / "tox.ini"
    ini.write_text(ini.read_text().replace("addopts =", "addopts = --junitxml=it.xml"))
    one("--specdec-run-dir=both")
    (command,) = judged.commands
    assert not {"--specdec-update-baselines", "--junitxml=it.xml"} & set(command)
    assert "--override-ini=addopts=" in command
    assert {"no:randomly", "ignore:a b"} < set(command)
    assert "PYTEST_ADDOPTS" not in child_session.environment(os.environ)


def test_a_run_that_is_complete_and_has_its_report_is_kept(tmp_path):
    directory = RunDirectory(tmp_path)
    assert not old_engine.is_judged(tmp_path)
    run_documents.write_status(directory, Status(state=State.COMPLETE))
    assert not old_engine.is_judged(tmp_path)
    directory.run.write_text("{}")
    assert old_engine.is_judged(tmp_path)
    run_documents.write_status(directory, Status(state=State.INCOMPLETE))
    assert not old_engine.is_judged(tmp_path)


def test_its_progress_is_shown_under_the_old_arms_names(tmp_path):
    assert old_engine.read_progress(tmp_path) == ()
    step = Progress(at_s=1.0, boot=0, boots=2, arm="baseline", doing="booting")
    run_documents.append_progress(RunDirectory(tmp_path / "old"), step)
    (shown,) = old_engine.read_progress(tmp_path)
    assert (shown.arm, shown.doing) == ("old.baseline", "booting")


@pytest.mark.parametrize("error, expected", [(KeyboardInterrupt(), signal.SIGINT), (pytest.exit.Exception("t"), signal.SIGTERM)])
def test_an_interrupt_is_passed_on_once_and_waited_for(error, expected):
    code = "import signal, sys; print('up', flush=True); signal.pause()"
    handler = "import signal, sys; [signal.signal(s, lambda n, _: sys.exit(n)) for s in (2, 15)]; "
    with subprocess.Popen([sys.executable, "-S", "-c", handler + code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"up\n"
        with pytest.raises(type(error)), child_session.end_on_error([process], 1.0):
            raise error
        assert process.returncode == expected


@pytest.mark.nightly
def test_workers_judge_the_old_engine_once(one):
    result = one("-n2", "--specdec-run-dir=both", subprocess=True)
    result.assert_outcomes(passed=1)
    assert len(one.project.captures) == 2
    assert sum(line.startswith("UPGRADE: ") for line in result.outlines) == 1


def engines_of_the_reference(folder, new):
    """Write a config of two builds of the reference engine."""
    speculative = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
    config = {
        "engine": {"kind": "reference", "model": "target", "args": {"max-num-seqs": 32, "max-model-len": 1024}},
        "engines": {"old": {}, "new": new},
        "variants": {"draft-k3": {"args": {"speculative-config": speculative}}},
    }
    (folder / "upgrade.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder / "upgrade.yaml"


def judge_both(config, folder):
    command = (sys.executable, "-m", "pytest", "suites/greedy", "suites/sampling", "-q", "-p", "no:cacheprovider")
    options = (f"--specdec-config={config}", f"--specdec-run-dir={folder / 'run'}", "--specdec-depth=smoke", "--specdec-exit-codes")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=900, check=False, env=env)
    headline = next((line for line in done.stdout.splitlines() if line.startswith("UPGRADE: ")), done.stdout[-500:] + done.stderr[-500:])
    return done.returncode, headline.removeprefix("UPGRADE: ")


@pytest.mark.nightly
def test_a_fault_of_the_new_build_alone_is_speculations(tmp_path):
    """The new build verifies nothing, so that its baseline is right and its variant is not."""
    build = tmp_path / "python"
    faulty = f'case "$*" in *speculative-config*) exec {sys.executable} "$@" --fault accept-all;; esac'
    build.write_text(f'#!/bin/sh\n{faulty}\nexec {sys.executable} "$@"\n')
    build.chmod(0o755)
    code, headline = judge_both(engines_of_the_reference(tmp_path, {"executable": str(build)}), tmp_path)
    assert (code, headline.partition(":")[0]) == (1, "SPECULATION BROKE IN THE NEW RUN")


@pytest.mark.nightly
def test_quantised_weights_of_the_new_build_are_the_upgrades(tmp_path):
    shutil.copytree(CHECKPOINTS / "target", tmp_path / "target-int4")
    quantise(4)(tmp_path / "target-int4")
    code, headline = judge_both(engines_of_the_reference(tmp_path, {"model": "target-int4"}), tmp_path)
    assert (code, headline.partition(":")[0]) == (1, "ANSWERS CHANGED, speculation follows")
