"""A verdict that is handed to nobody fails its test: a green that says nothing is worse than a red."""

from __future__ import annotations

import pytest

from pytest_specdec.judge import greedy, liveness

LOADED = (greedy, liveness)
"""Once for all sessions in this process: numpy cannot be imported a second time."""

HEAD = "import pytest\nfrom sample import *\nfrom pytest_specdec import judge\n\n@pytest.mark.specdec(CHAT, family='liveness')\n"
JUDGED = "judge.liveness.judge(specdec_captured)"
CASES = {
    "judged and forgotten": (f"def test_it(specdec_captured): {JUDGED}", "failed"),
    "forgotten beside the fixture": (f"def test_it(specdec_captured, specdec_check): {JUDGED}", "failed"),
    "given to another's check": (f"def test_it(specdec_captured, check): check({JUDGED})", "failed"),
    "asserted by hand": (f"def test_it(specdec_captured): assert not {JUDGED}.red", "failed"),
    "judged and checked": (f"def test_it(specdec_captured, specdec_check): specdec_check({JUDGED})", "passed"),
    "plain asserts on answers": ("def test_it(specdec_spec, specdec_base, specdec_captured): assert len(specdec_spec) == 3", "passed"),
    "plain asserts on what was captured": ("def test_it(specdec_captured): assert specdec_captured.speculative.tokens", "passed"),
    "skipped on the way": (f"def test_it(specdec_captured): {JUDGED}; pytest.skip('no')", "skipped"),
}  # fmt: skip


@pytest.mark.examples(2)
@pytest.mark.parametrize("case", CASES)
def test_a_verdict_nobody_checked_fails_its_test(project, case):
    body, outcome = CASES[case]
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + "\n\n@pytest.fixture\ndef check():\n    return lambda verdict: None\n")
    result = project.tests(HEAD + body + "\n").run("-p", "no:check")
    result.assert_outcomes(**{outcome: 2})
    if outcome == "failed":
        result.stdout.fnmatch_lines(["*liveness of chat, pass*", "*remedy: *specdec_check*"])
        assert project.document["red"]
        assert [one["result"] for one in project.document["judgements"]] == ["error", "error"]


def test_the_error_is_short_and_shows_none_of_our_frames(project):
    text = project.tests(HEAD + CASES["judged and forgotten"][0] + "\n").run().stdout.str()
    assert "judging.py" not in text
    assert "loop.py" not in text
