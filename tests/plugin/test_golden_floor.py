"""A golden file of a config: in the plan before anything boots, in the gates of the judges, and stored with the run."""

from __future__ import annotations

import json

import pytest

TESTS = """
import pytest
from sample import *


@pytest.mark.specdec(CHAT, family="speed")
def test_it(specdec_captured, specdec_check):
    floors = [gate.at_least for gate in specdec_captured.gates if gate.golden]
    specdec_check(say(specdec_captured, headline=f"golden floors {floors}", outcome=Outcome.PASS if floors != [9] else Outcome.FAIL))
"""
GATES = "gates: {acceptance_length: {golden: {file: lengths.yaml, tests: {draft-k3: 'TestTiny::test_draft'}}}}\n"


@pytest.fixture
def golden(project):
    """A project whose config takes the floor of one variant from a golden file."""
    write(project, 1.9)
    return project.config(GATES).tests(TESTS)


def write(project, least):
    (project.path / "suites/configs/lengths.yaml").write_text(f"TestTiny::test_draft:\n  ref_al: 2.0\n  min_al: {least}\n")


def test_the_plan_shows_the_floor_and_the_variant_without_one(golden):
    result = golden.run()
    result.assert_outcomes(passed=2)
    text = result.stdout.str()
    floor = "golden floor of draft-k3: 1.9 tokens per step with a draft, min_al of 2 (lengths.yaml:1 TestTiny::test_draft)"
    reason = "NO GOLDEN FLOOR for ngram-k3 (lengths.yaml): gates.acceptance_length.golden.tests names no test for it"
    assert f"  {floor}; not compared with the golden file: model, way of drafting, draft tokens, thinking, prompts" in text
    assert f"  {reason}\n" in text
    assert f"note: {reason}" in text
    (run,) = golden.runs
    assert "NO GOLDEN FLOOR for ngram-k3 (lengths.yaml)" in (run / "report.md").read_text()
    assert {each["pair"]: each["at_least"] for each in json.loads((run / "plan.json").read_text())["golden"]} == {
        "draft-k3": 1.9,
        "ngram-k3": None,
    }
    assert [j["verdict"]["headline"] for j in golden.document["judgements"]] == ["golden floors [1.9]", "golden floors []"]


def test_a_replay_has_the_floor_of_the_run_without_the_file(golden):
    golden.run()
    (run,) = golden.runs
    write(golden, 1.5)
    golden.run(f"--specdec-replay={run}", "--specdec-run-dir=changed")
    (golden.path / "suites/configs/lengths.yaml").unlink()
    golden.run(f"--specdec-replay={run}", "--specdec-run-dir=stored", config=None)
    headlines = {
        name: json.loads((golden.path / name / "run.json").read_text())["judgements"][0]["verdict"]["headline"]
        for name in ("changed", "stored")
    }
    assert headlines == {"changed": "golden floors [1.5]", "stored": "golden floors [1.9]"}


@pytest.mark.parametrize(
    "least, lines",
    [
        (
            3.0,
            ["*ERROR: the golden file has a problem", "*lengths.yaml:1  TestTiny::test_draft.min_al: found 3, expected at most ref_al, 2"],
        ),
        (1.0, ["*ERROR: the golden file has no length for any variant", "*draft-k3: min_al of 2 is 1, and every step brings a token"]),
    ],
)
def test_a_file_that_fits_nothing_ends_the_session_before_anything_boots(golden, least, lines):
    (golden.path / "suites/configs/lengths.yaml").write_text(f"TestTiny::test_draft: {{ref_al: 2.0, min_al: {least}}}\n")
    result = golden.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)
    assert "Traceback" not in result.stderr.str()
    assert not golden.captures


def test_a_selection_without_the_held_variant_is_no_error(golden):
    golden.run("-k", "ngram").assert_outcomes(passed=1, deselected=1)
