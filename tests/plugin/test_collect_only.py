"""Listing tests costs nothing."""

from __future__ import annotations

import os

import pytest

from tests.plugin.conftest import TESTS


@pytest.mark.examples(2)
@pytest.mark.parametrize("args", [("--co",), ("--co", "-n2"), ("--co", "-q"), ("--setup-plan",)], ids=" ".join)
def test_listing_boots_nothing_and_makes_no_folder(project, args):
    result = project.tests().run(*args, subprocess=True)
    assert result.ret == 0
    assert not project.captures
    assert not project.runs


def test_listing_shows_the_plan(project):
    result = project.tests().run("--co")
    result.stdout.fnmatch_lines(
        [
            "specdec: tiny*",
            "*2 pairs (draft-k3, ngram-k3)*= 4 judgements",
            "*4 boots (baseline, draft-k3, ngram-k3, control)*",
        ]
    )
    assert "--- specdec ---" not in result.stdout.str()


@pytest.mark.parametrize("load, lines", [(9.0, 1), (0.2, 0)])
def test_a_plan_says_when_other_programs_will_delay_its_capture(project, monkeypatch, load, lines):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    text = project.tests().run("--co").stdout.str()
    assert text.count(f"  the machine is busy, {load:.1f} processes to a core: the capture takes longer") == lines


def test_listing_the_suites_imports_no_numpy(repository, pytester):
    code = "import sys, pytest; pytest.main(['--co', '-q', 'suites']); sys.exit('numpy' in sys.modules)"
    result = pytester.run("python", "-c", f"import os; os.chdir({str(repository)!r}); {code}")
    assert result.ret == 0


def test_a_session_that_sends_nothing_leaves_openai_alone(project):
    """Its import takes as long as the rest of a session's start."""
    project.tests(TESTS + "\n\ndef test_last():\n    import sys\n    assert 'openai' not in sys.modules\n")
    project.run(subprocess=True).assert_outcomes(passed=5)
