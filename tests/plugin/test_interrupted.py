"""Ctrl-C in mid-capture: the last thing said is the command that takes the run up again."""

from __future__ import annotations

import re
import shlex

import pytest

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
