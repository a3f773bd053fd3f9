"""What a newcomer types and mistypes: each ends with a sentence that says what to do, before anything boots, and never with a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "suites/configs/reference.yaml").read_text()
TESTS = """
import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Request, Route, Workload


def request(name, temperature=0):
    return Request(id=name, route=Route.COMPLETIONS, body={"prompt": "def f(", "max_tokens": 4, "temperature": temperature})


W = Workload(name=%s, version=1, requests=(%s))


@pytest.mark.specdec(W, family="greedy")
def test_it(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))
"""


def tried(folder, *args, name="'words'", requests="request('one'),"):
    """Return the exit code and what was said of a session on one workload."""
    (folder / "my-model.yaml").write_text(CONFIG)
    (folder / "test_mine.py").write_text(TESTS % (name, requests))
    (folder / "pytest.ini").write_text("[pytest]\nspecdec_config = my-model\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_mine.py", "--co", "-q", "-p", "no:cacheprovider", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    assert not (folder / ".specdec").exists()
    return done.returncode, text


def said(result, words):
    code, text = result
    return f"exit {code}: {words if words in text else text}"


WORKLOADS = [
    ("a workload's name that leads out of its folder", {"name": "'../../etc/words'"}, "found the workload name '../../etc/words'"),
    ("two requests of one id", {"requests": "request('one'), request('one')"}, "found two requests called 'one' in words"),
    ("a workload without requests", {"requests": ""}, "found a workload without requests: words"),
    ("a workload at T = 0.7 judged as greedy", {"requests": "request('one', 0.7),"}, "found one at temperature 0.7, judged as greedy"),
]


@pytest.mark.parametrize(
    "how, words",
    [
        pytest.param(how, words, marks=pytest.mark.chaos(fault, expected=f"exit 4: {words}", quick="0.7" in fault))
        for fault, how, words in WORKLOADS
    ],
)
def test_a_wrong_workload(tmp_path, seen, how, words):
    seen(said(tried(tmp_path, **how), words))


OPTIONS = [
    ("--specdec-config=$UNSET", ("--specdec-config=",), 4, "--specdec-config: found an empty value"),
    ("--specdec-config=my-model beside my-model.yaml", ("--specdec-config=my-model",), 0, "test_it[draft-k3]"),
    ("--specdec-deadline=10m", ("--specdec-deadline=10m",), 0, "test_it[draft-k3]"),
    ("--specdec-deadline=soon", ("--specdec-deadline=soon",), 4, "expected seconds, or a duration such as 90s, 10m or 1h30m"),
]


@pytest.mark.parametrize(
    "args, words",
    [
        pytest.param(args, words, marks=pytest.mark.chaos(fault, expected=f"exit {code}: {words}", quick="config" in fault))
        for fault, args, code, words in OPTIONS
    ],
)
def test_an_option(tmp_path, seen, args, words):
    seen(said(tried(tmp_path, *args), words))


def command(*args, reads=True):
    with subprocess.Popen([sys.executable, "-m", "pytest_specdec", *args], stdout=-1, stderr=-1, text=True, cwd=ROOT) as process:
        if not reads:
            process.stdout.close()
        told = process.stderr.read()
        return f"exit {process.wait()}, {told or 'nothing'} on stderr"


@pytest.mark.chaos("python -m pytest_specdec --version", expected="exit 0, nothing on stderr", quick=True)
def test_a_version(seen):
    seen(command("--version"))


@pytest.mark.chaos("doctor | head: a reader that goes away", expected="exit 141, nothing on stderr", quick=True)
def test_a_reader_that_goes_away(seen):
    seen(command("doctor", "reference", reads=False))
