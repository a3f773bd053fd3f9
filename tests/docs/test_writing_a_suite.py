"""The suite that docs/writing-a-suite.md shows runs as it stands, and turns red when its check is forgotten."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks.pages import FOLDER, suite_tables
from pytest_specdec import judge
from pytest_specdec.__main__ import main
from pytest_specdec.model.workload import Request, Workload

PAGE = (FOLDER / "writing-a-suite.md").read_text(encoding="utf-8")
(SUITE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMAND = "pytest test_editor.py --specdec-config=my-model --specdec-depth=smoke"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's suite and the config that ``init`` writes."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main(["init"]) == 0
    (folder / "test_editor.py").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def ran(folder):
    return run(folder, *COMMAND.split()[1:])


def run(folder, *arguments):
    argv = [sys.executable, "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_example_is_about_forty_lines_long_and_its_command_is_shown():
    assert len(SUITE.splitlines()) <= 45
    assert f"    {COMMAND}\n" in PAGE


def test_the_example_is_planned(folder):
    planned = run(folder, *COMMAND.split()[1:], "--co")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "6 tests collected" in planned.stdout
    assert not (folder / ".specdec").exists()


@pytest.mark.nightly
def test_the_example_is_captured_and_green(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout
    assert re.search(r"T=0: the baseline's tokens +ok ", ran.stdout)


@pytest.mark.nightly
def test_the_example_without_its_check_is_red(ran, folder):
    (captured,) = (folder / ".specdec").iterdir()
    (folder / "test_editor.py").write_text(
        SUITE.replace("    specdec_check(judge.greedy.judge(specdec_captured))", "    judge.greedy.judge(specdec_captured)")
    )
    done = run(folder, "test_editor.py", f"--specdec-replay={captured}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unchecked verdict: greedy of editor, pass" in done.stdout
    assert "2 failed, 4 passed" in done.stdout


def test_the_page_has_every_judge_and_every_field():
    tables = suite_tables()
    assert re.findall(r"^\| `judge\.(\w+)` \| [A-Z].*\. \|$", tables["judges"], re.MULTILINE) == judge.__all__
    for described, name in ((Workload, "workload"), (Request, "request")):
        assert re.findall(r"^\| `(\w+)` \|.*[^| ] \|$", tables[name], re.MULTILINE) == list(described.__dataclass_fields__)
    assert all(table in PAGE for table in tables.values())
