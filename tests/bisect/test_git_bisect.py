"""The script of docs/bisect.md for ``git bisect run``: its exit codes, and a repository in which one commit plants a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.config.shipped import DOCS
from pytest_specdec.report.run import RunClass

ROOT = Path(__file__).parents[2]
SCRIPT = re.search(r"```sh\n(#!/bin/sh\n.*?)```", (DOCS / "bisect.md").read_text(encoding="utf-8"), re.DOTALL)[1]
CONFIG = """
engine: {kind: reference, model: target, executable: %s}
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
"""
ENGINE = '#!/bin/sh\ncase "$*" in *speculative-config*) exec %s "$@" %s ;; esac\nexec %s "$@"\n'
"""The reference engine, with arguments where it speculates."""


@pytest.fixture
def python(tmp_path):
    """The interpreter of this session, under the name that the script calls it by, with this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder / "python"


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def environment(python):
    return {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


MEANT = {
    RunClass.CLEAN.exit_code: 0,
    RunClass.FINDING.exit_code: 1,
    RunClass.INFRASTRUCTURE.exit_code: 125,
    RunClass.UNDECIDED.exit_code: 125,
    RunClass.SETUP_INVALID.exit_code: 125,
    **dict.fromkeys((2, 3, 4, 5, 137), 255),
}


def test_every_exit_code_means_to_git_what_it_means_to_us(python, tmp_path):
    (tmp_path / "script.sh").write_text(SCRIPT)
    write_program(python, '#!/bin/sh\necho "$*" >> "$CALLS"\nexit $CODE\n')
    codes = {}
    for code in MEANT:
        variables = {**environment(python), "CODE": str(code), "CALLS": str(tmp_path / "calls")}
        codes[code] = subprocess.run(["sh", tmp_path / "script.sh", "a b", "-k", "it"], env=variables, check=False).returncode
    assert codes == MEANT
    assert {*(tmp_path / "calls").read_text().splitlines()} == {"-m pytest --specdec-exit-codes a b -k it"}


@pytest.mark.nightly
def test_git_finds_the_commit_that_plants_a_fault(python, tmp_path):
    write_program(python, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "script.sh").write_text(SCRIPT)
    (tmp_path / "gate.yaml").write_text(CONFIG % (tmp_path / "engine/server"))
    repository = tmp_path / "engine"
    repository.mkdir()

    def git(*arguments):
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
        ran = subprocess.run(command, cwd=repository, env=environment(python), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    git("init", "--quiet")
    for number in range(1, 6):
        write_program(repository / "server", ENGINE % (sys.executable, "--fault limit-overrun" if number >= 3 else "", sys.executable))
        (repository / "number").write_text(f"{number}\n")
        git("add", ".")
        git("commit", "--quiet", "--message", f"release {number}")
    git("bisect", "start", "HEAD", "HEAD~4")
    options = (f"--specdec-config={tmp_path / 'gate.yaml'}", "--specdec-depth=smoke", "-k", "limit", "-p", "no:cacheprovider")
    output = git("bisect", "run", "sh", str(tmp_path / "script.sh"), str(ROOT / "suites/lengths"), *options)
    assert re.search(r"^[0-9a-f]{40} is the first bad commit\n(.*\n)+?    release 3$", output, re.MULTILINE), output
