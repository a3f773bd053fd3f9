"""The table itself: it has to show a fault that was handled otherwise than expected."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"
TESTS = """
import pytest

@pytest.mark.chaos("a planted death", expected="named")
def test_red(seen):
    seen("passed over")

@pytest.mark.chaos("a planted hang", expected="named")
def test_green(seen):
    seen("named")

@pytest.mark.chaos("a planted silence", expected="named")
def test_forgets():
    pass
"""


@pytest.mark.chaos("a fault that is not handled as expected", expected="1 of 3 faults as expected, exit 1", quick=True)
def test_the_table_shows_what_was_not_as_expected(pytester, seen):
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    (last,) = [line for line in result.outlines if "faults as expected" in line]
    seen(f"{last}, exit {result.ret:d}")
    result.stdout.fnmatch_lines(["a planted death", "*seen      passed over   [[]NOT AS EXPECTED]"])
