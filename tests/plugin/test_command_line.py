"""``python -m pytest_specdec``: what has no place in a pytest run."""

from __future__ import annotations

import subprocess
import sys

import pytest_specdec

COMMAND = [sys.executable, "-m", "pytest_specdec"]


def test_it_says_its_version():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pytest-specdec {pytest_specdec.__version__}\n"


def test_a_reader_that_goes_away_leaves_no_traceback(repository):
    with subprocess.Popen(
        [*COMMAND, "doctor", "reference"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=repository
    ) as doctor:
        doctor.stdout.close()
        told = doctor.stderr.read()
    assert told == ""
    assert doctor.returncode == 141
