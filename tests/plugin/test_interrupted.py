"""Ctrl-C in mid-capture: the last thing said is the command that takes the run up again."""

from __future__ import annotations

import re
import shlex

import pytest

from pytest_specdec.doctor import boot_checks

INTERRUPT = """

def interrupted(config, plan, directory, **how):
    written(plan, directory, how["tell"])
    records.write_status(directory, Status(state=State.INCOMPLETE, error="the capture was ended by KeyboardInterrupt: "))
    raise KeyboardInterrupt


_fake = fake


def fake(config, plan, directory, *, deadline_s, tell):
    _fake(config, plan, directory, deadline_s=deadline_s, tell=tell)
    if os.environ.get("INTERRUPT"):
        interrupted(config, plan, directory, tell=tell)
"""


@pytest.mark.examples(1)
@pytest.mark.parametrize(
    "args", [(), ("-k", "chat or code", "--specdec-depth=smoke", "--specdec-run-dir", "kept run")], ids=["plain", "chosen"]
)
def test_an_interrupt_ends_with_the_command_that_resumes(project, monkeypatch, begun_here, args):
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + INTERRUPT)
    monkeypatch.setenv("INTERRUPT", "1")
    result = project.tests().run(*args, subprocess=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    monkeypatch.delenv("INTERRUPT")
    (line,) = [line for line in result.outlines if line.startswith("Next: ")]
    command = shlex.split(line.rpartition("): ")[2])
    assert command[0] == "pytest"
    run = project.path / command[-1]
    assert ("--specdec-run-dir" in command) is False
    begun_here(run)
    resumed = project.pytester.runpytest_subprocess(*command[1:])
    resumed.assert_outcomes(passed=4)
    assert re.search("specdec: resume of ", resumed.stdout.str())


@pytest.fixture
def unbooted(project, monkeypatch):
    """A run that was ended while the servers' arguments were checked, which takes a framework's import."""

    def end(_):
        pytest.exit("ended")

    with monkeypatch.context() as patch:
        patch.setattr(boot_checks, "require", end)
        project.tests().run("--specdec-depth=smoke")
    (run,) = project.runs
    assert not (run / "environment.json").exists()
    return run


def test_a_run_ended_before_its_first_boot_is_captured_from_the_start_when_it_is_resumed(project, unbooted):
    session = (unbooted / "session.json").read_text()
    project.run(f"--specdec-resume={unbooted}").assert_outcomes(passed=4)
    assert project.runs == [unbooted]
    assert [capture["depth"] for capture in project.captures] == ["smoke"]
    assert not (project.path / "resumed").exists()
    assert (unbooted / "session.json").read_text() != session
    project.run(f"--specdec-resume={unbooted}", "-k", "chat").stderr.fnmatch_lines(["ERROR: --specdec-resume: found another plan*"])


def test_answers_without_an_environment_are_not_captured_over(project, unbooted):
    answers = unbooted / "transcripts" / "baseline" / "chat.jsonl"
    answers.parent.mkdir(parents=True)
    answers.write_text("kept")
    result = project.run(f"--specdec-resume={unbooted}")
    result.stderr.fnmatch_lines(["ERROR: the run has no environment.json"])
    assert answers.read_text() == "kept"
    assert project.captures == []
